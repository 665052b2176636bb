"""What people are told of a rollout: its status, audit records and alerts: pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from alerting.alert import Urgency
from farmd.farm.alerts import Incidents
from farmd.rollout import progress
from farmd.rollout.facts import Plan, Side, Snapshot, Turn
from store.ports import Clock
from store.rcs import failure_alert
from store.rollouts import Ending, GateStatus, Rollout, RolloutStatus, SideStatus

# What people are alerted of while a rollout lasts, under keys that bear its controller's name.
#
# ``rollout_<name>``: the version failed. ``rollout_stuck_<name>``: pods are missing, or the way back stands
# still. ``rollout_waits_<name>``: only people can go on, for an hour now. All follow from the durable
# state, so a farm that takes the rollout over tells of them, too.

WAITS_SECONDS = 3600.0
# A pod that restarts is out for a while.
LOW_SECONDS = 30.0
_WAITING = frozenset({"paused", "unapproved", "no_room", "locked", "disabled", "foreign"})


def failure(shot: Snapshot) -> str:
    """Why the version failed; empty: it did not, or a person decided what becomes of it."""
    state = shot.state
    if state is None or shot.rollout.wish or not (state.back or state.fault):
        return ""
    return state.cause


def stuck(shot: Snapshot) -> str:
    """Why people must look at once; empty: they need not."""
    state, floor = shot.state, min(progress.floor(shot), shot.rollout.started_from)
    if state is None or state.phase != "halted":
        return ""
    if state.back and state.fault:
        return f"the way back makes no progress: {state.cause}"
    if (available := _available(shot)) < floor:
        return f"it is halted ({state.cause}) and {available} pods are available, expected {floor} or more"
    return ""


def goes_on(shot: Snapshot) -> bool:
    """Whether it moves or rests with enough pods."""
    halted = shot.state is not None and shot.state.phase == "halted"
    return not halted and _available(shot) >= min(progress.floor(shot), shot.rollout.started_from)


def waiting_since(shot: Snapshot) -> float:
    """Since when the rollout has waited for people, from its record and its state.

    While a stage bakes, a rollout waits for people only if it is paused.
    """
    state, rollout = shot.state, shot.rollout
    if rollout.paused and rollout.paused_at:
        return rollout.paused_at
    if state is None:
        return rollout.at
    if state.phase == "baking":
        return max(state.since, state.reached + progress.goal(shot).bake)
    return (
        state.since if state.phase == "halted" else progress.progressed(dataclasses.replace(shot, risen=0.0))
    )


def _available(shot: Snapshot) -> int:
    return sum(max(side.available, side.serving) for side in (shot.old, shot.new) if side is not None)


def _stuck_alert(rollout: Rollout) -> str:
    return f"rollout_stuck_{rollout.name}"


class RolloutAlerts:
    """The alerts of one rollout under one claim."""

    def __init__(self, incidents: Incidents, clock: Clock, farm: str) -> None:
        self._incidents, self._clock, self._farm = incidents, clock, farm
        self._low: float | None = None

    async def tell(self, shot: Snapshot, plan: Plan) -> float | None:
        """Fire and end what is due; the seconds until another alert is."""
        rollout, now = shot.rollout, self._clock.now()
        if why := failure(shot):
            await self.failed(rollout, why)
        else:
            await self._incidents.end(failure_alert(rollout.name))
        due = [await self._tell_of_stuck(shot, now), await self._tell_of_wait(shot, plan, now)]
        return min((each for each in due if each is not None), default=None)

    async def _tell_of_stuck(self, shot: Snapshot, now: float) -> float | None:
        key, why = _stuck_alert(shot.rollout), stuck(shot)
        if not why:
            self._low = None
            if goes_on(shot):
                await self._incidents.end(key, "high")
            return None
        self._low = now if self._low is None else self._low
        if (left := self._low + LOW_SECONDS - now) > 0:
            return left
        await self._tell(shot.rollout, key, why, "high")
        return None

    async def _tell_of_wait(self, shot: Snapshot, plan: Plan, now: float) -> float | None:
        key = f"rollout_waits_{shot.rollout.name}"
        blocked = plan.blocked if plan.blocked is not None and plan.blocked.code in _WAITING else None
        if blocked is None:
            await self._incidents.end(key)
            return None
        if (left := waiting_since(shot) + WAITS_SECONDS - now) > 0:
            return left
        await self._tell(shot.rollout, key, f"waits for an hour: {blocked.text}")
        return None

    def left_open(
        self, rollout: Rollout, outcome: Ending, before: Sequence[Ending], old: str
    ) -> dict[str, str]:
        """The alerts that are over with this end, by key, with their urgency; ``before`` is how the rollouts
        of this controller ended until now, the last one first; ``old`` is the old controller's name.

        The alert of a version that failed outlives its rollout, and is over once another one is done.
        """
        failure, high = failure_alert(rollout.name), _stuck_alert(rollout)
        over = set(self._incidents.open())
        if outcome == "reverted" and not rollout.wish and failure_alert(old) == failure:
            over.discard(failure)
        elif outcome == "done" and "reverted" in before[:1]:
            over.add(failure)
        return {key: "high" if key == high else "low" for key in sorted(over)}

    async def failed(self, rollout: Rollout, why: str) -> None:
        """Report a version that failed."""
        await self._tell(rollout, failure_alert(rollout.name), why)

    async def _tell(self, rollout: Rollout, key: str, text: str, urgency: Urgency = "low") -> None:
        summary = f"rollout {rollout.name} to {rollout.to_manifest[:12]}: {text}"
        about = {"rollout_id": rollout.id, "from": rollout.from_manifest, "to": rollout.to_manifest}
        await self._incidents.say(key, summary, {**about, "farm": self._farm}, urgency)


# What people are told of a rollout: its status, and the words of its audit records: pure.


def status(shot: Snapshot, plan: Plan, farm: str, since: float) -> RolloutStatus:
    """The phase, both sides in numbers, and what it waits for. ``since``: when a new status begins."""
    if shot.old is None or shot.new is None:
        return RolloutStatus(state="progressing", farm=farm, since=since)
    blocked, state = plan.blocked, shot.state
    kind = "progressing" if blocked is None else "frozen" if blocked.frozen else "blocked"
    phase = state.phase if state is not None else "pending"
    return RolloutStatus(
        state=kind,
        reason=blocked.text if blocked is not None else plan.waiting,
        farm=farm,
        since=since,
        phase="back" if shot.back and phase == "moving" else phase,
        stage=progress.stage(shot) + 1,
        stages=len(progress.stages(shot)),
        goal=progress.goal(shot).new,
        minimum=progress.floor(shot),
        asks=plan.asks,
        back=shot.back,
        began=state.since if state is not None else 0.0,
        due=progress.overdue_at(shot, progress.complete(shot)),
        ailing=_ailing(shot.sides[1]),
        old=_side(shot.old),
        new=_side(shot.new),
        gates=tuple(_gates(shot)),
    )


def _ailing(side: Side) -> str:
    return progress.how(side, side.ailing) if side.ailing is not None else ""


def _side(side: Side) -> SideStatus:
    outdated = side.outdated
    serving = sum(side.pods[place].available for place in outdated)
    return SideStatus(side.desired, side.placed, side.available, len(outdated), serving)


def _gates(shot: Snapshot) -> Iterator[GateStatus]:
    for gate in shot.rollout.policy.gates:
        if (found := shot.gates.get(gate.name)) is None:
            continue
        yield GateStatus(
            name=gate.name,
            result=found.answer.result,
            text=found.answer.text,
            at=found.at,
            passes=found.passes,
            failures=found.failures,
            wanted=gate.failures if found.failures else gate.passes,
        )


def audit_fields(turn: Turn) -> dict[str, int | str | bool]:
    """The fields of an audit record: what the rollout is from then on."""
    if turn.state is None:
        return {}
    found: dict[str, int | str | bool] = {"phase": turn.state.phase, "stage": turn.state.stage + 1}
    return {**found, "back": True} if turn.state.back else found
