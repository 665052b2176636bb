"""What people are told of a rollout: its status, and the words of its audit records: pure."""

from __future__ import annotations

from collections.abc import Iterator

from farmd.rollout import faults, position
from farmd.rollout.model import Plan, Side, Snapshot, Turn
from store.rollouts import GateStatus, RolloutStatus, SideStatus


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
        stage=position.stage(shot) + 1,
        stages=len(position.stages(shot)),
        goal=position.goal(shot).new,
        minimum=position.floor(shot),
        asks=plan.asks,
        back=shot.back,
        began=state.since if state is not None else 0.0,
        due=faults.overdue_at(shot, position.complete(shot)),
        ailing=_ailing(shot.sides[1]),
        old=_side(shot.old),
        new=_side(shot.new),
        gates=tuple(_gates(shot)),
    )


def _ailing(side: Side) -> str:
    return side.how(side.ailing) if side.ailing is not None else ""


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
