"""Rollouts of a Knative Service as the API server saw them: K1 to K10 on every version of every object."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from farmd.kubernetes.errors import Conflict
from farmd.kubernetes.install import documents
from farmd.kubernetes.knative.objects import AUTOSCALERS, REVISIONS, ROUTES, SERVICES, UNREACHABLE
from farmd.kubernetes.transport import ApiRequest, KubernetesTransport
from farmd.runtime.clock import SystemClock
from store import codec
from store.failsafe import Failsafe
from tests.fleet import CLOCK, in_time
from tests.kubernetes.recording import pods_of, shares_of
from tests.kubernetes.rollout_rules import k7_mistakes, mistakes
from tests.kubernetes.rollouts import Rollouts
from tests.kubernetes.test_rollouts import Late

pytestmark = pytest.mark.xdist_group("kubernetes rollouts")
OLD, NEW, THIRD = "web-00001", "web-00002", "web-00003"
RATIO = "rollout.knative.dev/over-consumption-ratio"
STRATEGY = "rollout.knative.dev/progressive-rollout-strategy"
DEADLINE = "rollout.farmd.io/progress-deadline"
STAGED = "rollout.knative.dev/progressive-rollout-enabled"


async def pushed(rollouts: Rollouts, number: int, pods: int, ratio: int = 10, **more: str) -> None:
    """Push a revision of so many pods."""
    annotations = {RATIO: str(ratio), **more}
    await rollouts.play.push("web", f"web:{number}", least=pods, most=pods, annotations=annotations)


async def rolled(rollouts: Rollouts, old: int, new: int, ratio: int, **more: str) -> None:
    """Roll a service of so many pods to a revision of as many."""
    await pushed(rollouts, 1, old)
    await rollouts.until("the first revision", lambda: rollouts.rests(OLD, old))
    await pushed(rollouts, 2, new, ratio, **more)
    await rollouts.until("the second revision", lambda: rollouts.rests(NEW, new))
    await rollouts.until("no pods of the first", lambda: not rollouts.play.pods(OLD))


def kept(rollouts: Rollouts) -> None:
    """What must hold of every history: K1 to K6 of each version, and no restart (K10)."""
    assert not mistakes(rollouts.recorded)
    assert not rollouts.play.restarts


PACES = [
    (1, 1, 10, "nil/0→100/1", 2),
    (3, 3, 10, "66/2→34/1; 33/1→67/2; nil/0→100/3", 4),
    (8, 8, 30, "75/6→25/2; 50/4→50/4; 25/2→75/6; nil/0→100/8", 10),
    (4, 6, 30, "75/3→25/1; 50/2→50/2; 25/1→75/3; nil/0→100/6", 7),
    (8, 10, 100, "nil/0→100/10", 18),
]


@pytest.mark.parametrize(("old", "new", "ratio", "stages", "peak"), PACES)
async def test_the_stages_are_those_of_the_extension_and_no_version_breaks_a_rule(
    rollouts: Rollouts, old: int, new: int, ratio: int, stages: str, peak: int
) -> None:
    rollouts.play.digest = 1.0  # the hold races it: what follows holds where the hold comes first
    await rolled(rollouts, old, new, ratio)
    assert "; ".join(rollouts.recorded.stages("web")[1:]) == stages
    percents = [each.split("→")[0].split("/")[0] for each in stages.split("; ")]
    shares = [{OLD: 100}, *({OLD: int(each)} for each in percents if each != "nil"), {NEW: 100}]
    seen = [
        {name: share for name, share in each.items() if share} for each in rollouts.recorded.shares("web")
    ]
    assert [{OLD: each[OLD]} if OLD in each else each for each in unrepeated(seen)] == shares
    assert rollouts.recorded.peak() <= peak
    kept(rollouts)


def unrepeated(found: list[Any]) -> list[Any]:
    """Without what equals the one before."""
    return [each for number, each in enumerate(found) if each not in found[number - 1 : number]]


class Counted:
    """Counts what a farm's transport writes."""

    def __init__(self, transport: KubernetesTransport) -> None:
        self.writes: list[ApiRequest] = []
        self._send = transport.send
        transport.send = self.send  # type: ignore[method-assign]

    async def send(self, request: ApiRequest, timeout: float = 10.0) -> bytes:
        """In place of the transport's."""
        if request.write:
            self.writes.append(request)
        return await self._send(request, timeout)


