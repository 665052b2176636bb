"""A restored etcd: whichever watch learns of it, every job's next write is its claim again (R16)."""

from __future__ import annotations

import random
from typing import Any, cast

import pytest

from farmd.kubernetes.jobs.controller import JobControllerConfiguration
from farmd.kubernetes.jobs.kindfile import kinds
from farmd.kubernetes.jobs.podgroups import flavours
from farmd.kubernetes.jobs.unit import Unit
from tests.virtual import VirtualClock


@pytest.mark.parametrize("resource", ["farmjobs", "pods", "services", "podgroups"])
async def test_each_watch_that_is_restored_lets_every_job_fence_anew(resource: str) -> None:
    transport: Any = None
    gang = flavours()["volcano"]
    unit = Unit(
        kinds()["farmjobs"],
        "ml",
        transport,
        lambda: 10.0,
        JobControllerConfiguration(),
        clock=VirtualClock(),
        rng=random.Random(1),
        gang=gang,
    )
    (informer,) = [each for each in unit.informers if each.source.resource.plural == resource]
    store = cast("Any", informer.store)
    assert not store.replace({}, 7, {}, 0)
    assert unit.generation == 0
    assert store.replace({}, 5, {}, 7), "a list of an earlier version"
    assert unit.generation == 1
