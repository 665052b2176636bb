"""Jobs on a real API server, the farms that run them, and a kubelet that does what a test says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from farmd.kubernetes.contact import KubernetesSettings
from farmd.kubernetes.objects import PODS, Resource
from farmd.kubernetes.transport import ApiRequest, KubernetesTransport
from store import codec
from store.consul.client import ConsulClient
from store.entry import Entry
from store.jobs import Run
from store.keys import Keys
from tests.fleet import Cluster, Inbox, RunningFarm, client_of, eventually, start_farm
from tests.kubernetes_external import external
from tests.kubernetes_server import ApiServer

T = TypeVar("T")
JOBS = Resource("farmd.io", "v1", "farmjobs", "FarmJob")
RUNNING = {"phase": "Running"}
SUCCEEDED = {"phase": "Succeeded"}


def failed(code: int, reason: str = "Error") -> dict[str, Any]:
    """The status of a pod whose program ended so."""
    ended = {"name": "main", "ready": False, "restartCount": 0, "image": "none", "imageID": "none"}
    state = {"terminated": {"exitCode": code, "reason": reason}}
    return {"phase": "Failed", "containerStatuses": [ended | {"state": state}]}


def template(container: str = "main") -> dict[str, Any]:
    """The template of a small pod, which no scheduler gives to a kubelet."""
    scheduler = {"schedulerName": "nobody"} if external() else {}
    return {"spec": {"containers": [{"name": container, "image": "none"}], **scheduler}}


def noting(seen: list[ApiRequest]) -> Callable[[KubernetesTransport], None]:
    """A change of a farm's transport that notes every write, in the order in which they begin."""

    def change(transport: KubernetesTransport) -> None:
        send = transport.send

        async def noted(request: ApiRequest, timeout: float = 10.0) -> bytes:
            if request.write:
                seen.append(request)
            return await send(request, timeout)

        transport.send = noted  # type: ignore[method-assign]

    return change