async def test_k5_at_rest_nothing_is_written_whatever_else_changes(idle: Rollouts) -> None:
    sent = await idle.changed("first", Counted)
    await rolled(idle, 2, 2, 50)
    final = [("2", "2")] * 2
    await idle.until("final bounds", lambda: [idle.bounds(OLD), idle.bounds(NEW)] == final)
    await idle.until("rest", lambda: idle.rests(NEW, 2))
    written, audits = len(sent.writes), len(await idle.audit())
    for number in range(10):
        note = {"metadata": {"annotations": {"example.com/note": str(number)}}}
        idle.server.patch(SERVICES.path(idle.namespace, "web"), note)
    await idle.play.evict(NEW)
    await idle.until("another pod", lambda: idle.pods(NEW) == 2)
    idle.say("paused")
    await idle.told("paused; farmctl rollout resume ksvc")
    assert sent.writes[written:] == []
    assert len(await idle.audit()) == audits


async def test_k7_frozen_no_bounds_fall_and_no_traffic_moves_whoever_owns_it(idle: Rollouts) -> None:
    idle.settings["thaw_after"] = 3600.0
    await idle.farm("first")
    await pushed(idle, 1, 4)
    await idle.until("the first revision", lambda: idle.rests(OLD, 4))
    await pushed(idle, 2, 4, 25)
    await idle.until("a stage", lambda: idle.traffic().get(NEW) == 25)
    key = idle.cluster.keys.failsafe("progressive")
    freeze = Failsafe(evidence="a test doubts it", by="test", since=CLOCK.now())
    await idle.cluster.client.put(key, codec.encode(freeze))
    await idle.told("frozen: a test doubts it")
    began = idle.recorded.last()
    await idle.play.evict(OLD)
    await idle.stop("first")
    await idle.farm("second")
    await pushed(idle, 3, 4, 25)
    await idle.until("a hold", lambda: (1, 4) in idle.recorded.bounds(THIRD))
    ended = idle.recorded.last()
    await idle.cluster.client.delete(key)
    await idle.until("the third revision", lambda: idle.rests(THIRD, 4))
    assert k7_mistakes(idle.recorded, began, ended) == []
    assert k7_mistakes(idle.recorded, ended, idle.recorded.last()) != []
    kept(idle)


@pytest.mark.parametrize(("version", "bearer"), [("1.20.3", AUTOSCALERS), ("1.21.0", REVISIONS)])
async def test_bounds_of_stages_lie_where_no_pod_restarts(idle: Rollouts, version: str, bearer: Any) -> None:
    await idle.play.upgrade(version)
    await idle.farm("first")
    await rolled(idle, 2, 2, 50)
    assert idle.recorded.bounds(OLD, bearer) == [(2, 2), (1, 1), (0, 1), (2, 2)]
    assert idle.recorded.bounds(NEW, bearer)[-1] == (2, 2)
    kept(idle)


@pytest.mark.parametrize(("before", "after"), [("1.20.3", "1.21.0"), ("1.21.0", "1.20.3")])
async def test_another_version_of_knative_in_mid_stage_loses_no_bound_and_restarts_no_pod(
    idle: Rollouts, before: str, after: str
) -> None:
    await idle.play.upgrade(before)
    await idle.farm("first")
    await pushed(idle, 1, 4)
    await idle.until("the first revision", lambda: idle.rests(OLD, 4))
    await pushed(idle, 2, 4, 25)
    await idle.until("the first stage", lambda: idle.traffic().get(NEW) == 25)
    await idle.play.upgrade(after)
    await idle.until("the second revision", lambda: idle.rests(NEW, 4))
    await idle.until("its pods alone", lambda: not idle.play.pods(OLD))
    bearer = REVISIONS if after == "1.21.0" else AUTOSCALERS
    final = [(4, 4), (4, 4)]
    await idle.until(
        "bounds", lambda: [idle.recorded.bounds(name, bearer)[-1] for name in (OLD, NEW)] == final
    )
    kept(idle)


async def test_a_farm_rolls_with_the_rights_of_its_cluster_role_alone(idle: Rollouts) -> None:
    (role,) = [
        each for each in documents((), progressive=True) if each["metadata"]["name"] == "farmd-progressive"
    ]
    idle.server.grant("farm", *role["rules"])
    await idle.farm("first", "farm")
    await rolled(idle, 2, 2, 50)
    idle.say("revert")
    await idle.until("the first revision again", lambda: idle.rests(OLD, 2))
    kept(idle)


async def test_resourceutil_takes_no_more_pods_than_there_were(rollouts: Rollouts) -> None:
    await rolled(rollouts, 4, 4, 25, **{STRATEGY: "resourceutil"})
    kept(rollouts)


async def test_without_stages_a_revision_has_all_of_its_pods_before_it_gets_traffic(
    rollouts: Rollouts,
) -> None:
    await rolled(rollouts, 4, 4, 10, **{STAGED: "false"})
    began = rollouts.recorded.last()
    rollouts.say("revert")
    await rollouts.until("the first revision again", lambda: rollouts.rests(OLD, 4))
    assert rollouts.recorded.stages("web") == ["100/nil"]
    history = (each for each in rollouts.recorded.history() if each.at > began)
    served = next(each for each in history if shares_of(each.world.get((ROUTES, "web"))).get(OLD))
    assert len(pods_of(served.world, OLD)) == 4
    kept(rollouts)


