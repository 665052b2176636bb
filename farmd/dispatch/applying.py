"""What each wanted object needs: pure. Its owner decides whether the app may touch it at all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from farmd.dispatch.model import Act, Live, Ref, Snapshot, Verb, app_of, owner_of
from store.apps import ALL, MAX_WAITS, Entry
from store.times import Time
from store.words import listed

# Whoever writes a field again as often as this in this time is another writer, whom repairs would only fight.
REPAIRS = 3
REPAIR_SECONDS = 600.0
# So many fields are counted, which fit into the app's state; whoever writes more is told of by these.
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
    """What the entries of the present step need to stand as their files say. What is applied once and was
    ready is not made again: it went by itself.
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
    """What the entries of earlier steps need to be again as their files say."""
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
    """An object of the app's own: as its file says, and ready."""
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
    """An object that is not the app's: nobody's equal one is adopted, any other by a person's word alone."""
    ref, allowed = str(entry.ref), shot.app.adopts(entry.ref)
    if app := app_of(live.owner):
        text = f"belongs to app {app}"
        if allowed:
            found.waits.append(ref)
            found.waiting[ref] = f"{text}: waiting until that app has it no more"
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
        found.refused[ref] = f"exists and differs: {listed(live.differs)}; --adopt {ref} takes it"


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
        found.contended[ref] = f"{text}, and is written otherwise again{by}"
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
