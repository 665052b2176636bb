"""Finds freezes, and items that are blocked, with their reasons."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from farmd import kinds
from farmd.doctor.model import Finding
from farmd.doctor.survey import Survey
from store.failsafe import Failsafe, frozen
from store.families import named, owns_pods
from store.farms import Member
from store.status import ItemStatus


def check(survey: Survey) -> list[Finding]:
    """Check freezes and blocked items."""
    return [*_frozen(survey), *_blocked(survey)]


def _frozen(survey: Survey) -> Iterator[Finding]:
    for entry, record in survey.decoded("failsafe", Failsafe):
        if frozen(record, survey.now):
            kind = survey.keys.last_part(entry.key)
            yield Finding(
                "frozen",
                survey.short(entry.key),
                f"removals of {kind} are frozen: {record.evidence}{_unseen(survey, kind)}",
                f"remove the cause, or if it is intended: farmctl failsafe clear {kind}"
                f" --evidence {shlex.quote(record.evidence)} --for 10m --reason WHY",
            )


def _unseen(survey: Survey, kind: str) -> str:
    """Why the freeze of a kind outlives its cause, if no farm can see that the cause is over."""
    known = kinds.KINDS.get(kind)
    if known is None or not known.outside:
        return ""
    farms = [member for _, member in survey.decoded("farms", Member)]
    if any(kind in member.kinds and member.clusters for member in farms):
        return ""
    return f"; no live farm works in {known.outside}, so the freeze lasts until one does"


def _blocked(survey: Survey) -> Iterator[Finding]:
    names = {entry.key: record.name for entry, record in survey.named()}
    tree = survey.keys.tree("status")
    for entry, status in survey.decoded("status", ItemStatus):
        kind, _, item = entry.key[len(tree) :].partition("/")
        key = survey.keys.record(kind, item)
        # A record that does not decode is a finding of its own, and no command shows more.
        stale = named(kind) and (
            key not in names or status.record not in {0, survey.trees[kind][key].modify_index}
        )
        if status.state == "blocked" and not stale:
            name = status.name or names.get(key, item)
            title = status.name or kinds.title(kind, name)
            found = status.name or survey.short(entry.key)
            yield Finding("blocked", found, f"{title}: {status.reason}", _look(kind, name))


def _look(kind: str, name: str) -> str:
    """The command that shows more."""
    known = kinds.KINDS.get(kind)
    if known is not None and known.shown:
        return f"{known.shown} {name}"
    if known is None or not known.noun:
        return "remove the reason"
    return f"farmctl {known.noun} {'explain' if owns_pods(kind) else 'describe'} {name}"
