"""The parts that rows of jobs in Kubernetes share: a real API server, bare clients of it, a kubelet, a watch.

The API server, its etcd and Consul are the same for what is measured and for what it is compared with.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp

from bench.farm_process import FarmProcess
from bench.rig import rig
from farmd.jobs.facts import Slot
from farmd.kubernetes.install import documents
from farmd.kubernetes.jobs import bodies, resource
from farmd.kubernetes.jobs.kindfile import JobKind, kinds
from farmd.kubernetes.objects import CRDS, PODS, SERVICES, Resource
from farmd.kubernetes.pace import MOST_IN_FLIGHT
from store.consul.client import ConsulClient
from tests.fleet import eventually
from tests.kubernetes_server import ApiServer, Etcd
from tests.servers import ConsulServer

JOBS = Resource("farmd.io", "v1", "farmjobs", "FarmJob")
MERGE = "application/merge-patch+json"
KIND = "kubejobs"
LOOK_SECONDS = 0.1
_COUNTED = re.compile(r"^apiserver_request_total\{(.*)\} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
COUNTED = ("pods", "services", "farmjobs", "events")
READS = ("GET", "LIST")
WRITES = ("POST", "PUT", "PATCH", "DELETE", "APPLY")


@dataclass(frozen=True)
class Call:
    """One request of a bare client; ``user``: for whom it speaks, if not for itself."""

    method: str
    path: str
    body: Any = None
    type: str = "application/json"
    user: str = ""


@dataclass
class Setting:
    """The servers, and a bare client of the API server."""

    api: ApiServer
    etcd: Etcd
    consul: ConsulServer
    store: ConsulClient
    session: aiohttp.ClientSession
    folder: Path
    farms: list[FarmProcess] = field(default_factory=list)

    def kubeconfig(self) -> str:
        """The path of an administrator's."""
        path = self.folder / "kubeconfig"
        path.write_text(self.api.kubeconfig())
        return str(path)

    def start_farm(self, name: str, namespace: str) -> FarmProcess:
        """A farm for the jobs of one namespace."""
        told = f'[kubernetes]\nkubeconfig = "{self.kubeconfig()}"\nname = "{namespace}"\n'
        farm = FarmProcess(self.consul.address, name, more=f'{told}namespaces = ["{namespace}"]\n')
        self.farms.append(farm)
        return farm

    async def call(self, call: Call) -> Any:
        """Send one request; its answer, decoded.

        Raises:
            RuntimeError: the server refused it.
        """
        data = None if call.body is None else json.dumps(call.body).encode()
        headers = {"Content-Type": call.type} if data else {}
        if call.user:
            headers["Impersonate-User"] = call.user
        url = self.api.url + call.path
        async with self.session.request(call.method, url, data=data, headers=headers) as answer:
            text = await answer.read()
            if answer.status >= 300:
                raise RuntimeError(f"{call.method} {call.path}: found {answer.status} {text[:200]!r}")
            return json.loads(text)

    async def all(self, chains: Iterable[Sequence[Call]]) -> float:
        """Send chains of requests, as many at once as a farm does, each in its order; the seconds needed."""
        left, started = iter(chains), time.monotonic()

        async def one() -> None:
            for chain in left:
                for call in chain:
                    await self.call(call)

        await asyncio.gather(*(one() for _ in range(MOST_IN_FLIGHT)))
        return time.monotonic() - started

    async def counts(self, *, reads: bool = False, of: Collection[str] = COUNTED) -> Counter[tuple[str, str]]:
        """Mutating requests so far by (verb, resource), the server's own count; ``pods/status`` is one.

        ``reads``: in their place those that read, without watches. ``of``: the resources that count.
        """
        found = Counter[tuple[str, str]]()
        for (verb, _, plural, what), value in (await self.requests()).items():
            if verb in (READS if reads else WRITES) and plural in of:
                found[verb, what] += value
        return found

    async def requests(self) -> Counter[tuple[str, str, str, str]]:
        """All requests so far, save dry runs, by verb, API group, resource, and resource with subresource."""
        async with self.session.get(self.api.url + "/metrics") as answer:
            text = await answer.text()
        found = Counter[tuple[str, str, str, str]]()
        for labels, value in _COUNTED.findall(text):
            named = dict(_LABEL.findall(labels))
            what = "/".join(filter(None, (named["resource"], named["subresource"])))
            if not named.get("dry_run"):
                found[named["verb"], named["group"], named["resource"], what] += int(float(value))
        return found

    async def created(self, namespace: str, count: int, work: Awaitable[object], within: float) -> float:
        """Seconds from the first pod of a namespace to the last of so many, which ``work`` brings about."""
        path, first = PODS.path(namespace) + "?limit=1", 0.0

        async with asyncio.timeout(within):
            working = asyncio.ensure_future(work)
            while True:
                page = await self.call(Call("GET", path))
                found = len(page["items"]) + page["metadata"].get("remainingItemCount", 0)
                first = first or (time.monotonic() if found else 0.0)
                if found >= count:
                    took = time.monotonic() - first
                    await working
                    return took
                await asyncio.sleep(LOOK_SECONDS)


