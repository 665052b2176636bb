"""What a revision will do: the plan that farms carry out, played to its end. Pure.

Nobody interferes here: whatever is touched is ready at once, and what keeps an object busy is over.
A refusal is noted and passed over, so that people see all of them at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from farmd.dispatch.model import COLLECTING, Act, Live, Plan, Ref, Snapshot, owner_of
from farmd.dispatch.order import steps
from farmd.dispatch.plan import decide
from farmd.work.model import Blocked
from store.apps import ALL, DispatchState


@dataclass(slots=True)
class Preview:
    """The acts in order, each with its step (from 1; removals come after the last), and what stays.

    ``waits`` are objects that something else changes first, ``refused`` those that the app may not take, or
    whose server does not take the change.
    ``notes`` are what a server says of changes that it would make, ``values`` the fields that change
    in Kubernetes, with what they were and will be. ``same`` are as their files say; ``blocked``: why nothing
    goes on from some point.
    """

    steps: int = 0
    acts: list[tuple[int, Act]] = field(default_factory=list)
    refused: dict[Ref, str] = field(default_factory=dict)
    waits: dict[Ref, str] = field(default_factory=dict)
    notes: dict[Ref, str] = field(default_factory=dict)
    values: dict[Ref, tuple[str, ...]] = field(default_factory=dict)
    same: list[Ref] = field(default_factory=list)
    left: list[Ref] = field(default_factory=list)
    blocked: Blocked | None = None

    @property
    def empty(self) -> bool:
        """Whether every object is as its file says, and none goes."""
        return not (self.acts or self.refused or self.blocked)


def play(shot: Snapshot) -> Preview:
    """All that follows from a snapshot whose app was just changed."""
    found = Preview(steps=len(steps(shot.wanted)))
    live = {ref: dataclasses.replace(each, verdict="ready", why="") for ref, each in shot.live.items()}
    state, most = shot.state, 4 * (len(shot.wanted) + len(shot.former) + 4)
    for _ in range(most):
        plan = decide(dataclasses.replace(shot, state=state, live=live))
        found.refused |= plan.refused
        for ref, why in _awaited(shot, plan, live).items():
            (found.refused if ref in live and live[ref].denied else found.waits)[ref] = why
        for ref in {**plan.refused, **plan.waiting}:
            if ref in live:
                live[ref] = _free(shot, live[ref])
        for act in plan.acts:
            found.acts.append(((plan.note or state).wave + 1, act))
            _carry_out(shot, act, live)
        if plan.blocked is not None and not plan.refused:
            found.blocked = plan.blocked
        state = plan.note or state
        if plan.ends or found.blocked or not _goes_on(plan.note, plan.acts, {**plan.refused, **plan.waiting}):
            break
    touched = {str(act.ref) for _, act in found.acts} | found.refused.keys()
    found.values = {
        str(act.ref): seen.values
        for _, act in found.acts
        if (seen := shot.live.get(str(act.ref))) and seen.values
    }
    found.same = [str(entry.ref) for entry in shot.wanted if str(entry.ref) not in touched]
    found.left = [ref for ref in shot.left if ref in live and ref not in touched]
    return found


def _goes_on(note: DispatchState | None, acts: tuple[Act, ...], passed: Mapping[Ref, str]) -> bool:
    return note is not None or bool(acts) or bool(passed)


def _awaited(shot: Snapshot, plan: Plan, live: Mapping[Ref, Live]) -> Mapping[Ref, str]:
    """What waits for something else than its turn to be removed."""
    if plan.phase not in COLLECTING or ALL in shot.others:
        return plan.waiting
    return {ref: live[ref].busy for ref in plan.waiting if ref in live and live[ref].busy}


def _free(shot: Snapshot, live: Live) -> Live:
    """An object that nothing keeps the app from any more."""
    return dataclasses.replace(live, owner=owner_of(shot.name), busy="", differs=())


def _carry_out(shot: Snapshot, act: Act, live: dict[Ref, Live]) -> None:
    ref = str(act.ref)
    if act.verb == "remove":
        live.pop(ref, None)
    elif act.verb in ("release", "hand"):
        live[ref] = dataclasses.replace(live[ref], owner=f"apps/{act.to}" if act.to else "")
    else:
        live[ref] = Live(ref=act.ref, owner=owner_of(shot.name), verdict="ready")
