"""What an app needs next: pure. ``farmctl`` previews with this plan, and a farm carries it out.

What must never break: no step is touched before the former one is ready, and nothing is removed before all
steps are; a revision that failed is not tried again, and the way back leads to the last one that was reached.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from farmd.apps.facts import COLLECTING, Act, Live, Plan, Ref, Snapshot, Verb, app_of, owner_of
from farmd.apps.sweep import steps, swapped, sweep
from farmd.work.model import Blocked, frozen
from store.apps import ALL, MAX_WAITS, App, DispatchState, Entry
from store.times import Time
from store.words import listed

# What each wanted object needs: pure. Its owner decides whether the app may touch it at all.

# A field that changes back this often in this time has another writer; more repairs would only fight it.
REPAIRS = 3
REPAIR_SECONDS = 600.0
# Only so many fields are counted, because the counts are in the app's state. They reveal any such writer.
COUNTED = 500


@dataclass(slots=True)
class Applied:
    """What some entries need.

    ``waits`` are objects of other apps that shall be handed over, as a state lists them, and ``behind`` all
    those apps. ``ended`` are objects that are applied once and were ready. ``failed``: why one will not
    become ready, ``contended``: who else writes what was repaired too often, and ``repairs``: when fields
    were repaired, these repairs included.
    """

    acts: list[Act] = field(default_factory=list)
    refused: dict[Ref, str] = field(default_factory=dict)
    waiting: dict[Ref, str] = field(default_factory=dict)
    waits: list[Ref] = field(default_factory=list)
    behind: list[str] = field(default_factory=list)
    ended: list[Ref] = field(default_factory=list)
    failed: str = ""
    contended: dict[Ref, str] = field(default_factory=dict)
    repairs: dict[str, list[Time]] = field(default_factory=dict)

    @property
    def ready(self) -> bool:
        """Whether all of them stand as wanted."""
        return not (self.acts or self.refused or self.waiting or self.failed)


def bring(shot: Snapshot, entries: Iterable[Entry]) -> Applied:
    """What the entries of the present step need to match their files. An object that is applied once and was
    ready is not created again: it ended by itself.
    """
    found = Applied(ended=list(shot.state.ended))
    for entry in entries:
        live = shot.live.get(str(entry.ref))
        if live is None and str(entry.ref) in shot.state.ended:
            continue
        if live is None:
            found.acts.append(Act("create", entry.ref, entry))
        elif live.owner == owner_of(shot.name):
            _change(shot, entry, live, found)
        else:
            _take(shot, entry, live, found)
    found.behind = sorted({app_of(shot.live[ref].owner) for ref in found.waits})
    found.waits.sort()
    if len(found.waits) > MAX_WAITS:
        found.waits[MAX_WAITS - 1 :] = [ALL]
    return found


def keep(shot: Snapshot, entries: Iterable[Entry]) -> Applied:
    """What the entries of earlier steps need to match their files again."""
    found = Applied(repairs=_lately(shot))
    for entry in entries:
        ref, live = str(entry.ref), shot.live.get(str(entry.ref))
        if entry.apply == "once":
            continue
        if live is None:
            _repair(shot, Act("create", entry.ref, entry, "it was gone"), ("object",), found)
        elif live.owner != owner_of(shot.name):
            _take(shot, entry, live, found)
        elif live.busy:
            found.waiting[ref] = live.busy
        elif live.differs and live.fixed and shot.frozen is not None:
            found.waiting[ref] = f"frozen: {shot.frozen}"
        elif live.differs:
            act = _difference("replace" if live.fixed else "repair", entry, live)
            _repair(shot, act, live.differs, found)
    return found


def _change(shot: Snapshot, entry: Entry, live: Live, found: Applied) -> None:
    """Make an object of the app match its file, and wait until it is ready."""
    ref = str(entry.ref)
    once = entry.apply == "once" and live.seq == shot.state.seq  # it may go as soon as it ended
    if live.verdict == "failed" and (once or not live.busy):
        found.failed = found.failed or f"{ref}: {live.why}"
    elif live.busy:
        found.waiting[ref] = live.busy
        if once and live.verdict == "ready" and ref not in found.ended:
            found.ended.append(ref)
    elif live.differs and live.fixed and shot.frozen is not None:
        found.waiting[ref] = f"frozen: {shot.frozen}"
    elif live.differs:
        found.acts.append(_difference("replace" if live.fixed else "update", entry, live))
    elif live.verdict != "ready":
        found.waiting[ref] = live.why or live.verdict
    elif entry.apply == "once" and ref not in found.ended:
        found.ended.append(ref)


def _difference(verb: Verb, entry: Entry, live: Live) -> Act:
    return Act(verb, entry.ref, entry, listed(live.differs), differs=live.differs)


def _take(shot: Snapshot, entry: Entry, live: Live, found: Applied) -> None:
    """Adopt an equal object without an owner; any other only if a person asks for it."""
    ref, allowed = str(entry.ref), shot.app.adopts(entry.ref)
    if app := app_of(live.owner):
        text = f"belongs to app {app}"
        if allowed:
            found.waits.append(ref)
            found.waiting[ref] = f"{text}: waiting until that app has released it"
        else:
            found.refused[ref] = text
    elif live.busy:
        found.waiting[ref] = live.busy
    elif allowed or not (live.owner or live.differs):
        why, force = live.owner or "nobody's", shot.app.force
        found.acts.append(
            Act("adopt", entry.ref, entry, why, differs=live.differs, force=force, inherits=allowed)
        )
    elif live.owner:
        found.refused[ref] = f"belongs to {live.owner}"
    else:
        found.refused[ref] = f"exists and differs: {listed(live.differs)}; --adopt {ref} adopts it"


def _repair(shot: Snapshot, act: Act, fields: Sequence[str], found: Applied) -> None:
    """Repair what differs, unless it was repaired too often lately."""
    ref = str(act.ref)
    if not shot.app.repair:
        found.waiting[ref] = f"differs: {listed(fields)}, and repairs are off"
        return
    often = [name for name in fields if len(found.repairs.get(f"{ref} {name}", ())) >= REPAIRS]
    if often:
        live = shot.live.get(ref)
        by = f", by {live.why}" if live is not None and live.why else ""
        text = f"{listed(often)} was repaired {REPAIRS} times in {REPAIR_SECONDS / 60:g} minutes"
        found.contended[ref] = f"{text}, and was changed again{by}"
        return
    for name in (f"{ref} {name}" for name in fields):
        if name in found.repairs or len(found.repairs) < COUNTED:
            found.repairs.setdefault(name, []).append(shot.now)
    found.acts.append(act)


def _lately(shot: Snapshot) -> dict[str, list[Time]]:
    """When fields were repaired, as far as that counts still."""
    least = shot.now - REPAIR_SECONDS
    kept = {name: [at for at in times if at > least] for name, times in shot.state.repairs.items()}
    return {name: times for name, times in kept.items() if times}


def target(app: App, state: DispatchState) -> int:
    """The revision whose objects should exist; 0: none, because the app ends."""
    if app.deleting:
        return 0
    return state.reached if falls_back(app, state) else app.revision


def falls_back(app: App, state: DispatchState) -> bool:
    """Whether the wanted revision failed, so that the last reached one is kept in its place."""
    return bool(app.on_failure == "rollback" and app.revision == state.refused and state.reached)


def revisions(app: App, state: DispatchState) -> set[int]:
    """The revisions that may have left something behind, whether they came to their end or not."""
    return {state.effective, state.reached, *range(state.swept + 1, app.revision + 1)} - {0}


def decide(shot: Snapshot) -> Plan:
    """The next plan, from the live objects and the wanted revision, and when to look again."""
    plan = _decided(shot)
    awaited = (shot.live.get(ref) for ref in {**plan.waiting, **plan.refused})
    times = [live.settles for live in awaited if live is not None and live.settles is not None]
    after = min([*times, *([] if plan.after is None else [plan.after])], default=None)
    blocked = plan.blocked or _broken(shot, plan.waiting)
    if (after, blocked) == (plan.after, plan.blocked):
        return plan
    return dataclasses.replace(plan, after=after, blocked=blocked)


def _broken(shot: Snapshot, waiting: Mapping[Ref, str]) -> Blocked | None:
    """What only a person can repair."""
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
        text = Blocked("paused", f"paused; farmctl app resume {shot.name} continues it", wanted=True)
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
    text = f"{ref} bears the mark {mark}, but the highest mark in Consul is {known}: was Consul restored?"
    text = f"{text} farmctl app resume {shot.name} --reason TEXT continues above that mark"
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


# What a revision will do: the plan that farms carry out, played to its end. Pure.
#
# Nobody interferes here: whatever is touched is ready at once, and what keeps an object busy is over.
# A refusal is noted and passed over, so that people see all of them at once.


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
        """Whether every object matches its file, and none is to be removed."""
        return not (self.acts or self.refused or self.blocked)


def play(shot: Snapshot) -> Preview:
    """All plans that follow from a snapshot after a change of the app: the preview."""
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
