"""The order in which an app makes its objects, and what it collects once all of them stand: pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter

from farmd.apps.facts import Act, Live, Ref, Snapshot, owner_of
from farmd.work.model import Blocked, frozen
from store.apps import ALL, Entry
from store.errors import InputInvalid
from store.words import count_of, listed

# The order in which the objects of an app are made: steps with a gate between them. Pure.


def steps(entries: Iterable[Entry]) -> tuple[tuple[Entry, ...], ...]:
    """The entries of each step: by wave, and inside of one by what must be ready before; as in the file.

    Raises:
        InputInvalid: objects wait for one another in a circle, which it names.
    """
    found = {str(entry.ref): entry for entry in entries}
    levels = _levels(found)
    places: dict[tuple[int, int], list[Entry]] = {}
    for ref, entry in found.items():
        places.setdefault((entry.wave, levels.get(ref, 0)), []).append(entry)
    return tuple(tuple(places[place]) for place in sorted(places))


def _levels(found: Mapping[Ref, Entry]) -> dict[Ref, int]:
    """How many steps of its wave an object comes after; most wait for nothing, and are left out."""
    before = {
        ref: [name for name in entry.after if name in found and found[name].wave == entry.wave]
        for ref, entry in found.items()
        if entry.after
    }
    sorter, levels = TopologicalSorter(before), dict[Ref, int]()
    try:
        sorter.prepare()
    except CycleError as error:
        circle = " -> ".join(reversed(error.args[1]))
        raise InputInvalid(f"after: found a cycle {circle}, expected none", field="after") from error
    level = 0
    while sorter:
        ready = sorter.get_ready()
        levels |= dict.fromkeys(ready, level)
        sorter.done(*ready)
        level += 1
    return levels


# What an app collects once all that it wants stands: pure.
#
# What must never break: only what bears the app's mark is touched, and of that only what no wanted revision
# names; nothing goes while something changes it, while removals are frozen, or by mistake en masse.


@dataclass(slots=True)
class Sweep:
    """What leaves the app: ``acts`` now, ``waiting`` later."""

    acts: list[Act] = field(default_factory=list)
    waiting: dict[Ref, str] = field(default_factory=dict)
    blocked: Blocked | None = None

    @property
    def over(self) -> bool:
        """Whether nothing is left to collect."""
        return not (self.acts or self.waiting or self.blocked)


def sweep(shot: Snapshot, *, back: bool) -> Sweep:
    """What to collect now; ``back``: what a failed revision alone has made goes, too."""
    found, going = Sweep(), list[Entry]()
    wanted = {str(entry.ref) for entry in shot.wanted}
    for entry in _leftovers(shot, wanted):
        ref = str(entry.ref)
        left = shot.left.get(ref)
        if shot.app.deleting == "keep" or (entry.on_remove == "keep" and _goes(shot, ref, back=back)):
            by = "--keep-objects" if shot.app.deleting == "keep" else "on_remove"
            found.acts.append(Act("release", entry.ref, entry, f"it stays, as set by {by}"))
        elif left is not None and left.release:
            found.acts.append(Act("release", entry.ref, entry, "a person released it"))
        elif ref in shot.others and (_goes(shot, ref, back=back) or left is not None):
            found.acts.append(Act("hand", entry.ref, entry, "that app takes it over", shot.others[ref][0]))
        elif _goes(shot, ref, back=back):
            going.append(entry)
    if going and (why := _mass(shot, going, back)):
        found.blocked = Blocked("mass", why)
    elif going and shot.frozen is not None:
        found.blocked = frozen(shot.frozen)
    elif going and ALL in shot.others:
        why = f"waiting until app {shot.others[ALL][0]} has taken over what it waits for"
        found.waiting |= {str(entry.ref): why for entry in going}
    elif going:
        _remove(shot, going, found)
    return found


def swapped(shot: Snapshot, behind: Iterable[str]) -> list[Act]:
    """What to hand over before anything else: to the apps ``behind`` whose objects this one waits for, and to
    those for which they wait.

    Apps that swap objects in a circle would otherwise wait for one another until one of them fails.
    """
    ahead = _ahead(behind, shot.behind)
    wanted = {str(entry.ref) for entry in shot.wanted}
    return [
        Act("hand", entry.ref, entry, "this app waits for that one", heirs[0])
        for entry in _leftovers(shot, wanted)
        if (heirs := [app for app in shot.others.get(str(entry.ref), ()) if app in ahead])
        and (str(entry.ref) in shot.left or _goes(shot, str(entry.ref), back=False))
    ]


def _ahead(apps: Iterable[str], behind: Mapping[str, Collection[str]]) -> set[str]:
    """These apps, those that they wait for, and so on."""
    found, left = set[str](), list(apps)
    while left:
        app = left.pop()
        left += behind.get(app, ()) if app not in found else ()
        found.add(app)
    return found


def _leftovers(shot: Snapshot, wanted: set[Ref]) -> Iterator[Entry]:
    """What bears the mark and is not wanted: of former revisions, and what a stopped owner made too late."""
    for ref, live in sorted(shot.live.items()):
        if live.owner != owner_of(shot.name) or ref in wanted:
            continue
        entry = shot.former.get(ref) or shot.left.get(ref)
        if entry is not None:
            yield entry
        elif ghost(shot, live):
            yield Entry(ref=live.ref)


def ghost(shot: Snapshot, live: Live) -> bool:
    """Whether it was made since this target began by an owner that was stopped before."""
    return 0 < live.seq < shot.state.seq and live.created >= shot.state.began


def _goes(shot: Snapshot, ref: Ref, *, back: bool) -> bool:
    """Whether an object that is not wanted is to be removed."""
    if shot.app.deleting or (back and ref not in shot.left):
        return True
    if ref not in shot.former and ref not in shot.left:
        return True  # a ghost
    return shot.app.prune and not back


def _mass(shot: Snapshot, going: list[Entry], back: bool) -> str:
    """Why this many objects are not removed without a person's confirmation; empty: they may be."""
    if shot.app.mass or shot.app.deleting or back:
        return ""
    own = owner_of(shot.name)
    standing = sum(live.owner == own for live in shot.live.values())
    if shot.wanted and 2 * len(going) <= standing:
        return ""
    names = listed([str(entry.ref) for entry in going])
    text = f"would remove {count_of(len(going), 'object')} of {standing}: {names}"
    return f"{text}; farmctl apply --mass-removal does it"


def _remove(shot: Snapshot, going: list[Entry], found: Sweep) -> None:
    """Remove the last step of what goes; the steps before wait until it is gone."""
    *_, last = steps(going)
    for entry in going:
        live = shot.live[str(entry.ref)]
        if entry not in last:
            found.waiting[str(entry.ref)] = f"waiting until {last[0].ref} is gone"
        elif live.busy:
            found.waiting[str(entry.ref)] = live.busy
        else:
            why = "its app is deleted" if shot.app.deleting else "no longer in the files"
            found.acts.append(Act("remove", entry.ref, entry, why))


def leftovers(shot: Snapshot) -> set[Ref]:
    """What bears the mark and is not wanted, before anybody asks which other app wants it."""
    return {str(entry.ref) for entry in _leftovers(shot, {str(entry.ref) for entry in shot.wanted})}


def unwanted(shot: Snapshot) -> Mapping[Ref, Live]:
    """What bears the mark, is in no file, and stays until a person prunes it."""
    own, wanted = owner_of(shot.name), {str(entry.ref) for entry in shot.wanted}
    return {ref: live for ref, live in shot.live.items() if live.owner == own and ref not in wanted}