async def test_the_class_hpa_keeps_one_pod_of_the_old_revision_and_the_rollout_ends(
    rollouts: Rollouts,
) -> None:
    hpa = {"autoscaling.knative.dev/class": "hpa.autoscaling.knative.dev"}
    await pushed(rollouts, 1, 2, 50, **hpa)
    await rollouts.until("the first revision", lambda: rollouts.rests(OLD, 2))
    await pushed(rollouts, 2, 2, 50, **hpa)
    await rollouts.until("the second revision", lambda: rollouts.rests(NEW, 2))
    assert rollouts.bounds(OLD) == rollouts.bounds(NEW) == ("2", "2")
    assert rollouts.pods(OLD) == 1
    kept(rollouts)


LATE = [(b"traffic", "/services/"), (b"scale", f"/revisions/{OLD}")]


@pytest.mark.parametrize(("word", "path"), LATE, ids=["traffic", "bounds"])
async def test_what_a_farm_still_sends_that_was_frozen_right_before_it_breaks_no_rule(
    idle: Rollouts, word: bytes, path: str
) -> None:
    late = await idle.changed("first", Late)
    await pushed(idle, 1, 4)
    await idle.until("the first revision", lambda: idle.rests(OLD, 4))
    late.hold(word, path)
    await pushed(idle, 2, 4, 25)
    await in_time(late.held.wait())
    await idle.stop("first")
    await idle.farm("second")
    await idle.until("two stages more", lambda: idle.traffic().get(NEW, 0) >= 50)
    with pytest.raises(Conflict):
        await late.send_now()
    await idle.until("the second revision", lambda: idle.rests(NEW, 4))
    kept(idle)


def health(rollouts: Rollouts, name: str) -> str:
    """The conditions of a revision, as text; empty while there is none."""
    found = rollouts.play.stores[REVISIONS].get(rollouts.namespace, name)
    return str(found.status) if found is not None else ""


class Skewed(SystemClock):
    """A machine's time that is wrong."""

    def __init__(self, ahead: float) -> None:
        self._ahead = ahead

    def now(self) -> float:
        """Seconds since the epoch."""
        return super().now() + self._ahead


async def skewed(rollouts: Rollouts, name: str, ahead: float) -> None:
    """One more farm, whose machine's time is wrong."""
    clock = rollouts.settings["clock"] = Skewed(ahead)
    await rollouts.changed(name, lambda transport: setattr(transport, "_clock", clock))


@pytest.mark.parametrize("ahead", [90.0, -90.0])
async def test_the_time_of_a_farm_s_machine_ends_no_stage(idle: Rollouts, ahead: float) -> None:
    await skewed(idle, "first", ahead)
    await pushed(idle, 1, 4)
    await idle.until("the first revision", lambda: idle.rests(OLD, 4))
    idle.play.broken.add(NEW)
    await pushed(idle, 2, 4, 25, **{DEADLINE: "60"})
    await idle.until("a newcomer that breaks", lambda: "ExitCode1" in health(idle, NEW))
    await idle.stop("first")
    await skewed(idle, "second", -ahead)
    await idle.until("another owner", lambda: bool(idle.running["second"].owned))
    note = {"metadata": {"annotations": {"example.com/note": "look"}}}
    idle.server.patch(SERVICES.path(idle.namespace, "web"), note)
    await pushed(idle, 3, 4, 25, **{DEADLINE: "60"})
    await idle.until("the third revision", lambda: idle.rests(THIRD, 4))
    assert not {"progressive.back", "progressive.halt"} & set(await idle.audit())
    kept(idle)


async def test_a_third_revision_replaces_the_second_first(rollouts: Rollouts) -> None:
    await pushed(rollouts, 1, 5)
    await rollouts.until("the first revision", lambda: rollouts.rests(OLD, 5))
    await pushed(rollouts, 2, 5, 20)
    await rollouts.until("two stages", lambda: rollouts.traffic().get(NEW) == 40)
    await pushed(rollouts, 3, 5, 20)
    await rollouts.until("the third revision", lambda: rollouts.rests(THIRD, 5))
    await rollouts.until(
        "its pods alone", lambda: not rollouts.play.pods(OLD) and not rollouts.play.pods(NEW)
    )
    kept(rollouts)


