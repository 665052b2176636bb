"""Notes as a kind of work: the worker of one note, the kind, and its entry in the registry."""

from __future__ import annotations

from collections.abc import Sequence

from farmd.commands.noun import Noun
from farmd.declaration import KindOfWork
from farmd.farm.writer import Write
from farmd.work.named import NamedKind, NamedWorker
from store.entry import Stored
from store.operations import Operation
from tests.sample import plan as planning
from tests.sample.commands import NOTE, NoteSpec
from tests.sample.plan import Plan, Snapshot
from tests.sample.record import NOTED, Note


class NoteWorker(NamedWorker[Snapshot, Plan]):
    """Keeps the copy of one note equal to it."""

    __slots__ = ()

    async def look(self, stored: Stored[Note]) -> Snapshot:
        """The note and its copy, both from the farm's caches."""
        return Snapshot(stored.record, self.beside(NOTED), self.frozen())

    def decide(self, snapshot: Snapshot) -> Plan:
        """Pure (``plan.py``)."""
        return planning.decide(snapshot)

    def changes(self, snapshot: Snapshot, plan: Plan) -> Sequence[Write | Operation]:
        """The copy and its audit record."""
        told = self.audit(plan.action, "its copy differs from the note", name=snapshot.note.name)
        return (self.replaced(NOTED, snapshot.copy, plan.wanted), told)


class Notes(NamedKind):
    """The kind ``notes``."""

    name = "notes"
    noun = NOTE
    beside = (NOTED,)
    works = NoteWorker


class NoteKind(KindOfWork):  # a kind of farmd imports its parts in these methods
    family = "notes"
    one, many, noun = "note", "notes", "note"
    title = "Notes: texts that farms keep copies of."
    selectable, guarded, health_matters = True, True, False

    def runs(self) -> type[Notes]:
        return Notes

    def asked(self) -> Noun[NoteSpec, Note]:
        return NOTE