@asynccontextmanager
async def setting() -> AsyncIterator[Setting]:
    """Servers with the definition of jobs, for the length of a ``with`` block."""
    with Etcd() as etcd, ApiServer(etcd) as api, tempfile.TemporaryDirectory() as folder:
        connector = aiohttp.TCPConnector(ssl=api.login(), limit=0)
        async with rig() as (consul, store), aiohttp.ClientSession(connector=connector) as session:
            made = Setting(api, etcd, consul, store, session, Path(folder))
            definition = next(each for each in documents(("farmjobs",)) if each["kind"] == CRDS.kind)
            await made.call(Call("POST", CRDS.path(), definition))

            async def served() -> bool:
                async with session.get(api.url + JOBS.path("default")) as answer:
                    return answer.status == 200

            await eventually(served, what="the API server serves jobs")
            try:
                yield made
            finally:
                await asyncio.gather(*(farm.end() for farm in made.farms))


def document(name: str, members: int) -> dict[str, Any]:
    """A job with small pods."""
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": "1"}}}
    worker = {
        "replicas": members,
        "restartPolicy": "ExitCode",
        "template": {"spec": {"containers": [container]}},
    }
    spec = {"replicaSpecs": {"Worker": worker}}
    return {
        "apiVersion": JOBS.api_version,
        "kind": JOBS.kind,
        "metadata": {"name": name},
        "spec": spec,
    }


async def jobs_in(setting: Setting, namespace: str, count: int, members: int) -> None:
    """Create a namespace with so many jobs."""
    setting.api.namespace(namespace)
    made = (document(f"job-{number:05}", members) for number in range(count))
    await setting.all([[Call("POST", JOBS.path(namespace), each)] for each in made])


def written(job: dict[str, Any], status: dict[str, Any]) -> list[Call]:
    """What a farm sends until all pods of a new job are there: its first status, service and pods."""
    data = kinds()["farmjobs"]
    controller = JobKind(data, lambda *_: None, _never)
    found = resource.read(data, job)
    meta = job["metadata"]
    version = {"metadata": {"resourceVersion": meta["resourceVersion"]}, "status": status}
    fence = Call("PATCH", JOBS.path(meta["namespace"], meta["name"], "status"), version, MERGE)
    service = Call("POST", SERVICES.path(meta["namespace"]), bodies.service_body(controller, found, None))
    slots = (Slot(kind.name, index) for kind in found.job.types for index in range(kind.replicas))
    pods = (bodies.pod_body(controller, found, slot, 0) for slot in slots)
    return [fence, service, *(Call("POST", PODS.path(meta["namespace"]), body) for body in pods)]


async def _never(namespace: str, name: str) -> None:
    raise AssertionError(f"nobody reads {namespace}/{name}")


async def items(setting: Setting, kind: Resource, namespace: str) -> list[dict[str, Any]]:
    """All objects of a resource in a namespace, in pages: a busy server cannot list 10,000 at once."""
    found: list[dict[str, Any]] = []
    path = following = kind.path(namespace) + "?limit=500"
    while following:
        page = await setting.call(Call("GET", following))
        found += page["items"]
        more = page["metadata"].get("continue")
        following = f"{path}&continue={quote(more)}" if more else ""
    return found


async def play(setting: Setting, namespace: str, names: Iterable[str], status: dict[str, Any]) -> float:
    """Say of pods what a kubelet would, those of one job after the other."""
    paths = (PODS.path(namespace, name, "status") for name in names)
    return await setting.all([[Call("PATCH", path, {"status": status}, MERGE)] for path in paths])


def named(count: int, members: int) -> list[str]:
    """The names of the pods of ``jobs_in``."""
    return [f"job-{job:05}-worker-{pod}" for job, pod in itertools.product(range(count), range(members))]
