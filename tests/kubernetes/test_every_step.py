"""A farm that falls away at each step of a job of three pods with a retry: at each write to the API server
and each transaction of Consul, and at the first, the last and a tenth of what it reads of the API server.

Its packets are held by a proxy; it is killed, or stopped until its session is over and another farm has come
to the end, and then its write arrives. Whoever finishes the job comes to the same end: the retry is counted
once, the verdict goes before all cleaning, and no pod is there after it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from farmd.kubernetes.install import install
from farmd.runtime.clock import SystemClock
from tests import forked
from tests.fault.falling import FATES, Fate
from tests.fault.farm_process import FarmProcess, Nursery
from tests.fault.rig import NEVER, came
from tests.fleet import Cluster, cluster_on, eventually, in_time
from tests.kubernetes.farmjobs import JOBS, SUCCEEDED, failed, template
from tests.kubernetes.kubelet import Kubelet, kubelet_on
from tests.kubernetes_server import ApiServer
from tests.mortal import bury
from tests.proxy import Hold, Proxy, Seen

pytestmark = [pytest.mark.xdist_group("kubernetes"), pytest.mark.slow]

MEMBERS = [f"bert-worker-{index}" for index in range(3)]
RETRIED = MEMBERS[1]
ONCE = Counter([*((name, 0) for name in MEMBERS), (RETRIED, 1)])
AT_ONCE = 24
SEED = 1
SESSION_SECONDS = 10.0


def tell(name: str, attempt: int) -> dict[str, Any]:
    """Each member ends at once: well, but for the first attempt of one."""
    return failed(137) if (name, attempt) == (RETRIED, 0) else SUCCEEDED


def writes(seen: Seen) -> bool:
    """A request that changes something in Kubernetes; events, which are no part of a job, are none."""
    return seen.method in ("POST", "PATCH", "DELETE") and not seen.path.endswith("/events")


def reads(seen: Seen) -> bool:
    """A request that changes nothing: lists, watches, single objects, and whose cluster it is."""
    return seen.method == "GET"


@dataclass
class Case:
    """One job in a namespace and a cluster of its own, behind proxies."""

    namespace: str
    folder: Path
    server: ApiServer
    kubelet: Kubelet
    nursery: Nursery
    cluster: Cluster
    consul: Proxy
    api: Proxy
    transactions: int = 0

    def farm(self, name: str) -> FarmProcess:
        """One more farm, as a process."""
        where = {"cluster": "c", "user": "u"}
        config = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": where}],
            "clusters": [{"name": "c", "cluster": {"server": f"http://{self.api.address}"}}],
            "users": [{"name": "u", "user": {}}],
        }
        path = self.folder / f"{self.namespace}.json"
        path.write_text(json.dumps(config))
        section = {"kubeconfig": str(path), "name": self.namespace, "namespaces": [self.namespace]}
        keys = self.cluster.keys
        return self.nursery.farm(self.consul.address, name, keys, kinds=("kubejobs",), kubernetes=section)

    async def present(self, name: str) -> None:
        """Return when a farm is a member, and no session of a former one of its name is left."""

        async def so() -> bool:
            return await self.cluster.client.read(self.cluster.keys.farm(name)) is not None

        await eventually(so, what=f"farm {name}")

    def create(self) -> None:
        """The job: all its pods are cleaned away at its end."""
        worker = {"replicas": 3, "restartPolicy": "ExitCode", "template": template()}
        spec = {"replicaSpecs": {"Worker": worker}, "runPolicy": {"cleanPodPolicy": "All"}}
        body = {"apiVersion": "farmd.io/v1", "kind": "FarmJob", "metadata": {"name": "bert"}, "spec": spec}
        self.server.ask("POST", JOBS.path(self.namespace), body)

    @property
    def status(self) -> dict[str, Any]:
        """The job's, as it was last seen."""
        job = self.kubelet.jobs.get(self.namespace, {}).get("bert", {})
        status: dict[str, Any] = job.get("status", {})
        return status

    async def ended(self) -> None:
        """Return when the job succeeded and is cleaned."""
        await self.kubelet.until(self._over, self._told)

    def _over(self) -> bool:
        states = {one["type"] for one in self.status.get("conditions", ()) if one["status"] == "True"}
        left = self.kubelet.pods.get(self.namespace), self.kubelet.services.get(self.namespace)
        return "Succeeded" in states and not any(left)

    def _told(self) -> object:
        return self.namespace, self.status, list(self.kubelet.pods.get(self.namespace, ()))

    def judge(self, hold: Hold, fate: Fate) -> None:
        """What must be so in the end, whoever fell where."""
        started = Counter(self.kubelet.started[self.namespace])
        twice = started - ONCE
        late = hold.seen is not None and hold.seen.method == "POST" and fate == "stopped, sent late"
        assert started >= ONCE
        assert sum(twice.values()) <= late, f"a slot twice: {twice}"  # its packet came after the cleaning
        assert self.status["restarts"] == 1
        assert {one["type"] for one in self.status["conditions"]} <= {"Created", "Running", "Succeeded"}
        requests = [each for each in self.api.requests if writes(each)]
        cleaning = [
            at
            for at, each in enumerate(requests)
            if each.method == "DELETE" and not each.path.endswith(RETRIED)
        ]
        verdict = next(at for at, each in enumerate(requests) if b'"completionTime":"' in each.body)
        assert verdict < min(cleaning), "cleaned before the verdict"


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """Forks farm processes, which end with it."""
    forked.ready()
    with Nursery(tmp_path_factory.mktemp("farms")) as made:
        yield made


