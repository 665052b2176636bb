"""What an app needs next: pure. ``farmctl`` previews with this plan, and a farm carries it out.

What must never break: no step is touched before the former one is ready, and nothing is removed before all
steps are; a revision that failed is not tried again, and the way back leads to the last one that was reached.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from farmd.dispatch.applying import REPAIR_SECONDS, Applied, bring, keep
from farmd.dispatch.model import Act, Plan, Ref, Snapshot, owner_of
from farmd.dispatch.order import steps
from farmd.dispatch.sweep import swapped, sweep
from farmd.work.model import Blocked, frozen
from store.apps import App, DispatchState, Entry
from store.words import listed


def target(app: App, state: DispatchState) -> int:
    """The revision whose objects shall stand; 0: none, because the app ends."""
    if app.deleting:
        return 0
    return state.reached if falls_back(app, state) else app.revision


def falls_back(app: App, state: DispatchState) -> bool:
    """Whether the wanted revision failed, and the last one that was reached stands in for it."""
    return bool(app.on_failure == "rollback" and app.revision == state.refused and state.reached)


def revisions(app: App, state: DispatchState) -> set[int]:
    """The revisions that may have left something behind, whether they came to their end or not."""
    return {state.effective, state.reached, *range(state.swept + 1, app.revision + 1)} - {0}


def decide(shot: Snapshot) -> Plan:
    """The next plan, from what stands and what people want, and when to look again at what it waits for."""
    plan = _decided(shot)
    awaited = (shot.live.get(ref) for ref in {**plan.waiting, **plan.refused})
    times = [live.settles for live in awaited if live is not None and live.settles is not None]
    after = min([*times, *([] if plan.after is None else [plan.after])], default=None)
    blocked = plan.blocked or _broken(shot, plan.waiting)
    if (after, blocked) == (plan.after, plan.blocked):
        return plan
    return dataclasses.replace(plan, after=after, blocked=blocked)


def _broken(shot: Snapshot, waiting: Mapping[Ref, str]) -> Blocked | None:
    """What waits for a person who mends it."""
    found = [
        f"{ref}: {why}" for ref, why in sorted(waiting.items()) if ref in shot.live and shot.live[ref].broken
    ]
    return Blocked("broken", listed(found)) if found else None


def _decided(shot: Snapshot) -> Plan:
    app, state = shot.app, shot.state
    if restored := _restored(shot):
        return restored
    if app.deleting:
        return _ending(shot)
    if app.paused:
        note = None if state.paused else replace(state, paused=True)
        text = Blocked("paused", f"paused: farmctl app resume {shot.name} goes on", wanted=True)
        return Plan(note=note, action="app.pause", blocked=text, phase="paused")
    if state.paused:
        return Plan(note=replace(state, paused=False, since=shot.now), action="app.resume", phase="applying")
    if target(app, state) != state.effective:
        return _begin(shot)
    if app.resumed >= state.seq:
        note = replace(state, seq=app.resumed + 1, began=shot.now)  # what is older was no stopped owner's
        return Plan(note=note, action="app.resume", phase="applying")
    if state.refused == state.effective:
        return Plan(blocked=_failure(state), phase="failed")
    return _go_on(shot)


def _restored(shot: Snapshot) -> Plan | None:
    """That nothing may be done, where an object bears the mark of a later target than is recorded."""
    own, known = owner_of(shot.name), max(shot.state.seq, shot.app.resumed)
    later = {ref: live.seq for ref, live in shot.live.items() if live.owner == own and live.seq > known}
    if not later:
        return None
    mark = max(later.values())
    ref = min(ref for ref in later if later[ref] == mark)
    text = f"{ref} bears the mark {mark}, and Consul knows none above {known}: was it restored?"
    text = f"{text} farmctl app resume {shot.name} --reason TEXT goes on above that mark"
    return Plan(blocked=Blocked("restored", text), phase="blocked", mark=mark)


def _failure(state: DispatchState) -> Blocked:
    return Blocked("failed", f"revision {state.refused} failed: {state.failure}")


def _begin(shot: Snapshot) -> Plan:
    """A new target, with the changes of its first step, which may share its transaction."""
    back = falls_back(shot.app, shot.state)
    if back and shot.frozen is not None:
        return Plan(blocked=frozen(shot.frozen), phase="blocked")
    state = _aimed(shot, target(shot.app, shot.state))
    if not back:
        state = replace(state, refused=0, failure="")
    found = bring(dataclasses.replace(shot, state=state), next(iter(steps(shot.wanted)), ()))
    acts = () if found.refused else tuple(found.acts)
    state = replace(state, waits=found.waits, behind=found.behind)
    return Plan(note=state, acts=acts, action="app.begin", phase="applying")


def _aimed(shot: Snapshot, revision: int) -> DispatchState:
    """The state at the beginning of a target."""
    seq = max(shot.state.seq, shot.app.resumed) + 1
    aimed = replace(shot.state, seq=seq, effective=revision, wave=0, since=shot.now, began=shot.now)
    return replace(aimed, waits=[], behind=[], ended=[], repairs={})


def _go_on(shot: Snapshot) -> Plan:
    """The present step, or what follows the last one."""
    found = steps(shot.wanted)
    done = [entry for step in found[: shot.state.wave] for entry in step]
    kept = keep(shot, done)
    if shot.state.wave >= len(found):
        return _collect(shot, kept)
    now = bring(shot, found[shot.state.wave])
    over = now.ready and not kept.acts
    ended = shot.state.ended if over else now.ended
    waiting = replace(shot.state, waits=now.waits, behind=now.behind, ended=ended)
    if waiting != shot.state:
        return Plan(note=waiting, action="app.wait", phase="applying")
    overdue = shot.state.since + shot.app.deadline - shot.now
    if overdue > 0 and (acts := swapped(shot, now.behind)):
        return Plan(acts=tuple(acts), waiting=now.waiting, action="app.sweep", phase="applying")
    if over:
        return _stepped(shot, kept, last=shot.state.wave + 1 == len(found))
    if now.failed or overdue <= 0:
        return _fail(shot, now, now.failed or f"not ready in time: {_named(shot, now)}")
    acts = [] if now.refused else now.acts
    return _repaired(shot, kept, acts, now, overdue, "applying")


def _stepped(shot: Snapshot, kept: Applied, *, last: bool) -> Plan:
    """A step is over; with the last one the revision is reached, unless something is left to collect."""
    note = replace(shot.state, wave=shot.state.wave + 1, since=shot.now, ended=[])
    if last and (end := _collect(dataclasses.replace(shot, state=note), kept)).action == "app.reach":
        return end
    return Plan(note=note, action="app.wave", phase="applying")


def _named(shot: Snapshot, found: Applied) -> str:
    """What a step waits for, as text."""
    tried = {str(act.ref): shot.tried[str(act.ref)] for act in found.acts if str(act.ref) in shot.tried}
    why = {**tried, **found.refused, **found.waiting}
    return listed([f"{ref} ({text})" for ref, text in sorted(why.items())]) or "its changes"


def _repaired(
    shot: Snapshot, kept: Applied, acts: Sequence[Act], now: Applied, after: float | None, phase: str
) -> Plan:
    """The acts of the present step, and the repairs of what was ready before."""
    refused = {**kept.refused, **now.refused}
    trouble = {**refused, **kept.contended}
    text = listed([f"{ref}: {why}" for ref, why in sorted(trouble.items())])
    repairs = kept.repairs if kept.acts else shot.state.repairs
    waits = (after, REPAIR_SECONDS if kept.contended else None)
    return Plan(
        acts=(*kept.acts, *acts),
        note=replace(shot.state, repairs=repairs) if kept.acts else None,
        action="app.repair" if kept.acts else "app.apply",
        refused=refused,
        waiting={**kept.waiting, **now.waiting},
        phase=phase,
        blocked=Blocked("contended" if kept.contended else "refused", text) if trouble else None,
        after=min((each for each in waits if each is not None), default=None),
    )


def _fail(shot: Snapshot, now: Applied, why: str) -> Plan:
    """The revision failed: from then on it is refused, and the last one that was reached comes back."""
    app, state = shot.app, shot.state
    if state.refused == app.revision:
        text = f"{_failure(state).text}; the way back to revision {state.reached} failed: {why}"
        return Plan(blocked=Blocked("failed", text), refused=now.refused, waiting=now.waiting, phase="failed")
    note = replace(state, refused=app.revision, failure=why, waits=[], behind=[])
    if falls_back(app, note):
        if shot.frozen is not None:
            return Plan(blocked=frozen(shot.frozen), waiting=now.waiting, phase="blocked")
        note = _aimed(dataclasses.replace(shot, state=note), state.reached)
    return Plan(note=note, action="app.fail", why=why, phase="failed")


def _collect(shot: Snapshot, kept: Applied) -> Plan:
    """All that is wanted is ready: what is not goes, and then the revision is reached."""
    back = falls_back(shot.app, shot.state)
    found = sweep(shot, back=back)
    if found.acts:
        return Plan(acts=tuple(found.acts), waiting=found.waiting, action="app.sweep", phase="sweeping")
    if kept.acts:
        return _repaired(shot, kept, (), Applied(), None, "reached")
    if not found.over:
        return Plan(blocked=found.blocked, waiting=found.waiting, phase="sweeping")
    state = shot.state
    if (state.reached, state.swept) != (state.effective, shot.app.revision):
        note = replace(state, reached=state.effective, swept=shot.app.revision)
        return Plan(note=note, action="app.reach", phase="reached")
    plan = _repaired(shot, kept, (), Applied(), None, "reached")
    return dataclasses.replace(plan, blocked=plan.blocked or _failure(state)) if back else plan


def _ending(shot: Snapshot) -> Plan:
    """Nothing is wanted any more. Before its end the app says that it waits for nothing, so that no other app
    hands something over to it in the meantime.
    """
    found = sweep(shot, back=False)
    if found.over and (shot.state.waits or shot.state.behind):
        note = replace(shot.state, waits=[], behind=[])
        return Plan(note=note, action="app.wait", phase="deleting")
    return Plan(
        acts=tuple(found.acts),
        waiting=found.waiting,
        blocked=found.blocked,
        ends=found.over,
        action="app.sweep" if found.acts else "",
        phase="deleting",
    )


def carried(documents: Sequence[Entry], former: Mapping[Ref, Entry], *, prune: bool) -> tuple[Entry, ...]:
    """The entries of a new revision: its documents, and without ``prune`` what former revisions may have
    left."""
    named = {str(entry.ref) for entry in documents}
    kept = [] if prune else [each for ref, each in sorted(former.items()) if ref not in named]
    left = (Entry(ref=each.ref, wave=each.wave, on_remove=each.on_remove, left=True) for each in kept)
    return (*documents, *left)
