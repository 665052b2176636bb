"""What must hold of apps in the store at any moment: pure functions over one dump of it, as ``invariants``.

An object bears one mark, of an app that there is; whatever bears it is named by a revision that the app may
still have to collect, and each such revision is there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from farmd.kinds import bundled, family_of
from store import apps
from store.apps import KIND, TRACKERS, App, DispatchState, ResourceTracker
from store.work import Work

if TYPE_CHECKING:
    from tests.fault.invariants import Dump


def states(dump: Dump) -> dict[str, tuple[App, DispatchState]]:
    """The apps by name, and how far each is."""
    found = {}
    for key, (_, app) in dump.tree(KIND, App).items():
        name = dump.keys.last_part(key)
        entry = dump.entries.get(dump.keys.work(KIND, name))
        work = msgspec.json.decode(entry.value, type=Work) if entry is not None else Work()
        found[name] = app, work.dispatch or DispatchState()
    return found


def needed(app: App, state: DispatchState) -> set[int]:
    """The revisions that the app goes by, and those that may have left something behind."""
    return {state.effective, state.reached, app.revision, *range(state.swept + 1, app.revision)} - {0}


def marks(dump: Dump) -> dict[str, str]:
    """The mark of each object that has one, by its reference; of a node by the node and the field."""
    mark, found = f'"{KIND}/'.encode(), dict[str, str]()
    bearing = {key: entry for key, entry in dump.entries.items() if mark in entry.value}
    for noun in bundled():
        tree = dump.keys.tree(family_of(noun))
        for key, entry in bearing.items():
            if not key.startswith(tree):
                continue
            record = msgspec.json.decode(entry.value)
            name = record.get("name", dump.keys.last_part(key))
            for part, owner in {"": record.get("part_of", ""), **record.get("parts", {})}.items():
                if owner.startswith(f"{KIND}/"):
                    found[f"{noun}/{name}{part and ' '}{part}"] = owner
    return found


def marks_are_told(dump: Dump) -> Iterable[str]:
    """What bears the mark of an app is named by one of the revisions that the app may have to collect."""
    numbers = {name: sorted(needed(*found)) for name, found in states(dump).items()}
    told = {name: {ref for each in of for ref in named(dump, name, each)} for name, of in numbers.items()}
    for ref, owner in marks(dump).items():
        name = owner.partition("/")[2]
        if name not in told:
            yield f"{ref} is a part of {owner}, which does not exist"
        elif ref.partition(" ")[0] not in told[name]:
            yield f"{ref} is a part of {owner}, and none of its revisions {numbers[name]} names it"


def named(dump: Dump, app: str, number: int) -> dict[str, apps.Entry]:
    """The entries of a revision by reference; none if it is not there."""
    key = dump.keys.tracker(app, number)
    entry = dump.entries.get(key)
    if entry is None:
        return {}
    found = apps.entries(msgspec.json.decode(entry.value, type=ResourceTracker), key)
    return {str(each.ref): each for each in found}


def revisions_are_there(dump: Dump) -> Iterable[str]:
    """No revision is missing that an app goes by, none lies beyond the wanted one, and none is nobody's."""
    known = states(dump)
    there: dict[str, set[int]] = {name: set() for name in known}
    for key, (_, found) in dump.tree(TRACKERS, ResourceTracker).items():
        name = key.removeprefix(dump.keys.tree(TRACKERS)).partition("/")[0]
        if name not in known:
            yield f"{key} is a revision of no app"
            continue
        there[name].add(found.revision)
        if key != dump.keys.tracker(name, found.revision) or found.revision > known[name][0].revision:
            yield f"{key} says revision {found.revision}, wanted is {known[name][0].revision}"
    for name, (app, state) in known.items():
        if missing := needed(app, state) - there[name]:
            yield f"app {name} needs the revisions {sorted(missing)}, which are gone: {state}"
        if max(state.effective, state.reached, state.swept, state.refused) > app.revision:
            yield f"app {name} is beyond its wanted revision {app.revision}: {state}"
