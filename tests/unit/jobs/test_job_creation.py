"""Members in Kubernetes are created 1, 2, 4 … at once, and none after one that was refused."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from farmd.jobs.facts import Plan, Slot, Snapshot
from farmd.kubernetes.jobs import facts, resource
from farmd.kubernetes.jobs.kindfile import kinds
from farmd.kubernetes.jobs.protocols import ApiFailed
from farmd.kubernetes.objects import KubePod
from tests.unit.jobs.kubernetes import Recorder, TestKind, controller
from tests.unit.jobs.worlds import KUBERNETES

RAW = {
    "metadata": {"name": "bert", "namespace": "ml", "uid": "9c"},
    "spec": {
        "replicaSpecs": {
            "Worker": {"replicas": 100, "template": {"spec": {"containers": [{"name": "main"}]}}}
        }
    },
}


class Slow(Recorder):
    """An API server that answers once all that is sent at a time has arrived; ``arrived`` counts it."""

    def __init__(self) -> None:
        super().__init__()
        self.arrived: list[int] = []

    async def create_pod(self, namespace: str, body: Mapping[str, Any]) -> KubePod:
        self.created.append((namespace, body))
        await asyncio.sleep(0)
        if len(self.created) not in self.arrived:
            self.arrived.append(len(self.created))
        self._fail()
        return msgspec.convert(body, KubePod)


async def create(api: Slow) -> None:
    """Create a hundred members."""
    found = resource.read(kinds()["farmjobs"], RAW)
    unit: Any = SimpleNamespace(
        engine=controller(TestKind(), api), groups=None, pod_objects=None, init_image=""
    )
    reading: Any = SimpleNamespace(
        unit=unit, job=found, resource=found, snapshot=Snapshot(job=found.job, traits=KUBERNETES)
    )
    plan = Plan(create=tuple(Slot("Worker", index) for index in range(100)))
    await facts.create(reading, plan)


async def test_as_many_again_are_created_once_the_former_ones_were_accepted() -> None:
    api = Slow()
    await create(api)
    assert api.arrived == [1, 3, 7, 15, 31, 63, 100]


async def test_a_quota_that_is_full_costs_one_request_a_try() -> None:
    api = Slow()
    api.failure = ApiFailed("exceeded quota", status=403, reason="Forbidden")
    for tried in (1, 2):
        with pytest.raises(ApiFailed, match="exceeded quota"):
            await create(api)
        assert len(api.created) == tried
