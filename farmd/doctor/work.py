"""What stands still: freezes, and items that are blocked, with their reasons."""

from __future__ import annotations

from collections.abc import Iterator

from farmd.doctor.model import Finding
from farmd.doctor.survey import OWNERS, Survey
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
                f"remove the cause, or if it is meant: farmctl failsafe clear {kind}",
            )


def _blocked(survey: Survey) -> Iterator[Finding]:
    names = {rc.id: f"rc/{rc.name}" for _, rc in survey.decoded("rcs", ReplicationController)}
    tree = survey.keys.tree("status")
    for entry, status in survey.decoded("status", Status):
        kind, _, item = entry.key[len(tree) :].partition("/")
        gone = kind in OWNERS and survey.keys.record(kind, item) not in survey.trees[kind]
        if status.state == "blocked" and not gone:
            title = names.get(item, f"{kind}/{item}")
            yield Finding(
                "blocked",
                survey.short(entry.key),
                f"{title}: {status.reason}",
                f"farmctl rc explain {names[item][3:]}" if item in names else "remove the reason",
            )
