"""What holds of every change that an app's worker makes to its objects, and of every revision."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from farmd.apps.facts import takes
from farmd.kinds import bundled, family_of
from store import apps
from store.apps import KIND, TRACKERS, App, DispatchState, Entry, ResourceTracker
from store.audit import Audit
from store.embedded.kv import Pair
from store.keys import is_sentinel
from store.work import Work
from tests.stateful.change_rules import held
from tests.stateful.moment import Look, Moment

NOUNS = {family_of(noun): noun for noun in bundled()}


class Change(NamedTuple):
    """One object that a transaction wrote: its fields before and after; none where it did not exist."""

    ref: str
    before: dict[str, Any]
    after: dict[str, Any]

    @property
    def taken(self) -> bool:
        """Whether it is taken away, now or by its own worker."""
        return bool(self.before) and (
            not self.after or bool(self.after.get("deleting")) > bool(self.before.get("deleting"))
        )


def judge(look: Look, moment: Moment, audit: Audit) -> Iterable[str]:
    """Judge one transaction of an app's worker."""
    pair = moment.before[look.keys.record(KIND, audit.id)]
    app, own = look.record(App, pair), f"{KIND}/{audit.id}"
    if app is None:
        yield f"{audit.action} of an app that is not there or does not decode"
        return
    if ("check-index", look.keys.record(KIND, audit.id)) not in {
        (op.verb, op.key) for op in moment.operations
    }:
        yield f"{audit.action} without naming the version of the app"
    state, freeze = _state(look, audit.id), held(look, moment, audit)
    for change in _changes(look, moment):
        yield from _marked(look, own, change)
        if change.taken:
            yield from _collected(look, app, state, audit.id, change)
            if freeze is not None:
                yield f"{change.ref} was removed while frozen: {freeze}"


def _changes(look: Look, moment: Moment) -> Iterable[Change]:
    """The objects of bundles that a transaction wrote."""
    for op in moment.writes:
        family = op.key.removeprefix(look.keys.prefix).partition("/")[0]
        if family in NOUNS and not is_sentinel(op.key):
            before, after = _fields(moment.before[op.key]), _fields(look.kv.get(op.key))
            name = (after or before).get("name", look.keys.last_part(op.key))
            yield Change(f"{NOUNS[family]}/{name}", before, after)


def _fields(pair: Pair | None) -> dict[str, Any]:
    return {} if pair is None else msgspec.json.decode(pair.value or b"{}")


def _marked(look: Look, own: str, change: Change) -> Iterable[str]:
    """Nothing of another owner's is written, and a mark goes to another app only if that one waits (A1)."""
    ref, before, after = change
    had, has = _owners(before), _owners(after)
    if before and ref.partition("/")[0] != "node" and had.get("") not in (None, own):
        yield f"{ref} was written, which is a part of {had['']}"
    for part in had.keys() | has.keys():
        old, new = had.get(part, ""), has.get(part, "")
        if old != new and old not in ("", own):
            yield f"{ref} {part} was taken from {old}"
        heir = new.partition("/")[2]
        wanted = ref in _state(look, heir).waits or _takes(look, heir, ref)
        if old != new and new not in ("", own) and not wanted:
            yield f"{ref} {part} was handed to {new}, which does not want it"


def _owners(fields: dict[str, Any]) -> dict[str, str]:
    """Whose an object is; of a node by the field."""
    whole = {"": fields["part_of"]} if fields.get("part_of") else {}
    return whole | fields.get("parts", {})


def _collected(look: Look, app: App, state: DispatchState, name: str, change: Change) -> Iterable[str]:
    """Only what is the app's and no wanted revision names goes, by a person's word; and not what another app
    waits for (A2).
    """
    if change.before.get("part_of") != f"{KIND}/{name}":
        yield f"{change.ref} was removed without its mark"
    entry = _wanted(look, name, state.effective).get(change.ref)
    if not app.deleting and entry is not None and NOUNS["jobs"] != change.ref.partition("/")[0]:
        yield f"{change.ref} was removed, and revision {state.effective} wants it"
    if not (app.deleting or app.prune or app.revision == state.refused) and entry is None:
        yield f"{change.ref} was removed, and nobody said so"
    for key in look.under(f"work/{KIND}"):
        other = look.keys.last_part(key)
        if other != name and look.settled(key) and change.ref in _state(look, other).waits:
            yield f"{change.ref} was removed, and app {other} waits for it"
    for key in look.under(KIND):
        other = look.keys.last_part(key)
        if other != name and look.settled(key) and _takes(look, other, change.ref):
            yield f"{change.ref} was removed, and the revision of app {other} takes it over"


def _takes(look: Look, name: str, ref: str) -> bool:
    """Whether the wanted revision of an app takes an object of another app's over."""
    app = look.at(App, look.keys.record(KIND, name))
    return (
        app is not None and takes(app, _state(look, name), ref) and ref in _wanted(look, name, app.revision)
    )


def _state(look: Look, name: str) -> DispatchState:
    work = look.at(Work, look.keys.work(KIND, name))
    return (work.dispatch if work is not None else None) or DispatchState()


def _wanted(look: Look, name: str, number: int) -> dict[str, Entry]:
    key = look.keys.tracker(name, number)
    found = look.at(ResourceTracker, key)
    entries = apps.entries(found, key) if found is not None else ()
    return {str(each.ref): each for each in entries if not each.left}


def revisions(look: Look, moment: Moment) -> Iterable[str]:
    """A revision is made once, in the transaction that wants it, and never changed (D1); farms only trim."""
    for op in moment.writes:
        if not op.key.startswith(look.keys.tree(TRACKERS)) or is_sentinel(op.key):
            continue
        if op.verb in ("delete", "delete-cas", "delete-tree"):
            if not moment.farm:
                yield f"{op.verb} of {op.key} by no farm"
        elif moment.farm or op.verb != "cas" or op.index:
            yield f"{op.verb} of {op.key}, which only people make, once"
        else:
            name = op.key.removeprefix(look.keys.tree(TRACKERS)).partition("/")[0]
            app = look.at(App, look.keys.record(KIND, name))
            if app is None or op.key != look.keys.tracker(name, app.revision):
                yield f"{op.key} is not what its app wants: {app}"
