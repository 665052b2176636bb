"""Which jobs of a cluster are work for farms, when one that is missing is proven to be gone, and when all are
looked at.
"""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from farmd.kubernetes.base import KubernetesKind
from farmd.kubernetes.jobs.items import JobItems
from farmd.kubernetes.jobs.unit import JobObject
from farmd.kubernetes.store import ObjectStore
from farmd.runtime.wake import Wake, wait
from tests.virtual import VirtualClock


def unit(**fields: Any) -> Any:
    return SimpleNamespace(jobs=ObjectStore(), groups=None, synced=True, **fields)


def job(**policy: Any) -> JobObject:
    meta = {"namespace": "ml", "name": "bert", "uid": "u1", "resourceVersion": "7"}
    return msgspec.convert(
        {"metadata": meta, "spec": msgspec.Raw(msgspec.json.encode({"runPolicy": policy}))}, JobObject
    )


@pytest.mark.parametrize(
    ("manager", "work"), [("", True), ("farmd.io/farmd", True), ("kueue.x-k8s.io/multikueue", False)]
)
def test_a_job_that_another_controller_manages_is_no_item(manager: str, work: bool) -> None:
    of = unit()
    items = JobItems([of], ())
    of.jobs.seen(job(managedBy=manager))
    assert ("u1" in items.items()) is work


def test_a_doubt_keeps_no_lock_of_a_job_whose_deletion_was_told() -> None:
    of = unit(informers=[SimpleNamespace(doubt="404")])
    assert JobItems([of], ()).trusted()
    of.synced = False
    assert not JobItems([of], ()).trusted()


async def test_each_worker_is_woken_now_and_then_whatever_events_told():
    clock, wakes = VirtualClock(), {"u1": Wake(), "u2": Wake()}
    context = SimpleNamespace(clock=clock, rng=random.Random(1))
    kind: Any = SimpleNamespace(context=context, wakes=wakes, resync=60.0)
    sweeping = asyncio.create_task(KubernetesKind._sweep(kind))
    await clock.advance(0.9 * 60 - 1)
    woken = [asyncio.create_task(wait(each, clock, None)) for each in wakes.values()]
    await clock.settle()
    assert not any(each.done() for each in woken)
    await clock.advance(0.2 * 60 + 2)
    assert all(each.done() for each in woken)
    sweeping.cancel()