class Jobs:
    """Jobs of one namespace, the farms that run them, and a kubelet that does what the test says.

    ``resource`` is what the jobs are, ``types`` the field with their types, ``gang`` the flavour of the
    cluster's scheduler. Farms work in the namespaces ``beside``, too.
    """

    resource = JOBS
    types = "replicaSpecs"
    gang = ""
    beside: tuple[str, ...] = ()

    def __init__(
        self, server: ApiServer, namespace: str, cluster: Cluster, consul: str, connect: Any
    ) -> None:
        self.server, self.namespace = server, namespace
        self._cluster, self._address, self._connect = cluster, consul, connect
        self._farms: dict[str, AsyncExitStack] = {}
        self._running: dict[str, RunningFarm] = {}
        self._settings: dict[str, KubernetesSettings] = {}

    @property
    def consul(self) -> str:
        """``host:port`` of Consul."""
        return self._address

    @property
    def prefix(self) -> str:
        """The prefix of the cluster's keys."""
        return self._cluster.keys.prefix

    @property
    def keys(self) -> Keys:
        """The keys of the cluster."""
        return self._cluster.keys

    @property
    def client(self) -> ConsulClient:
        """A client of Consul."""
        return self._cluster.client

    def running(self, farm: str) -> RunningFarm:
        """One of the farms."""
        return self._running[farm]

    def settings(self, farm: str) -> KubernetesSettings:
        """What a farm was told of the cluster."""
        return self._settings[farm]

    def alerts(self, farm: str) -> Inbox:
        """What a farm told people."""
        return self._running[farm].alerts

    async def until_status(self, text: str) -> None:
        """Wait until a status in Consul says that."""

        async def told() -> bool:
            return text in await self.status()

        await eventually(told, what=f"a status with {text!r}")

    async def until_no_status(self) -> None:
        """Wait until no status stands in Consul."""

        async def none() -> bool:
            return not (await self.status()).replace(f'"{self._cluster.id}"', "").strip()

        await eventually(none, what="no status")

    async def until_frozen(self, farm: str) -> None:
        """Wait until a farm knows that removals are frozen."""
        guard = self._running[farm].farm.guards["kubejobs"]

        async def frozen() -> bool:
            return guard.frozen() is not None

        await eventually(frozen, what="a freeze")

    async def farm(self, name: str, user: str = "admin") -> None:
        """One more farm."""
        await self.falling(name, lambda _: None, user)

    async def falling(
        self, name: str, change: Callable[[KubernetesTransport], T], user: str = "admin", **chosen: Any
    ) -> T:
        """One more farm, whose transport is changed before it begins; what the change returned."""
        self._farms[name] = stack = AsyncExitStack()
        transport = await stack.enter_async_context(self._connect(self.server, user))
        changed = change(transport)
        settings = KubernetesSettings(
            transport,
            name=self.namespace,
            namespaces=(self.namespace, *self.beside),
            jobs=(self.resource.plural,),
            gang=self.gang,
        )
        self._settings[name] = settings
        client = client_of(self._address)
        stack.push_async_callback(client.close)
        sections = {"kubernetes": settings}
        keys = self._cluster.keys
        farm = await start_farm(client, name, keys=keys, kinds=("kubejobs",), sections=sections, **chosen)
        stack.push_async_callback(farm.close)
        self._running[name] = farm
        return changed

    def owned(self, name: str) -> set[str]:
        """The items that a farm holds."""
        return self._running[name].owned

    async def runs(self) -> dict[str, Run]:
        """How far jobs are, by uid."""
        keys = self._cluster.keys
        found = await self._cluster.entries(keys.tree("runs"))
        return {keys.last_part(key): codec.decode(Run, each.value, key) for key, each in found.items()}

    async def write_run(self, uid: str, run: Run) -> None:
        """Write a run as a farm would have left it."""
        await self._cluster.put(self._cluster.keys.record("runs", uid), run)

    async def status(self) -> str:
        """The statuses in Consul, as text; those of blocked jobs alone are there."""
        page = await self._cluster.client.list(self._cluster.keys.tree("status"))
        return " ".join(Entry.of(raw).value.decode() for raw in page.items)

    async def stop(self, name: str) -> None:
        """Stop a farm cleanly."""
        await self._farms.pop(name).aclose()

    async def close(self) -> None:
        """Stop all farms."""
        for name in list(self._farms):
            await self.stop(name)

    def create(self, name: str, types: dict[str, dict[str, Any]], **spec: Any) -> dict[str, Any]:
        """A job; each type's template is that of a small pod."""
        specs = {kind: {"template": template()} | each for kind, each in types.items()}
        body = {"apiVersion": self.resource.api_version, "kind": self.resource.kind}
        body |= {"metadata": {"name": name}, "spec": {self.types: specs} | spec}
        created: dict[str, Any] = self.server.ask("POST", self.resource.path(self.namespace), body)
        return created

    def job(self, name: str) -> dict[str, Any]:
        """A job as the server has it."""
        found: dict[str, Any] = self.server.ask("GET", self.resource.path(self.namespace, name))
        return found

    def listed(self, kind: Resource) -> dict[str, dict[str, Any]]:
        """All objects of a resource by name."""
        items = self.server.ask("GET", kind.path(self.namespace))["items"]
        return {each["metadata"]["name"]: each for each in items}

    def pods(self) -> dict[str, dict[str, Any]]:
        """All pods by name, without those that leave."""
        found = self.listed(PODS).items()
        return {name: each for name, each in found if "deletionTimestamp" not in each["metadata"]}

    def play(self, pod: str, status: dict[str, Any]) -> None:
        """Say of a pod what the kubelet would."""
        self.server.patch(PODS.path(self.namespace, pod, "status"), {"status": status})

    async def until(self, what: str, check: Callable[[], bool]) -> None:
        """Wait until that is so."""

        async def checked() -> bool:
            return await asyncio.to_thread(check)

        await eventually(checked, what=what)

    def states(self, name: str) -> set[str]:
        """The conditions of a job that hold."""
        conditions = self.job(name).get("status", {}).get("conditions") or []
        return {one["type"] for one in conditions if one["status"] == "True"}
