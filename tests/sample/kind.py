"""Notes as a kind of work: the worker of one note, the kind, and its entry in the registry."""

from __future__ import annotations

from collections.abc import Sequence

from farmd.declaration import KindOfWork
from farmd.farm.writer import Write
from farmd.work.named import NamedKind, NamedWorker
from store.entry import Stored
from store.operations import Operation
from tests.sample import plan as planning
from tests.sample.commands import NOTE
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
    beside = (NOTED,)
    works = NoteWorker


DECLARATION = KindOfWork(  # a kind of farmd declares itself in the __init__ of its package
    family="notes",
    one="note",
    many="notes",
    noun="note",
    title="Notes: texts that farms keep copies of.",
    selectable=True,
    guarded=True,
    health_matters=False,
    runs=lambda: Notes,
    asked=lambda: NOTE,
)
