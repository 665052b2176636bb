"""What stands still: freezes, and items that are blocked, with their reasons."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from farmd.doctor.model import Finding
from farmd.doctor.survey import OWNERS, Survey
from store.daemonsets import DaemonSet
from store.failsafe import Failsafe, frozen
from store.rcs import ReplicationController
from store.status import Status


def check(survey: Survey) -> list[Finding]:
    """Freezes, then blocked items."""
    return [*_frozen(survey), *_blocked(survey)]


def _frozen(survey: Survey) -> Iterator[Finding]:
    for entry, record in survey.decoded("failsafe", Failsafe):
        if frozen(record, survey.now):
            kind = survey.keys.last_part(entry.key)
            yield Finding(
                "frozen",
                survey.short(entry.key),
                f"removals of {kind} stand still: {record.evidence}",
                f"remove the cause, or if it is meant: farmctl failsafe clear {kind}"
                f" --evidence {shlex.quote(record.evidence)} --for 10m --reason WHY",
            )


def _blocked(survey: Survey) -> Iterator[Finding]:
    names = {rc.id: f"rc/{rc.name}" for _, rc in survey.decoded("rcs", ReplicationController)}
    names |= {one.id: f"daemonset/{one.name}" for _, one in survey.decoded("daemonsets", DaemonSet)}
    tree = survey.keys.tree("status")
    for entry, status in survey.decoded("status", Status):
        kind, _, item = entry.key[len(tree) :].partition("/")
        record = survey.trees[kind].get(survey.keys.record(kind, item)) if kind in OWNERS else None
        stale = kind in OWNERS and (record is None or status.record not in {0, record.modify_index})
        if status.state == "blocked" and not stale:
            title = names.get(item, f"{kind}/{item}")
            yield Finding(
                "blocked",
                survey.short(entry.key),
                f"{title}: {status.reason}",
                _look(kind, names.get(item, f"{kind}/{item}")),
            )


def _look(kind: str, title: str) -> str:
    """Where more is told."""
    noun, _, name = title.partition("/")
    if noun in {"rc", "daemonset"}:
        return f"farmctl {noun} explain {name}"
    return f"farmctl node describe {name}" if kind == "nodes" else "remove the reason"
