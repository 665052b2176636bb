"""What the worker of a deployment does in one cycle: pure, around ``decide``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from farmd.deploy.decide import decide
from farmd.deploy.decide_types import ServiceStep, Snapshot
from farmd.deploy.fingerprint import fingerprint
from farmd.deploy.operations import CreateVolumeOperation, RemoveContainerOperation
from farmd.deploy.sights import Facts, ServiceFacts
from farmd.runtime.wake import earliest
from farmd.work.model import Blocked, frozen
from store.deployments import Ending, reasons

DRAFT_SECONDS = 60.0
LOOK_AGAIN_SECONDS = 5.0
VOLUMES_AT_ONCE = 20
BY_HAND = "it was rolled back by hand"

Action = Literal["", "begin", "volumes", "steps", "end"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """One cycle. ``steps`` are those with something to do, ``told`` all of them, for the status.

    ``ending``: how it ends, and ``why``; ``failed`` are the places of the pods because of which.
    """

    action: Action = ""
    steps: tuple[ServiceStep, ...] = ()
    told: tuple[ServiceStep, ...] = ()
    volumes: tuple[CreateVolumeOperation, ...] = ()
    ending: Ending = "done"
    why: str = ""
    failed: tuple[str, ...] = ()
    blocked: Blocked | None = None
    after: float | None = None
    ends: bool = False

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write except a status."""
        return not self.action


def next_cycle(reading: Facts) -> Cycle:
    """What is to be done now."""
    record, state = reading.stored.record, reading.state
    if record.draft:
        if reading.idle >= DRAFT_SECONDS:
            return Cycle(action="end", ending="abandoned", why="its submit was never completed")
        return Cycle(after=DRAFT_SECONDS - reading.idle)
    if not state.begun:
        return _beginning(reading)
    if all(sight.over for sight in reading.sights.values()) and not any(_returns(reading)):
        return _ending(reading)
    if reading.planned is not None and reading.planned.volumes and not reading.paused:
        return Cycle(action="volumes", volumes=reading.planned.volumes[:VOLUMES_AT_ONCE])
    return _steps(reading)


def _beginning(reading: Facts) -> Cycle:
    record = reading.stored.record
    if record.ask == "rollback":
        return Cycle(action="end", ending="reverted", why="rolled back before it began")
    if record.ask == "pause":
        return Cycle(blocked=Blocked("paused", "paused", wanted=True))
    if reading.unplanned and record.fingerprint:
        return Cycle(action="end", ending="stale", why=reading.unplanned)
    if reading.unplanned:
        return Cycle(blocked=Blocked("no_plan", reading.unplanned), after=LOOK_AGAIN_SECONDS)
    if (
        record.fingerprint
        and reading.planned is not None
        and fingerprint(reading.planned) != record.fingerprint
    ):
        return Cycle(action="end", ending="stale", why="what is running has changed since it was planned")
    return Cycle(action="begin")


def _ending(reading: Facts) -> Cycle:
    sights = reading.sights.items()
    back = {name: sight.state for name, sight in sights if sight.state is not None and sight.state.back}
    failed = [(name, state.failure) for name, state in back.items()]
    failed += [
        (name, f"taken over by deployment {sight.said.superseded}")
        for name, sight in sights
        if sight.said.superseded
    ]
    return Cycle(
        action="end",
        ending="reverted" if failed else "done",
        why="; ".join(reasons(failed)),
        failed=tuple(state.failed for state in back.values() if state.failed),
    )


def _steps(reading: Facts) -> Cycle:
    assert reading.shot is not None
    steps = tuple(_asked(reading, step) for step in _decided(reading))
    due = tuple(step for step in steps if _does(reading.sights[step.service], step))
    waiting = {name for sight in reading.sights.values() if sight.state is None for name in sight.said.after}
    waits = LOOK_AGAIN_SECONDS if waiting - reading.sights.keys() else None
    return Cycle(
        action="steps" if due else "",
        steps=due,
        told=steps,
        blocked=_blocked(reading),
        after=earliest(reading.after, waits),
    )


def _decided(reading: Facts) -> tuple[ServiceStep, ...]:
    """The step of each service; what people ask for comes before what the pods say."""
    assert reading.shot is not None
    record = reading.stored.record
    if record.ask == "rollback" and (found := (*_turned(reading, BY_HAND), *_returns(reading))):
        return found
    if not record.atomic or reading.paused:
        return decide(reading.shot)
    failed = [name for name, sight in reading.sights.items() if sight.goal.back]
    if failed and (found := tuple(_turned(reading, f"{failed[0]} failed, and all go together"))):
        return found
    return _together(reading.shot)


def _turned(reading: Facts, why: str) -> Iterator[ServiceStep]:
    """All services that go forward turn back."""
    for sight in reading.sights.values():
        if not (sight.over or sight.goal.back):
            yield ServiceStep(
                service=sight.said.name, turn="skip" if sight.state is None else "back", reason=why
            )


def _returns(reading: Facts) -> Iterator[ServiceStep]:
    """Services that were released already and are to become what they were, because a person said so."""
    if reading.stored.record.ask != "rollback":
        return
    for sight in reading.sights.values():
        released = sight.over and sight.owner is not None and not sight.said.superseded
        if released and not sight.goal.back:
            yield ServiceStep(service=sight.said.name, turn="back", reason=BY_HAND)


def _together(shot: Snapshot) -> tuple[ServiceStep, ...]:
    """The steps where services are released all at once: those that could be wait for the others."""
    ready: list[ServiceStep] = []
    while True:
        steps = decide(shot)
        found = {step.service for step in steps if step.turn == "release"}
        ready += [step for step in steps if step.turn == "release"]
        if not found:
            break
        goals = [replace(each, released=each.released or each.service.name in found) for each in shot.goals]
        shot = replace(shot, goals=goals)
    if all(goal.released for goal in shot.goals):
        return tuple(ready)
    waiting = [replace(step, turn="", reason="waits for the other services") for step in ready]
    return (*steps, *waiting)


def _asked(reading: Facts, step: ServiceStep) -> ServiceStep:
    sight = reading.sights[step.service]
    if sight.leftover and sight.state is not None and not reading.paused:
        gone = tuple(RemoveContainerOperation(sight.said.service, place) for place in sight.leftover)
        return ServiceStep(service=step.service, operations=gone, repairs=step.repairs)
    if sight.busy and sight.state is not None:
        return replace(step, operations=(), turn="", reason=sight.busy)
    return step


def _does(sight: ServiceFacts, step: ServiceStep) -> bool:
    """Whether a step changes anything; before its service is taken only what leads to that does."""
    if sight.state is None:
        return bool(step.operations) or step.turn in ("skip", "release")
    return bool(step.operations or step.repairs or step.turn)


def _blocked(reading: Facts) -> Blocked | None:
    if reading.state.halted and reading.paused and reading.stored.record.ask != "pause":
        return Blocked("halted", reading.state.halted)
    if reading.paused:
        return Blocked("paused", "paused", wanted=True)
    if reading.frozen is not None:
        return frozen(reading.frozen)
    busy = [sight.busy for sight in reading.sights.values() if sight.busy]
    return Blocked("busy", busy[0]) if busy else None
