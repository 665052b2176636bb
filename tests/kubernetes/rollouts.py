"""Progressive rollouts in one namespace: Knative as its stand-in plays it, and the farms that roll."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from farmd.kubernetes.contact import KubernetesSettings
from farmd.kubernetes.knative.objects import (
    CONFIG_MAPS,
    ENABLED,
    ORCHESTRATORS,
    REFUSED,
    RELEASED,
    REVISIONS,
    ROUTES,
    SERVICES,
    STAGE_AUTOSCALERS,
    WORDS,
)
from farmd.kubernetes.objects import EVENTS
from farmd.kubernetes.transport import KubernetesTransport
from store.entry import Entry
from tests.fleet import Cluster, RunningFarm, client_of, eventually, start_farm
from tests.kubernetes.knative import Knative
from tests.kubernetes.recording import Recording, shares_of
from tests.kubernetes_server import ApiServer

T = TypeVar("T")


class Rollouts:
    """What a test sees and does in its namespace; ``play`` is the stand-in for Knative.

    ``recorded`` is every version of every object. Of farms to come, ``settings`` are what they are told, and
    ``way`` is what they take for the server.
    """

    def __init__(
        self,
        server: ApiServer,
        play: Knative,
        recorded: Recording,
        cluster: Cluster,
        consul: str,
        connect: Any,
    ) -> None:
        self.server, self.play, self.namespace = server, play, play.namespace
        self.recorded = recorded
        self.cluster, self.consul, self._connect = cluster, consul, connect
        self._farms: dict[str, AsyncExitStack] = {}
        self.running: dict[str, RunningFarm] = {}
        self.way: Any = server
        self.settings: dict[str, Any] = {}

    # -- farms -----------------------------------------------------------------------------------
    async def farm(self, name: str, user: str = "admin") -> None:
        """One more farm."""
        await self.changed(name, lambda _: None, user)

    async def changed(self, name: str, change: Callable[[KubernetesTransport], T], user: str = "admin") -> T:
        """One more farm, whose transport is changed before it begins; what the change returned."""
        self._farms[name] = stack = AsyncExitStack()
        transport = await stack.enter_async_context(self._connect(self.way, user))
        found = change(transport)
        settings = KubernetesSettings(
            transport, name=self.namespace, namespaces=(self.namespace,), knative_namespace=self.namespace
        )
        client = client_of(self.consul)
        stack.push_async_callback(client.close)
        sections, keys = {"kubernetes": settings}, self.cluster.keys
        farm = await start_farm(
            client, name, keys=keys, kinds=("progressive",), sections=sections, **self.settings
        )
        stack.push_async_callback(farm.close)
        self.running[name] = farm
        return found

    async def stop(self, name: str) -> None:
        """Stop a farm cleanly."""
        self.running.pop(name, None)
        await self._farms.pop(name).aclose()

    async def close(self) -> None:
        """Stop all farms."""
        for name in list(self._farms):
            await self.stop(name)

    # -- what is there ---------------------------------------------------------------------------
    def service(self, name: str = "web") -> dict[str, Any]:
        """A service as the server has it."""
        found: dict[str, Any] = self.server.ask("GET", SERVICES.path(self.namespace, name))
        return found

    def record(self, name: str = "web") -> dict[str, Any]:
        """Its RolloutOrchestrator; empty while there is none."""
        listed = self.server.ask("GET", ORCHESTRATORS.path(self.namespace))["items"]
        return next((each for each in listed if each["metadata"]["name"] == name), {})

    def uid(self, name: str = "web") -> str:
        """The uid of its RolloutOrchestrator; empty while there is none."""
        found: str = self.record(name).get("metadata", {}).get("uid", "")
        return found

    def traffic(self, name: str = "web") -> dict[str, int]:
        """The shares that its route shows."""
        return shares_of(self.play.stores[ROUTES].get(self.namespace, name))

    def pods(self, revision: str) -> int:
        """How many pods of a revision serve."""
        return len(self.play.ready(revision))

    def bounds(self, revision: str) -> tuple[str | None, str | None]:
        """The bounds that a revision has."""
        found = self.server.ask("GET", REVISIONS.path(self.namespace, revision))["metadata"]["annotations"]
        least, most = (found.get(f"autoscaling.knative.dev/{word}-scale") for word in ("min", "max"))
        return least, most

    def autoscalers(self) -> dict[str, dict[str, Any]]:
        """The StagePodAutoscalers, by name."""
        listed = self.server.ask("GET", STAGE_AUTOSCALERS.path(self.namespace))["items"]
        return {each["metadata"]["name"]: each for each in listed}

    def condition(self, kind: str, name: str = "web") -> str:
        """What a condition of the record says."""
        found = self.record(name).get("status", {}).get("conditions", [])
        return next((each["status"] for each in found if each["type"] == kind), "")

    def reason(self, kind: str, name: str = "web") -> str:
        """The reason of a condition of the record."""
        found = self.record(name).get("status", {}).get("conditions", [])
        return next((each.get("reason", "") for each in found if each["type"] == kind), "")

    def ready(self, name: str = "web") -> bool:
        """Whether the rollout is over, and the record says so of its present spec."""
        record = self.record(name)
        observed = record.get("status", {}).get("observedGeneration")
        return (
            bool(record)
            and observed == record["metadata"]["generation"]
            and self.condition("Ready") == "True"
        )

    def rests(self, revision: str, pods: int, name: str = "web") -> bool:
        """Whether a revision serves alone, the rollout is over and nothing holds the record."""
        alone = self.traffic(name) == {revision: 100} and self.pods(revision) == pods
        return alone and self.ready(name) and not self.record(name)["metadata"].get("finalizers")

    async def status(self) -> str:
        """The statuses in Consul, as text; those of blocked services alone are there."""
        page = await self.cluster.client.list(self.cluster.keys.tree("status"))
        return " ".join(Entry.of(raw).value.decode() for raw in page.items)

    async def told(self, text: str) -> None:
        """Wait until a status says that."""

        async def said() -> bool:
            return text in await self.status()

        try:
            await eventually(said, what=f"a status that says {text!r}")
        except AssertionError:
            raise AssertionError(await self.status()) from None

    async def audit(self) -> list[str]:
        """The actions of the audit records, oldest first."""
        page = await self.cluster.client.list(self.cluster.keys.tree("audit"))
        found = [json.loads(Entry.of(raw).value) for raw in page.items]
        return [each["action"] for each in found if "action" in each]

    def alerts(self, farm: str = "first") -> list[str]:
        """The alerts of rollouts that are firing, by their keys."""
        return [key for key in self.running[farm].alerts.firing if key.startswith("rollout")]

    def events(self) -> set[str]:
        """The reasons of events."""
        listed = self.server.ask("GET", EVENTS.path(self.namespace))["items"]
        return {each["reason"] for each in listed}

    # -- what people do --------------------------------------------------------------------------
    def say(self, word: str, value: str | None = "true", name: str = "web") -> None:
        """Annotate the record as kubectl would."""
        body = {"metadata": {"annotations": {f"{WORDS}{word}": value}}}
        self.server.patch(ORCHESTRATORS.path(self.namespace, name), body)

    def enable(self, value: str, name: str = "web") -> None:
        """The label of a service."""
        body = {"metadata": {"labels": {ENABLED: value}}}
        self.server.patch(SERVICES.path(self.namespace, name), body)

    def refused(self) -> str:
        """The revisions that were reverted."""
        found: str = self.record()["metadata"]["annotations"].get(REFUSED, "")
        return found

    def released(self) -> bool:
        """Whether the record is nobody's any more."""
        return RELEASED in self.record()["metadata"]["annotations"]

    def configure(self, **data: str) -> None:
        """The ConfigMap of rollouts."""
        body = {"metadata": {"name": "config-rolloutorchestrator"}, "data": data}
        self.server.ask("POST", CONFIG_MAPS.path(self.namespace), body)

    async def until(self, what: str, check: Callable[[], Any]) -> None:
        """Wait until that is so."""

        async def checked() -> Any:
            return check()

        try:
            await eventually(checked, what=what)
        except AssertionError:
            told = json.dumps(self.seen(), indent=1)
            raise AssertionError(f"{what}: {told} {await self.status()}") from None

    def seen(self) -> dict[str, Any]:
        """The world in short, for a failure."""
        record = self.record()
        return {
            "traffic": self.traffic(),
            "pods": {each.name: self.pods(each.name) for each in self.play.stores[REVISIONS]},
            "annotations": record.get("metadata", {}).get("annotations"),
            "finalizers": record.get("metadata", {}).get("finalizers"),
            "generation": record.get("metadata", {}).get("generation"),
            "spec": record.get("spec"),
            "status": record.get("status"),
            "bounds": {each.name: self.bounds(each.name) for each in self.play.stores[REVISIONS]},
            "autoscalers": {name: each["spec"] for name, each in self.autoscalers().items()},
            "service": self.service()["spec"].get("traffic"),
        }