@pytest.fixture
async def kubelet(api: ApiServer, connect: Any) -> AsyncIterator[Kubelet]:
    async with connect(api) as admin:
        await install(admin, ("farmjobs",), SystemClock())
        async with kubelet_on(admin, tell) as running:
            yield running


@dataclass(frozen=True)
class Fall:
    """What happens at the k-th write to the API server, the k-th read of it, or the k-th transaction."""

    point: Literal["writes", "reads", "consul"]
    k: int
    fate: Fate

    def hold(self, case: Case) -> Hold:
        """Hold that request, or its answer."""
        answer = self.fate.endswith(("answered", "answered late"))
        if self.point == "consul":
            return case.consul.hold_transaction(self.k, answer=answer)
        return case.api.hold(writes if self.point == "writes" else reads, self.k, answer=answer)


async def fallen(case: Case, fall: Fall, hold: Hold, victim: FarmProcess) -> None:
    """The farm meets its fate at what is held, and another comes to the end."""
    if not await came(hold, case.ended()):
        case.judge(hold, fall.fate)
        return
    over = asyncio.get_running_loop().time() + SESSION_SECONDS
    if fall.fate.startswith("stopped"):
        victim.pause()
    else:
        await victim.end()
        hold.drop()
    heir = case.farm("heir")
    await bury(case.cluster)
    await case.ended()
    if fall.fate.startswith("stopped"):
        # Consul ends no session before its time is over by the farm's own clock; ``bury`` does.
        await asyncio.sleep(over - asyncio.get_running_loop().time())
        victim.resume()
        hold.release()
        await in_time(hold.finished.wait())
        await case.present("mortal")
        await case.ended()
    case.judge(hold, fall.fate)
    await heir.end()


async def test_whoever_takes_a_job_over_at_any_write_comes_to_the_same_end(
    api: ApiServer, consul_dev: str, nursery: Nursery, kubelet: Kubelet, tmp_path: Path, namespace: str
) -> None:
    numbers, gate = itertools.count(), asyncio.Semaphore(AT_ONCE)

    @asynccontextmanager
    async def world() -> AsyncIterator[Case]:
        async with AsyncExitStack() as stack:
            own = api.namespace(f"{namespace}-{next(numbers)}")
            cluster = await stack.enter_async_context(cluster_on(consul_dev))
            consul = await stack.enter_async_context(Proxy(consul_dev))
            upstream = api.url.removeprefix("https://")
            front = await stack.enter_async_context(Proxy(upstream, tls=api.login()))
            yield Case(own, tmp_path, api, kubelet, nursery, cluster, consul, front)

    async def one(fall: Fall) -> Case:
        async with gate, world() as case:
            early = fall.hold(case) if fall.point == "reads" else None  # a farm reads from its start on
            victim = case.farm("mortal")
            await case.present("mortal")
            before = case.consul.transactions()
            hold = early or fall.hold(case)
            case.create()
            try:
                await fallen(case, fall, hold, victim)
            except BaseException as error:
                error.add_note(f"{fall}, {hold.seen}")
                raise
            finally:
                await victim.end()
            case.transactions = case.consul.transactions() - before
            return case

    calm = await one(Fall("writes", NEVER, "killed, never sent"))
    steps = {"writes": sum(map(writes, calm.api.requests)), "consul": calm.transactions}
    assert steps["writes"] >= 12, "a job of three pods with a retry has no fewer writes"
    asked = sum(map(reads, calm.api.requests))
    chosen = {1, asked, *random.Random(SEED).sample(range(2, asked), asked // 10)}
    async with asyncio.TaskGroup() as together:
        for point, count in steps.items():
            for k, turn in itertools.product(range(1, count + 1), (0, 2)):  # one kills, the other stops
                together.create_task(one(Fall(point, k, FATES[(k + turn) % len(FATES)])))
        for turn, k in enumerate(sorted(chosen)):
            together.create_task(one(Fall("reads", k, FATES[turn % len(FATES)])))
