"""A Knative Service is rolled in stages by a farm, on a real API server: the thinnest path, and its ends."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from farmd.kubernetes.install import install
from farmd.runtime.clock import SystemClock
from tests.fleet import cluster_on
from tests.kubernetes.knative import playing
from tests.kubernetes.rollouts import Rollouts

pytestmark = pytest.mark.xdist_group("kubernetes")
OLD, NEW = "web-00001", "web-00002"


@pytest.fixture
async def idle(api, namespace, connect, consul_dev) -> AsyncIterator[Rollouts]:
    """Knative in a namespace of the test's own, without a farm."""
    async with connect(api) as admin:
        await install(admin, (), SystemClock(), progressive=True)
        async with playing(admin, namespace) as knative, cluster_on(consul_dev) as cluster:
            found = Rollouts(api, knative, cluster, consul_dev, connect)
            try:
                yield found
            finally:
                await found.close()


@pytest.fixture
async def rollouts(idle: Rollouts) -> Rollouts:
    """The same with one farm."""
    await idle.farm("first")
    return idle


async def test_a_push_goes_in_stages_and_ends_with_the_bounds_that_people_gave(rollouts: Rollouts) -> None:
    await rollouts.play.push("web", least=4)
    await rollouts.until("the first revision", lambda: rollouts.rests(OLD, 4))
    await rollouts.play.push(
        "web", "web:2", least=4, annotations={"rollout.knative.dev/over-consumption-ratio": "25"}
    )
    await rollouts.until("the second revision", lambda: rollouts.rests(NEW, 4))
    assert (await rollouts.audit()).count("progressive.stage") == 3
    assert rollouts.bounds(NEW) == ("4", None)
    await rollouts.until("the first one's bounds", lambda: rollouts.bounds(OLD) == ("4", None))
    assert rollouts.pods(OLD) == 0
    assert not rollouts.play.restarts
