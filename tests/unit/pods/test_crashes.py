"""A crash loop is one incident: it begins once, and ends when the pods stay up, wherever they ran."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from alerting.alert import Alert
from farmd.farm.alerts import Incidents
from farmd.pods.crashes import Crashes, tell_of_crashes
from farmd.pods.state import PodState
from store.pods import Place
from store.reality import Glance
from tests.fleet import Inbox
from tests.rc_worlds import NEWER, SHA, pod

KEY = "rc_crashes_00aa"
SETTLES = 10.0
LOOK = 5.0
HOUR = 3600.0

Pods = dict[Place, PodState]


def state(phase: str, restarts: int, *, at: float, since: float = 0.0) -> PodState:
    """A pod that came to this phase ``at`` seconds ago."""
    made = pod(healthy=phase == "running", phase=phase, state="unknown", since=since, settles_in=SETTLES - at)
    assert isinstance(made.reality, Glance)
    return replace(made, reality=replace(made.reality, restarts=restarts))


@dataclass
class Owner:
    """The worker of one owner, whose pods are looked at every few seconds."""

    manifest: str = SHA
    inherited: tuple[str, ...] = ()
    now: float = 10_000.0
    inbox: Inbox = field(default_factory=Inbox)

    def __post_init__(self) -> None:
        self.incidents = Incidents(self.inbox, self.inherited)
        self.crashes = Crashes()

    async def look(self, pods: Pods) -> float | None:
        async def tell() -> None:
            await self.incidents.tell(Alert(summary=f"x {self.crashes}", incident_key=KEY))

        self.crashes.look(self.manifest, pods, self.now, told=KEY in self.incidents)
        return await tell_of_crashes(self.incidents, KEY, tell, self.crashes, pods, SETTLES, self.now)

    async def watch(self, worlds: Iterator[Pods], seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            await self.look(next(worlds))
            self.now += LOOK


def looping(owner: Owner, runs: float, pause: float, *, nodes: int = 1) -> Iterator[Pods]:
    """A pod that runs for so long, ends, and starts after a pause; each end may move it to another node."""
    start, node, restarts, first = owner.now, 0, 0, 0.0
    while True:
        for phase, length in (("starting", LOOK), ("running", runs), ("backoff", pause)):
            began = owner.now
            if phase == "backoff":
                first = began if runs >= 60.0 or not first else first
            while owner.now < began + length:
                since = first if phase == "backoff" else 0.0
                made = state(phase, restarts, at=owner.now - began, since=since)
                yield {(f"n{node}", "web"): made, ("other", "web"): state("running", 0, at=owner.now - start)}
        restarts += 1
        if nodes > 1:
            node, restarts, first = (node + 1) % nodes, 0, 0.0


def well(owner: Owner) -> Iterator[Pods]:
    began = owner.now
    while True:
        yield {("n0", "web"): state("running", 0, at=owner.now - began)}


@pytest.mark.parametrize(
    ("runs", "pause", "nodes"),
    [(25.0, 60.0, 1), (5.0, 10.0, 1), (90.0, LOOK, 1), (600.0, LOOK, 1), (300.0, 60.0, 3), (900.0, LOOK, 5)],
)
async def test_a_crash_loop_is_one_incident_however_long_a_pod_runs_and_wherever(
    runs: float, pause: float, nodes: int
) -> None:
    owner = Owner()
    await owner.watch(looping(owner, runs, pause, nodes=nodes), 2 * HOUR)
    assert (len(owner.inbox.fired), owner.inbox.resolved) == (1, [])
    await owner.watch(well(owner), HOUR)
    assert (owner.inbox.resolved, owner.inbox.firing) == ([KEY], {})


async def test_pods_that_end_seldom_are_no_crash_loop() -> None:
    owner = Owner()
    await owner.watch(looping(owner, 2000.0, LOOK), 4 * HOUR)
    assert owner.inbox.fired == []


async def test_many_pods_that_end_once_each_are_no_crash_loop() -> None:
    owner = Owner()
    for ended in range(20):
        pods = {(f"n{at}", "web"): state("running", int(at < ended), at=9.0) for at in range(20)}
        await owner.look(pods)
        owner.now += 30
    assert owner.inbox.fired == []


async def test_a_new_version_is_a_new_try() -> None:
    owner = Owner()
    await owner.watch(looping(owner, 600.0, LOOK), HOUR)
    assert list(owner.inbox.firing) == [KEY]
    owner.manifest = NEWER
    await owner.watch(well(owner), 60.0 + 2 * LOOK)
    assert owner.inbox.firing == {}


async def test_the_next_farm_does_not_end_what_it_has_not_watched_long_enough() -> None:
    owner = Owner(inherited=(KEY,))
    await owner.watch(looping(owner, 240.0, LOOK), 2 * HOUR)
    assert owner.inbox.resolved == []


async def test_an_agent_that_was_silent_tells_of_one_end_at_a_time() -> None:
    owner = Owner()
    await owner.look({("n0", "web"): pod(absent=True, reality=False)})
    await owner.look({("n0", "web"): state("running", 50, at=1.0)})
    assert owner.inbox.fired == []


async def test_time_alone_begins_and_ends_it() -> None:
    owner = Owner()
    up, failing = state("running", 0, at=900.0), state("backoff", 1, at=3.0, since=owner.now - 20)
    assert await owner.look({("n0", "web"): up}) is None
    assert await owner.look({("n0", "web"): up, ("n1", "web"): failing}) == 40
    owner.now += 40
    assert await owner.look({("n0", "web"): up, ("n1", "web"): failing}) is None
    assert list(owner.inbox.firing) == [KEY]
    assert await owner.look({("n0", "web"): up, ("n1", "web"): state("running", 1, at=5.0)}) == 55
    assert await owner.look({("n0", "web"): up, ("n1", "web"): state("running", 1, at=60.0)}) is None
    assert (owner.inbox.firing, owner.inbox.resolved) == ({}, [KEY])
