"""What to do about one note: pure."""

from __future__ import annotations

from dataclasses import dataclass

from farmd.work import model
from farmd.work.named import RecordPlan
from store.entry import Stored
from tests.sample.record import Copy, Note


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A note, its copy, and the evidence that freezes removals of it."""

    note: Note
    copy: Stored[Copy] | None
    frozen: str | None = None


@dataclass(frozen=True, slots=True)
class Plan(RecordPlan):
    """The action writes ``wanted`` in place of the copy."""

    wanted: Copy | None = None


def decide(seen: Snapshot) -> Plan:
    """Write the copy that differs, remove the one that is not wanted, end what is being deleted."""
    note, found = seen.note, seen.copy.record if seen.copy is not None else None
    wanted = Copy(note.text) if note.text and not note.deleting else None
    if note.disabled or found == wanted:
        return Plan(ends=note.deleting)
    if wanted is None and seen.frozen is not None:
        return Plan(blocked=model.frozen(seen.frozen))
    return Plan(action="note.remove" if wanted is None else "note.copy", wanted=wanted)
