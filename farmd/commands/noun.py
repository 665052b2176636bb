"""The commands that all named records share: create, update, restart, enable, disable, delete.

A kind describes its records in one ``Noun``. Each command validates, reads, and returns a ``Mutation`` that
has written nothing yet; callers show its change and pass it to ``farmd.commands.mutation.commit``. What must
never break: every edit names the version of the record that it was read at and respects its mutation lock
(R13), what a rollout manages is left alone (R14), each change that refers to a manifest writes it again
(R24), and no command deletes a record that may still have pods.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from farmd import overview
from farmd.commands import bodies, difference
from farmd.commands.difference import word
from farmd.commands.forecast import forecast
from farmd.commands.mutation import Call, Change, Guard, Mutation, Scalar, commit, guard, registered
from farmd.commands.outlook import Outlook
from farmd.commands.placing import Placing, T
from farmd.commands.remains import move_room, pods_left, processes_left
from farmd.commands.specs import Document, File, changed
from farmd.kinds import KINDS, KindOfWork, load
from store import operations
from store.entry import Stored
from store.errors import Conflict, InputInvalid, NotFound
from store.keys import Keys
from store.manifests import Manifest
from store.named import NamedRecords, Owner
from store.operations import Operation
from store.words import count_of

if TYPE_CHECKING:
    from store.consul.client import ConsulClient


S = TypeVar("S", bound=Document)


@dataclass(frozen=True, slots=True, kw_only=True)
class Noun(Generic[S, T]):
    """The description of the records that people name by one noun, such as ``rc``.

    Attributes:
        kind: the kind of work; its words are in ``farmd.kinds``.
        document: what JSON calls one.
        file: how people write one.
        pods: what is particular to owners of pods; None for other kinds.
        told: the fields that the audit and people are told of a new one.
        facts: what ``describe`` tells of a record and its status beside what all records have; of an owner
            of pods, its counts first.
        membership: fields that only the rollout changes that manages a record (R14).
        other_ways: commands beside ``update`` that change one, as the end of a hint.
    """

    kind: str
    document: str
    file: File[S, T]
    pods: Placing[T] | None = None
    told: Callable[[T], Mapping[str, Scalar]] = lambda _: {}
    facts: Callable[[T, Any], Sequence[tuple[str, str]]] = lambda *_: ()
    membership: frozenset[str] = frozenset()
    other_ways: str = ""

    @property
    def words(self) -> KindOfWork:
        return KINDS[self.kind]

    def records(self, client: ConsulClient, keys: Keys) -> NamedRecords[T]:
        """The records in the store."""
        return NamedRecords(client, keys, self.kind, self.file.record, self.words.noun)

    # -- what people ask for -------------------------------------------------------------------
    async def create(self, call: Call, spec: S) -> Mutation:
        """Create a record under a random id; if an equal one has the name there is nothing to do.

        Raises:
            Conflict: another one bears the name; the message and ``fields["differs"]`` name the fields.
            InputInvalid: the spec lacks what a new one cannot do without.
            NotRegistered: there is no cluster.
        """
        sha, ensured = bodies.ensured(call, spec)
        wanted = changed(self.file.build(spec, call.ids.new(), sha), created=call.clock.now())
        cluster = await registered(call)
        records = self.records(call.client, call.keys)
        existing, name_index = await records.named(wanted.name)
        if existing is not None:
            return await self._same(call, existing, wanted, spec)
        after = {**self.told(wanted), **({"disabled": True} if getattr(wanted, "disabled", False) else {})}
        change = self._change(wanted, "create", after=after, manifest=sha)
        operations = (cluster, *ensured, *records.create(wanted, name_index=name_index))
        return Mutation(change, operations, self._outlook(call, wanted, getattr(spec, "pod", None)))

    async def commit_create(self, call: Call, mutation: Mutation, spec: S) -> Mutation:
        """Commit a creation; an equal record that somebody else created meanwhile is as good.

        Raises:
            Conflict: somebody created a different one meanwhile.
        """
        try:
            await commit(call, mutation)
        except Conflict:
            repeated = await self.create(call, spec)
            if repeated.needed:
                raise
            return repeated
        return mutation

    async def update(self, call: Call, spec: S, *, now: bool, retry: bool = False) -> Mutation:
        """Change an existing record to what its file says.

        A new manifest of an owner of pods comes by a rollout, where its kind has such, unless ``now``: then
        its worker replaces pods in place. ``retry``: also a version that was reverted before.

        Raises:
            InputInvalid: an owner of pods without ``now`` whose kind has no rollouts; or another pod id.
            NotFound: no record bears the name.
            Conflict: a rollout manages it (R14), it is being deleted, or it is locked (R13).
        """
        if self.pods is not None and not (now or self.words.gradual):
            text = f"{self.words.many} have no rollouts, expected --now (replace in place)"
            hint = f"--now {self.pods.in_place}"
            raise InputInvalid(f"{self.words.noun} update: {text}", field="now", hint=hint)
        stored, held = await self.editable(call, spec.name, by_name=True)
        sha, ensured = bodies.ensured(call, spec)
        before = stored.record
        wanted = self.file.build(spec, before.id, sha, before)
        if any(getattr(wanted, name) != getattr(before, name) for name in self.membership):
            self._refuse_managed(before)
        bodies.refuse_other_pod(before, wanted)
        replaces = bodies.manifest_of(wanted) != bodies.manifest_of(before)
        lost = not replaces and await bodies.body_lost(call, before)
        details = await bodies.pod_lines(call, before, spec) if replaces else ()
        if replaces and not now and self.pods is not None and self.pods.wanted(wanted):
            begin = load(self.words.gradual)
            begun: Mutation = await begin(
                call, stored, wanted, held, ensured, retry=retry, pod=getattr(spec, "pod", None)
            )
            return replace(begun, change=replace(begun.change, details=(*begun.change.details, *details)))
        return self.edit(
            call,
            stored,
            wanted,
            held,
            "update",
            destructive=replaces,
            details=("writes its manifest again, which is missing or corrupt",) if lost else details,
            extra=ensured,
            anew=lost,
            pod=getattr(spec, "pod", None),
        )

    async def restart(self, call: Call, target: str) -> Mutation:
        """Let the worker of an owner restart its pods, as ``update`` replaces them (R28).

        The new counter is higher than those of all its pods, also of pods that were restarted one by one.

        Raises:
            Conflict: a rollout manages it (R14), it is being deleted, or it is locked (R13).
        """
        assert self.pods is not None
        stored, held = await self.editable(call, target, membership=True)
        owner: Owner = stored.record  # type: ignore[assignment]
        pods = (await overview.pods(call.client, call.keys, owner)).placed
        wanted = changed(stored.record, restart=max([owner.restart, *(pod.restart for pod in pods)]) + 1)
        details = [f"restarts its pods ({len(pods)}), {self.pods.pace}"]
        if owner.disabled:
            details.append(f"it is disabled: no pod is restarted before the {self.words.one} is enabled")
        return self.edit(call, stored, wanted, held, "restart", details=tuple(details))

    async def enable(self, call: Call, target: str) -> Mutation:
        """Let the farms work on a record again.

        Raises:
            Conflict: it is being deleted, or locked (R13).
        """
        stored, held = await self.editable(call, target)
        return self.edit(call, stored, changed(stored.record, disabled=False), held, "enable")

    async def disable(self, call: Call, target: str) -> Mutation:
        """Keep the farms from acting on a record, such as adding and removing pods; what runs keeps running.

        Raises:
            Conflict: it is being deleted, or locked (R13).
        """
        stored, held = await self.editable(call, target)
        return self.edit(call, stored, changed(stored.record, disabled=True), held, "disable")

    async def delete(self, call: Call, target: str, *, cascade: bool) -> Mutation:
        """Mark a record for its worker to delete, or delete at once an owner that wants no pods and has none.

        The worker takes everything down, the record last (``farmd.work.named``). An owner that has pods needs
        ``cascade``.

        Raises:
            Conflict: pods remain and ``cascade`` is not set; a rollout manages it; it is locked.
        """
        stored = await self._find(call, target)
        record, pods = stored.record, 0
        held = await self.guard(call, record)
        self._refuse_managed(record)
        if self.pods is not None:
            pods = await pods_left(call, record.id)
            if not (pods or self.pods.wanted(record) or await processes_left(call, record.id)):
                return await self.removal(call, stored, held)
            remains = self.pods.remains(record, pods)
            if remains and not cascade and not record.deleting:
                text = f"{self.words.noun} {record.name!r} {remains}"
                raise Conflict(text, id=record.id, pods=pods, hint=self.pods.way_out)
        emptied = self.pods.emptied if self.pods is not None else {}
        wanted = changed(record, disabled=False, deleting=True, **emptied)
        details = (
            (f"removes {count_of(pods, 'pod')}, then the {self.words.one}",) if self.pods is not None else ()
        )
        return self.edit(call, stored, wanted, held, "mark-deleted", destructive=True, details=details)

    # -- what edits are made of ----------------------------------------------------------------
    async def editable(
        self, call: Call, target: str, *, membership: bool = False, by_name: bool = False
    ) -> tuple[Stored[T], Guard]:
        """A record by name, id or beginning of an id (``by_name``: by its whole name only), and its guard.

        Raises:
            NotFound: there is none. Ambiguous: several fit.
            Conflict: it is being deleted or locked; or managed, where it is about the ``membership``.
        """
        stored = await self._find(call, target, by_name=by_name)
        record = stored.record
        if membership:
            self._refuse_managed(record)
        if record.deleting:
            noun = self.words.noun
            raise Conflict(
                f"{noun} {record.name!r} is being deleted",
                id=record.id,
                hint=f"a farm finishes it; farmctl {noun} describe {record.name} tells how far it is",
            )
        return stored, await self.guard(call, record)

    async def guard(self, call: Call, record: T) -> Guard:
        """The operations that respect a record's mutation lock (R13).

        Raises:
            Locked: somebody holds it.
        """
        return await guard(call, self.kind, record.id, f"{self.words.noun} {record.name!r}")

    def edit(
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
        """
        record = stored.record
        before, after = difference.fields(record, wanted, self.file.names)
        for name in ("deleting", "restart"):
            old, new = getattr(record, name, 0), getattr(wanted, name, 0)
            if old != new:
                before, after = {**before, name: old}, {**after, name: new}
        shrinks = self.pods is not None and self.pods.shrinks(record, wanted)
        sha = bodies.manifest_of(wanted)
        change = self._change(
            record,
            action,
            before={**before, **held.before},
            after={**after, **held.after},
            details=details,
            destructive=destructive or shrinks or bool(held.before),
            manifest="" if sha == bodies.manifest_of(record) else sha,
        )
        if wanted == record and not anew:
            return Mutation(change)
        replacement = self.records(call.client, call.keys).replace(stored, wanted)
        outlook = self._outlook(call, wanted, pod)
        return Mutation(change, (*held.operations, *extra, replacement), outlook)

    def _outlook(
        self, call: Call, wanted: T, pod: Manifest | None
    ) -> Callable[[], Awaitable[Outlook]] | None:
        return partial(forecast, call, self.pods, wanted, pod) if self.pods is not None else None

    async def removal(self, call: Call, stored: Stored[T], held: Guard) -> Mutation:
        """Delete a record that wants no pods and has none, and give back the room that it holds without a
        pod.

        After that no worker can give the room back. A write that a worker makes at this moment fails, because
        the record is gone (R12).
        """
        room = await move_room(call, self.kind, stored.record.id)
        change = self._change(
            stored.record,
            "delete",
            before={"exists": True, **held.before, **({"reservations": 1} if room else {})},
            after={"exists": False, **held.after, **({"reservations": 0} if room else {})},
            destructive=True,
        )
        gone = self.records(call.client, call.keys).delete(stored)
        past = (
            [operations.delete_tree(call.keys.history(stored.record.name, ""))] if self.words.gradual else []
        )
        return Mutation(change, (*held.operations, *gone, *room, *past))

    def _change(self, record: T, action: str, **fields: Any) -> Change:
        return Change(self.kind, record.id, record.name, f"{self.words.noun}.{action}", **fields)

    async def _find(self, call: Call, target: str, *, by_name: bool = False) -> Stored[T]:
        records, noun = self.records(call.client, call.keys), self.words.noun
        if not by_name:
            return await records.find(target)
        named, _ = await records.named(target)
        if named is None:
            hint = f"farmctl {noun} create makes it"
            raise NotFound(f"{noun} {target!r} does not exist", kind=self.kind, id=target, hint=hint)
        return named

    async def _same(self, call: Call, existing: Stored[T], wanted: T, spec: S) -> Mutation:
        """The result of creating a name that exists: nothing to do, or a conflict that names the
        differences.
        """
        record, noun = existing.record, self.words.noun
        if record.deleting:
            raise Conflict(
                f"{noun} {wanted.name!r} is being deleted", id=record.id, hint="wait until it is gone"
            )
        before, after = difference.fields(record, wanted, self.file.names)
        if not before:
            return Mutation(self._change(record, "create"))
        names = [f"{name} ({word(before[name])} -> {word(after[name])})" for name in after if name != "pod"]
        if "pod" in after:
            names += [line.partition(":")[0] for line in await bodies.pod_lines(call, record, spec)]
        now = " --now" if self.pods is not None else ""
        raise Conflict(
            f"{noun} {wanted.name!r} exists and differs: {', '.join(names)}",
            id=record.id,
            differs=list(after),
            hint=f"farmctl {noun} update -f FILE{now} changes it{self.other_ways}",
        )

    def _refuse_managed(self, record: T) -> None:
        if manager := getattr(record, "managed_by", ""):
            one, (family, _, ident) = f"{self.words.noun} {record.name!r}", manager.partition("/")
            noun = KINDS[family].noun if family in KINDS else ""
            raise Conflict(
                f"{one} is managed by {manager}, which alone changes its count and manifest",
                id=record.id,
                managed_by=manager,
                hint=f"farmctl {noun} describe {ident} tells how far it is; change or end it instead"
                if noun
                else f"change or end {manager} instead",
            )
