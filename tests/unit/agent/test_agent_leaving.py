"""R39: a leave lasts as long as its manifest says, whatever the store does."""

from __future__ import annotations

import asyncio

import pytest

from farmd.agent.health import Damper
from farmd.agent.leaving import Leaves
from farmd.agent.model import Identity, Record
from farmd.agent.pod import Pod
from farmd.agent.runtimes.runtime import Runtimes
from store.manifests import Manifest, Stop
from store.reality import Exit, Health
from tests.virtual import VirtualClock


@pytest.mark.parametrize(
    ("told", "critical_for", "spent", "seconds"),
    [
        (0.0, 0.0, 0.0, 5.0),
        (None, 0.0, 0.0, 5.0),  # the store is away: the time until it is told is a part of the delay
        (0.0, 0.0, 3.0, 2.0),  # an agent that was started again goes on
        (0.0, 4.0, 0.0, 1.0),  # it fails its check since, so it is no endpoint since
        (0.0, 0.0, 60.0, 0.0),
        (0.0, 0.0, -60.0, 5.0),  # the clock was set back
    ],
)
async def test_r39_a_leave_is_over_when_its_delay_is(
    told: float | None, critical_for: float, spent: float, seconds: float
) -> None:
    clock, woken = VirtualClock(), list[float]()
    record = Record(instance="web", left_at=clock.now() - spent)
    pod = Pod(record, Damper(clock.mono()))
    since = clock.now() - critical_for
    pod.damper.begin(Health("critical" if critical_for else "passing", since))

    async def tell(_: str) -> None:
        await (asyncio.Event().wait() if told is None else clock.sleep(told))

    began = clock.mono()
    leaves = Leaves(
        runtimes=Runtimes(), clock=clock, told=tell, wake=lambda: woken.append(clock.mono() - began)
    )
    leaves.begin(pod, Stop(delay=5.0))
    await clock.advance(20.0)
    assert pod.leave is not None
    assert pod.leave.over
    assert woken == [pytest.approx(seconds, abs=0.01)]


class Hanging:
    """A runtime whose commands never end."""

    name = "process"

    async def check(self, *_: object) -> int:
        await asyncio.Event().wait()
        return 0


@pytest.mark.parametrize("ends", [False, True])
async def test_r39_a_command_that_outlives_its_pod_is_no_failure(ends: bool) -> None:
    clock = VirtualClock()
    identity = Identity(instance="web", manifest="m", start="s", started=0.0)
    pod = Pod(
        Record(instance="web", left_at=clock.now(), reason="no longer wanted"),
        Damper(clock.mono()),
        manifest=Manifest(id="web", command=["x"]),
        identity=identity,
    )

    async def tell(_: str) -> None:
        return

    leaves = Leaves(runtimes=Runtimes(Hanging()), clock=clock, told=tell, wake=lambda: None)  # type: ignore[arg-type]
    leaves.begin(pod, Stop(command=["drain"], command_timeout=10.0))
    await clock.advance(5.0)
    if ends:
        pod.ended(Exit(clock.now(), 0), why="exited", mono=clock.mono())
    await clock.advance(20.0)
    told = "no longer wanted" + ("" if ends else "; stop.command: it did not finish within 10 s")
    assert pod.record.reason == told