async def test_a_revision_that_never_gets_ready_is_passed_over_with_one_pod_at_most(
    rollouts: Rollouts,
) -> None:
    fourth = "web-00004"
    await pushed(rollouts, 1, 4)
    await rollouts.until("the first revision", lambda: rollouts.rests(OLD, 4))
    await pushed(rollouts, 2, 4, 25)
    await rollouts.until("a stage", lambda: rollouts.traffic().get(NEW) == 25)
    rollouts.play.broken.add(THIRD)
    await pushed(rollouts, 3, 4, 25)
    await rollouts.until("a pod of the third", lambda: rollouts.play.pods(THIRD))
    await pushed(rollouts, 4, 4, 25)
    await rollouts.until("the fourth revision", lambda: rollouts.rests(fourth, 4))
    assert rollouts.recorded.bounds(THIRD) in ([(4, 4), (1, 4), (0, 1)], [(4, 4), (1, 4), (1, 4), (0, 1)])
    assert len(rollouts.play.pods(THIRD)) <= 1
    kept(rollouts)


async def test_a_newcomer_that_a_route_leaves_before_it_is_ready_gets_all_of_its_pods(idle: Rollouts) -> None:
    await idle.farm("first")
    await pushed(idle, 1, 3)
    await idle.until("the first revision", lambda: idle.rests(OLD, 3))
    await idle.stop("first")
    idle.play.room = 3
    await idle.play.pin("web", {"latestRevision": True, "percent": 100}, manager="kubectl")
    await pushed(idle, 2, 3, 100)
    await idle.until("pods without a place", lambda: len(idle.play.pods(NEW)) == 3)
    await idle.farm("second")
    await idle.until("bounds of its stage", lambda: idle.bounds(NEW) == ("3", "3"))
    scale = idle.play.stores[AUTOSCALERS]
    await idle.until(
        "an autoscaler that no route reaches",
        lambda: scale.get(idle.namespace, NEW).spec["reachability"] == UNREACHABLE,
    )
    await idle.until("one pod", lambda: len(idle.play.pods(NEW)) == 1)
    idle.play.room = 100
    idle.play.changed.set()
    await idle.until("the second revision", lambda: idle.rests(NEW, 3))
    kept(idle)


async def test_a_service_without_bounds_goes_by_its_traffic(rollouts: Rollouts) -> None:
    rollouts.play.load["web"] = 4
    await rollouts.play.push("web", annotations={RATIO: "25"})
    await rollouts.until("the first revision", lambda: rollouts.rests(OLD, 4))
    await rollouts.play.push("web", "web:2", annotations={RATIO: "25"})
    await rollouts.until("the second revision", lambda: rollouts.rests(NEW, 4))
    shares = [stage.split("/")[0] for stage in rollouts.recorded.stages("web")[1:]]
    assert shares == ["75", "50", "25", "nil"]
    kept(rollouts)


SEED = int(os.environ.get("FARMD_ROLLOUT_SEED", "1"))


@pytest.mark.parametrize("seed", range(SEED, SEED + 2))
async def test_random_pushes_pins_and_losses_of_farms_break_no_rule(idle: Rollouts, seed: int) -> None:
    """``FARMD_ROLLOUT_SEED`` chooses other ones; the seed stands in the test's name."""
    rng, farms, pushes = random.Random(seed), itertools.count(2), 1
    idle.play.lag = 0.2
    await idle.farm("farm-1")
    await pushed(idle, 1, 3)
    await idle.until("the first revision", lambda: idle.rests(OLD, 3))
    for _ in range(8):
        shares = idle.traffic()
        act = rng.choice(["push", "pin", "latest", "fall", "evict"])
        if act == "push":
            pushes += 1
            await pushed(idle, pushes, 3)
        elif act == "pin":
            name = rng.choice(sorted(shares))
            await idle.play.pin("web", {"revisionName": name, "percent": 100, "latestRevision": False})
        elif act == "latest":
            await idle.play.pin("web", {"latestRevision": True, "percent": 100})
        elif act == "fall":
            await idle.stop(next(iter(idle.running)))
            await idle.farm(f"farm-{next(farms)}")
        elif serving := [name for name in shares if idle.play.ready(name)]:
            with suppress(LookupError):  # its last pod ends already
                await idle.play.evict(rng.choice(serving))
        for _ in range(rng.randrange(3)):
            await idle.until("another version", changed(idle))
    pushes += 1
    await idle.play.pin("web", {"latestRevision": True, "percent": 100}, manager="kubectl")
    await pushed(idle, pushes, 3)
    image = f"web:{pushes}"
    await idle.until("the last revision", lambda: any(idle.rests(name, 3) for name in made_of(idle, image)))
    kept(idle)


def made_of(rollouts: Rollouts, image: str) -> list[str]:
    """The revisions of an image: of pushes at once Knative makes one."""
    found = rollouts.play.stores[REVISIONS]
    return [each.name for each in found if each.spec["containers"] == [{"image": image}]]


def changed(rollouts: Rollouts) -> Callable[[], bool]:
    """Whether anything changed since, or the rollout is over."""
    before = len(rollouts.recorded.versions)
    return lambda: len(rollouts.recorded.versions) > before or rollouts.ready()
