"""What the commands of named records are made of: finding a record, guarding it, changing or removing it.

A kind describes its records in one ``farmd.commands.noun.Noun``, which adds the commands. What must never
break: every edit names the version of the record that it was read at and respects its mutation lock (R13),
and what is managed is left alone (R14).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

from farmd import commands, overview
from farmd.commands.mutation import Call, Change, Guard, Mutation, Scalar, guard
from farmd.commands.outlook import Outlook, OutlookFacts, Placing, T
from farmd.commands.specs import Document, SpecFile, changed
from farmd.kinds import KINDS, noun
from scheduler.errors import PlacementInvalid
from store import manifests, operations
from store.audit import AuditReader, Filter
from store.entry import Stored
from store.errors import Conflict, NotFound, RecordInvalid
from store.families import family_of, past_of
from store.keys import Keys
from store.manifests import Manifest
from store.named import NamedRecords
from store.operations import Operation
from store.times import Time
from store.words import lasting

if TYPE_CHECKING:
    from farmd.commands.fleet import Fleet
    from farmd.declaration import KindOfWork
    from store.consul.client import ConsulClient

# How items ended that end by themselves, such as rollouts: their records are gone, and people still ask.


class Ending(NamedTuple):
    """When and how an item ended, and the command that shows it; ``reason`` is empty where all went well."""

    at: Time
    how: str
    reason: str
    command: str


async def audited(call: Call, kind: str, target: str) -> Ending | None:
    """The end of the last item of a name or id, from the audit log.

    The caller knows that no record has the name or id, so the last entry of the log is the end.
    """
    found = await AuditReader(call.client, call.keys).read(Filter(kind=kind, item=target), 1)
    if not found:
        return None
    (last,) = found
    how = last.action.partition(".")[2]
    reason = "" if how == "done" else last.reason
    return Ending(
        last.at, how, reason, f"farmctl audit list --kind {noun(kind)} --item {last.name or last.id}"
    )


S = TypeVar("S", bound=Document)

State = Literal["ready", "progressing", "failed", "unknown"]


class Readiness(NamedTuple):
    """How far an object is on its way to what was asked of it, and why, in one line."""

    state: State
    why: str = ""


async def _written(*_: Any) -> str:
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edits(Generic[S, T]):
    """The description of a kind's records, which have one noun on the command line, such as ``rc``.

    Attributes:
        file: how people write one, and the type of its record. The store's family of that type
            (``store.families``) names the kind, whose declaration (``farmd.kinds``) has the words.
        pods: what is particular to owners of pods; None for other kinds.
        told: the fields of a new record that the audit and the confirmation show.
        facts: the lines of ``describe`` beyond those that all records have; for an owner of pods, its counts
            first.
        membership: fields that only a manager changes while there is one (R14).
        past: how the last item of a name ended, if the kind knows more than the audit log.
        columns: the kind's own columns in tables, after the state.
        aged: whether tables show the age of a record.
        beside: the operations that create what a new record needs besides its name.
        replaces: whether a bundle deletes a record that differs, and creates it again.
        judge: how far a record in a bundle is; None: judged by its pods and its status.
        left_out: why a record is not written to files; empty: it is.
    """

    file: SpecFile[S, T]
    pods: Placing[T] | None = None
    told: Callable[[T], Mapping[str, Scalar]] = lambda _: {}
    facts: Callable[[T, Any], Sequence[tuple[str, str]]] = lambda *_: ()
    membership: frozenset[str] = frozenset()
    past: Callable[[Call, str], Awaitable[Ending | None]] | None = None
    columns: Sequence[tuple[str, Callable[[T, Any], str]]] = ()
    aged: bool = False
    beside: Callable[[Keys, T], Sequence[Operation]] = lambda *_: ()
    replaces: bool = False
    judge: Callable[[Call, T], Awaitable[Readiness]] | None = None
    left_out: Callable[[Call, T], Awaitable[str]] = _written

    @property
    def kind(self) -> str:
        """The family of its records, under whose name farms claim them."""
        return family_of(self.file.record).name

    @property
    def document(self) -> str:
        """What JSON calls one."""
        return self.file.record.__name__

    @property
    def words(self) -> KindOfWork:
        return KINDS[self.kind]

    def records(self, client: ConsulClient, keys: Keys) -> NamedRecords[T]:
        """The records in the store."""
        return NamedRecords(client, keys, self.kind, self.file.record, self.words.noun)

    async def editable(
        self,
        call: Call,
        target: str,
        *,
        membership: bool = False,
        by_name: bool = False,
        fields: Collection[str] | None = None,
    ) -> tuple[Stored[T], Guard]:
        """A record by name or id (``by_name``: by its name only), and its guard.

        ``fields`` are those that the edit changes; None: any, so ``edit`` looks at those of an app's part.

        Raises:
            NotFound: there is none.
            Conflict: it is being deleted or locked; managed, where it is about the ``membership``; or a part
                of something that alone changes such fields.
        """
        stored = await self.find(call, target, by_name=by_name)
        record = stored.record
        if fields is not None or not commands.parts.opens(record):
            await commands.parts.refuse_part(call, self.kind, record, fields)
        if membership:
            await commands.parts.refuse_managed(call, self.kind, record)
        if record.deleting:
            noun = self.words.noun
            raise Conflict(
                f"{noun} {record.name!r} is being deleted",
                id=record.id,
                hint=f"a farm finishes it; farmctl {noun} describe {record.name} shows its progress",
            )
        return stored, await self.guard(call, record)

    async def guard(self, call: Call, record: T) -> Guard:
        """The operations that respect a record's mutation lock (R13).

        Raises:
            Locked: somebody holds it.
        """
        return await guard(call, self.kind, record.id, f"{self.words.noun} {record.name!r}")

    async def edit(
        self,
        call: Call,
        stored: Stored[T],
        wanted: T,
        held: Guard,
        action: str,
        *,
        destructive: bool = False,
        details: tuple[str, ...] = (),
        extra: tuple[Operation, ...] = (),
        anew: bool = False,
        pod: Manifest | None = None,
    ) -> Mutation:
        """Replace a record if it differs, or if ``anew``. ``action`` is the verb, such as ``enable``.

        ``pod`` is its manifest where that may not be stored yet.

        Raises:
            Conflict: the file of an app says one of the fields that change.
        """
        record = stored.record
        before, after = commands.difference.fields(record, wanted, self.file.names)
        await commands.parts.refuse_stated(call, self.kind, record, after)
        for name in ("deleting", "restart"):
            old, new = getattr(record, name, 0), getattr(wanted, name, 0)
            if old != new:
                before, after = {**before, name: old}, {**after, name: new}
        shrinks = self.pods is not None and self.pods.shrinks(record, wanted)
        sha = commands.difference.manifest_of(wanted)
        change = self.change(
            record,
            action,
            before={**before, **held.before},
            after={**after, **held.after},
            details=details,
            destructive=destructive or shrinks or bool(held.before),
            manifest="" if sha == commands.difference.manifest_of(record) else sha,
        )
        if wanted == record and not anew:
            return Mutation(change)
        replacement = self.records(call.client, call.keys).replace(stored, wanted)
        outlook = self.outlook(call, wanted, pod)
        return Mutation(change, (*held.operations, *extra, replacement), outlook)

    def command(
        self,
        call: Call,
        stored: Stored[T],
        verb: str,
        *,
        destructive: bool = False,
        beside: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> Mutation:
        """Set fields by which a person commands the worker of a record, such as ``paused``.

        Every transaction of that worker names the record's version, so what it planned before is refused
        (R12). ``beside`` are fields that are written with these and not shown.
        """
        record = stored.record
        differs = {name: value for name, value in fields.items() if getattr(record, name) != value}
        before = {name: getattr(record, name) for name in differs}
        change = self.change(record, verb, before=before, after=differs, destructive=destructive)
        if not differs:
            return Mutation(change)
        wanted = changed(record, **differs, **(beside or {}))
        return Mutation(change, (self.records(call.client, call.keys).replace(stored, wanted),))

    def outlook(
        self, call: Call, wanted: T, pod: Manifest | None
    ) -> Callable[[Fleet], Awaitable[Outlook]] | None:
        return partial(_forecast, call, self.pods, wanted, pod) if self.pods is not None else None

    async def removal(self, call: Call, stored: Stored[T], held: Guard) -> Mutation:
        """Delete a record that wants no pods and has none, give back the room that it holds without a pod,
        and take it out of services that name others, too.

        After that no worker can give the room back. A write that a worker makes at this moment fails, because
        the record is gone (R12).
        """
        room = await commands.parts.move_room(call, self.kind, stored.record.id)
        serves = self.pods is not None and not self.words.ended
        services = await commands.parts.served(call, self.kind, stored.record.id) if serves else {}
        before, after = {"exists": True, **held.before}, {"exists": False, **held.after}
        if room:
            before["reservations"], after["reservations"] = 1, 0
        if services:
            before["services"], after["services"] = ",".join(services), ""
        change = self.change(stored.record, "delete", before=before, after=after, destructive=True)
        gone = self.records(call.client, call.keys).delete(stored)
        past = (
            [operations.delete_tree(call.keys.history(past_of(self.kind, stored.record.name), ""))]
            if self.words.gradual
            else []
        )
        return Mutation(change, (*held.operations, *gone, *room, *services.values(), *past))

    def change(self, record: T, action: str, **fields: Any) -> Change:
        return Change(self.kind, record.id, record.name, f"{self.words.noun}.{action}", **fields)

    async def find(self, call: Call, target: str, *, by_name: bool = False) -> Stored[T]:
        """A record to change, by name or whole id (``by_name``: by its name only).

        Raises:
            NotFound: there is none; says how it ended, if it did.
        """
        records, noun = self.records(call.client, call.keys), self.words.noun
        if not by_name:
            try:
                return await records.find(target)
            except NotFound as error:
                raise await self._gone(call, target, error) from None
        named, _ = await records.named(target)
        if named is None:
            hint = f"farmctl {noun} create makes it"
            raise NotFound(f"{noun} {target!r} does not exist", kind=self.kind, id=target, hint=hint)
        return named

    async def look(self, call: Call, target: str) -> Stored[T]:
        """A record to read, by name, id or the beginning of its id. The caller gets the full id.

        Raises:
            NotFound: as ``find``. Ambiguous: several ids begin so.
        """
        try:
            return await commands.finding.look(call, self.records(call.client, call.keys), target)
        except NotFound as error:
            raise await self._gone(call, target, error) from None

    async def row(self, call: Call, target: str) -> overview.Row[T]:
        """A record with what is known of it besides.

        Raises:
            NotFound, Ambiguous: as ``look``.
        """
        return await overview.row_of(call.client, call.keys, self.kind, await self.look(call, target))

    async def _gone(self, call: Call, target: str, error: NotFound) -> NotFound:
        """The same error with how the item ended, for kinds whose items end by themselves."""
        if error.fields.get("hint") or not (self.words.ended and target):
            return error
        over = await self.past(call, target) if self.past is not None and "/" not in target else None
        over = over or await audited(call, self.kind, target)
        if over is None:
            hint = f"farmctl {self.words.noun} list shows those under way"
            return NotFound(error.message, kind=self.kind, id=target, hint=hint)
        text = f"{self.words.noun} {target!r} ended {lasting(call.clock.now() - over.at)} ago: {over.how}"
        reason = f": {over.reason}" if over.reason else ""
        return NotFound(text + reason, kind=self.kind, id=target, hint=over.command)


async def _forecast(
    call: Call, placing: Placing[T], wanted: T, pod: Manifest | None, fleet: Fleet
) -> Outlook:
    """The outlook for a record as it will be; ``pod`` is its manifest where that is not stored yet."""
    try:
        manifest = pod or await manifests.read(
            call.client, call.keys, commands.difference.manifest_of(wanted)
        )
        request = placing.request(wanted, manifest)
        own = {(row.node, row.instance): row for row in fleet.pods if row.owner == request.owner}
        return placing.outlook(wanted, OutlookFacts(own, fleet.view({request.owner}), request))
    except (NotFound, RecordInvalid, PlacementInvalid) as error:
        return Outlook(unplaced=(error.message,))
