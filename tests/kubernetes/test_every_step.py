"""A farm that falls away at each step of a job of three pods with a retry: at each write to the API server
and each transaction of Consul, and at the first, the last and a tenth of what it reads of the API server.

Its packets are held by a proxy; it is killed, or stopped until its session is over and another farm has come
to the end, and then its write arrives. Whoever finishes the job comes to the same end: the retry is counted
once, the verdict goes before all cleaning, and no pod is there after it.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from farmd.kubernetes.install import install
from farmd.runtime.clock import SystemClock
from tests.fault.falling import FATES
from tests.fault.farm_process import Nursery
from tests.fault.rig import NEVER
from tests.kubernetes.falling import MATCHES, Fall, Fate, Front, Point, proxies, tried, writes
from tests.kubernetes.farmjobs import JOBS, SUCCEEDED, failed, template
from tests.kubernetes.kubelet import Kubelet, kubelet_on
from tests.kubernetes_server import ApiServer
from tests.proxy import Hold

pytestmark = [pytest.mark.xdist_group("kubernetes"), pytest.mark.slow]

MEMBERS = [f"bert-worker-{index}" for index in range(3)]
RETRIED = MEMBERS[1]
ONCE = Counter([*((name, 0) for name in MEMBERS), (RETRIED, 1)])
AT_ONCE = 12
SEED = 1


def tell(name: str, attempt: int) -> dict[str, Any]:
    """Each member ends at once: well, but for the first attempt of one."""
    return failed(137) if (name, attempt) == (RETRIED, 0) else SUCCEEDED


@dataclass(kw_only=True)
class Case(Front):
    """One job."""

    server: ApiServer
    kubelet: Kubelet

    kinds = ("kubejobs",)

    async def begin(self) -> None:
        """The job: all its pods are cleaned away at its end."""
        worker = {"replicas": 3, "restartPolicy": "ExitCode", "template": template()}
        spec = {"replicaSpecs": {"Worker": worker}, "runPolicy": {"cleanPodPolicy": "All"}}
        body = {"apiVersion": "farmd.io/v1", "kind": "FarmJob", "metadata": {"name": "bert"}, "spec": spec}
        await asyncio.to_thread(self.server.ask, "POST", JOBS.path(self.namespace), body)

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


def falls(point: Point, count: int) -> Iterator[Fall]:
    """Where a farm falls, and how."""
    if point == "reads":
        chosen = {1, count, *random.Random(SEED).sample(range(2, count), count // 10)}
        yield from (Fall(point, k, FATES[turn % len(FATES)]) for turn, k in enumerate(sorted(chosen)))
        return
    for k, turn in itertools.product(range(1, count + 1), (0, 2)):  # one kills, the other stops
        yield Fall(point, k, FATES[(k + turn) % len(FATES)])


@pytest.fixture
async def kubelet(api: ApiServer, connect: Any) -> AsyncIterator[Kubelet]:
    async with connect(api) as admin:
        await install(admin, ("farmjobs",), SystemClock())
        async with kubelet_on(admin, tell) as running:
            yield running


@pytest.mark.parametrize("way", ["killed", "stopped"])
@pytest.mark.parametrize("point", MATCHES)
async def test_whoever_takes_a_job_over_at_any_write_comes_to_the_same_end(
    api: ApiServer,
    consul_dev: str,
    nursery: Nursery,
    kubelet: Kubelet,
    tmp_path: Path,
    namespace: str,
    point: Point,
    way: str,
) -> None:
    numbers, gate = itertools.count(), asyncio.Semaphore(AT_ONCE)

    async def one(fall: Fall) -> dict[Point, int]:
        async with gate, proxies(api, consul_dev) as (cluster, consul, front):
            own = await asyncio.to_thread(api.namespace, f"{namespace}-{next(numbers)}")
            case = Case(own, tmp_path, nursery, cluster, consul, front, server=api, kubelet=kubelet)
            return await tried(case, fall)

    calm = await one(Fall("writes", NEVER, "killed, never sent"))
    assert calm["writes"] >= 12, "a job of three pods with a retry has no fewer writes"
    async with asyncio.TaskGroup() as together:
        for fall in falls(point, calm[point]):
            if fall.fate.startswith(way):
                together.create_task(one(fall))
