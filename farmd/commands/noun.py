"""The commands that all named records share: create, update, restart, delete, compare, explain."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from farmd import commands, overview
from farmd.commands.edits import Edits, S
from farmd.commands.mutation import Call, Change, Mutation, commit, registered
from farmd.commands.outlook import T
from farmd.commands.specs import changed
from farmd.kinds import KINDS
from store import manifests, operations
from store.entry import Stored
from store.errors import Conflict, InputInvalid
from store.families import FAMILIES
from store.named import Owner
from store.operations import Operation
from store.words import count_of

if TYPE_CHECKING:
    from farmd.commands import difference
    from scheduler.model import Explanation, FleetView, PlacementRequest

# The commands that all named records share: create, update, restart, enable, disable, delete.
#
# A kind describes its records in one ``Noun``. Each command validates, reads, and returns a ``Mutation``
# that has written nothing yet; callers show its change and pass it to ``farmd.commands.mutation.commit``.
# What must never break beside the rules of ``farmd.commands.edits``: each change that refers to a manifest
# writes it again (R24), and no command deletes a record that may still have pods.


@dataclass(frozen=True, slots=True, kw_only=True)
class Noun(Edits[S, T]):
    """The description of the records that people name by one noun, and the commands on them."""

    async def create(self, call: Call, spec: S) -> Mutation:
        """Create a record under a random id; if an equal one has the name there is nothing to do.

        Raises:
            Conflict: another one has the name; the message and ``fields["differs"]`` name the fields.
            InputInvalid: the spec lacks what a new one cannot do without.
            NotRegistered: there is no cluster.
        """
        cluster = await registered(call)
        existing, name_index = await self.records(call.client, call.keys).named(spec.name)
        if existing is None:
            return await self.creation(call, spec, cluster, name_index)
        known = getattr(existing.record, "recorded", False)  # earlier jobs have no run
        wanted, _ = await self._fresh(call, spec, existing.record, recorded=known)
        return await self._same(call, existing, wanted, spec)

    async def creation(self, call: Call, spec: S, cluster: Operation, name_index: int = 0) -> Mutation:
        """The creation of a record without a look whether its name is free: if not, its commit is refused.

        ``cluster`` is the check of ``registered``.
        """
        wanted, ensured = await self._fresh(call, spec, None, recorded=True)
        after = {**self.told(wanted), **({"disabled": True} if getattr(wanted, "disabled", False) else {})}
        change = self.change(wanted, "create", after=after, manifest=ensured.sha)
        named = self.records(call.client, call.keys).create(wanted, name_index=name_index)
        operations = (cluster, *ensured.writes, *named, *self.beside(call.keys, wanted))
        return Mutation(change, operations, self.outlook(call, wanted, getattr(spec, "pod", None)))

    async def _fresh(
        self, call: Call, spec: S, existing: T | None, *, recorded: bool
    ) -> tuple[T, difference.Ensured]:
        """The record of a spec as it would be created now, and the manifests that it needs."""
        ensured = await commands.difference.ensured(call, spec, existing)
        made = {"created": call.clock.now(), "part_of": call.part_of, "open": list(call.open)}
        built = self._built(spec, call.ids.new(), ensured)
        return changed(built, **made, recorded=recorded), ensured

    async def built(self, call: Call, spec: S, record_id: str, existing: T | None) -> T:
        """The record of a spec, with the manifests of ``existing`` where those say the same."""
        return self._built(spec, record_id, await commands.difference.ensured(call, spec, existing), existing)

    def _built(self, spec: S, record_id: str, ensured: difference.Ensured, existing: T | None = None) -> T:
        made = self.file.build(spec, record_id, ensured.sha, existing)
        return self.file.kept_digests(made, ensured.digests)

    async def as_file(self, call: Call, record: T) -> dict[str, Any]:
        """A record as the document that a person would write, with the manifest of its pods.

        Raises:
            NotFound: the manifest is gone. RecordInvalid: it does not decode.
        """
        wanted = record.manifests if self.words.owns_pods else ()  # type: ignore[attr-defined]
        return self.file.document(
            record, {sha: await manifests.read(call.client, call.keys, sha) for sha in wanted}
        )

    async def commit_create(self, call: Call, mutation: Mutation, spec: S) -> Mutation:
        """Commit a creation; if somebody else created an equal record meanwhile, that is no error.

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

    async def update(
        self,
        call: Call,
        spec: S,
        *,
        now: bool,
        retry: bool = False,
        supersede: bool = False,
        stated: Collection[str] | None = None,
    ) -> Mutation:
        """Change an existing record to what its file says, or to what it says of ``stated`` fields alone.

        A new manifest of an owner of pods comes step by step, where its kind knows how, unless ``now``: then
        its worker replaces pods in place. ``retry``: also a version that was reverted before. ``supersede``:
        also in place of a version that is coming now.

        Raises:
            InputInvalid: an owner of pods without ``now`` whose kind knows no other way; or another pod id.
            NotFound: no record has the name.
            Conflict: it is managed (R14), being deleted, or locked (R13).
        """
        if self.pods is not None and not (now or self.gradual(spec)):
            text = f"{self.words.many} get new pods in place only, expected --now"
            hint = f"--now {self.pods.in_place}"
            if self.words.gradual:
                way = KINDS[self.words.gradual]
                hint += f"; with {way.noun}: in the file, a {way.one} begins"
            raise InputInvalid(f"{self.words.noun} update: {text}", field="now", hint=hint)
        if not now and stated is None:
            found = await self.superseding(call, spec, asked=supersede, retry=retry)
            if found is not None:
                return found
        stored, held = await self.editable(call, spec.name, by_name=True)
        before = stored.record
        ensured = await commands.difference.ensured(call, spec, before)
        wanted = self._built(spec, before.id, ensured, before)
        if stated is not None:
            wanted = self.file.stated(before, wanted, stated)
        if call.part_of:
            wanted = changed(wanted, part_of=call.part_of, open=list(call.open))
        if any(getattr(wanted, name) != getattr(before, name) for name in self.membership):
            await commands.parts.refuse_managed(call, self.kind, before)
        commands.difference.refuse_other_pod(before, wanted)
        replaces = commands.difference.manifest_of(wanted) != commands.difference.manifest_of(before)
        lost = wanted == before and await commands.difference.body_lost(call, before)
        details = await commands.difference.pod_lines(call, before, spec) if replaces else ()
        if replaces and not now and self.pods is not None and self.pods.wanted(wanted):
            begin = KINDS[self.words.gradual].begins
            assert begin is not None
            begun = await begin()(
                call, stored, wanted, held, ensured.writes, retry=retry, pod=getattr(spec, "pod", None)
            )
            return replace(begun, change=replace(begun.change, details=(*begun.change.details, *details)))
        if lost:
            details = ("writes its manifest again, which is missing or corrupt",)
        if replaces and self.pods is not None and self.pods.wanted(wanted):
            details = (*details, *self._standstill(wanted, await commands.parts.pods_left(call, before.id)))
        return await self.edit(
            call,
            stored,
            wanted,
            held,
            "update",
            destructive=replaces,
            details=details,
            extra=ensured.writes,
            anew=lost,
            pod=getattr(spec, "pod", None),
        )

    def gradual(self, spec: object) -> bool:
        """Whether a new manifest of a record or its spec comes step by step."""
        return bool(self.words.gradual) and self.pods is not None and self.pods.gradual(spec)

    async def superseding(
        self,
        call: Call,
        spec: S,
        *,
        asked: bool,
        retry: bool = False,
        stated: Collection[str] | None = None,
    ) -> Mutation | None:
        """Put the version of a file in place of the one that is coming now; None: none is coming.

        ``asked`` and ``retry`` are ``supersede`` and ``retry`` of ``update``.

        For ``stated`` fields the owner's own version is put in place by going back to it. A whole file with
        that version may be about other fields, so it leaves the coming version alone.

        Raises:
            NotFound, Conflict, InputInvalid: as ``update``.
        """
        if (under_way := await self._under_way(call, spec)) is None:
            return None
        sha = (await commands.difference.ensured(call, spec, under_way.record)).sha
        if sha == commands.difference.manifest_of(under_way.record) and stated is None:
            return None
        change = KINDS[self.words.gradual].supersedes
        assert change is not None
        return await change()(call, self, under_way, spec, asked=asked, retry=retry, stated=stated)

    async def _under_way(self, call: Call, spec: S) -> Stored[T] | None:
        """The owner of a spec's name, if another version is coming to it now."""
        if not self.words.gradual:
            return None
        stored = await self.find(call, spec.name, by_name=True)
        record = stored.record
        if not getattr(record, "managed_by", "").startswith(f"{self.words.gradual}/"):
            return None
        return stored

    async def restart(self, call: Call, target: str) -> Mutation:
        """Let the worker of an owner restart its pods, as ``update`` replaces them (R28).

        The new counter is higher than those of all its pods, also of pods that were restarted one by one.

        Raises:
            Conflict: it is managed (R14), being deleted, or locked (R13).
        """
        assert self.pods is not None
        stored, held = await self.editable(call, target, membership=True, fields={"restart"})
        owner: Owner = stored.record  # type: ignore[assignment]
        pods = (await overview.pods(call.client, call.keys, owner)).placed
        wanted = changed(stored.record, restart=max([owner.restart, *(pod.restart for pod in pods)]) + 1)
        details = [f"restarts its pods ({len(pods)}), {self.pods.pace}"]
        if owner.disabled:
            details.append(f"it is disabled: no pod is restarted before the {self.words.one} is enabled")
        details += self._standstill(wanted, len(pods))
        return await self.edit(call, stored, wanted, held, "restart", details=tuple(details))

    def _standstill(self, wanted: T, pods: int) -> tuple[str, ...]:
        """A line that says why no serving pod will be replaced in place, if none will."""
        why = self.pods.standstill(wanted, pods) if self.pods is not None else ""
        return (f"replaces no pod that serves: {why}",) if why else ()

    async def enable(self, call: Call, target: str) -> Mutation:
        """Let the farms work on a record again.

        Raises:
            Conflict: it is being deleted, or locked (R13).
        """
        stored, held = await self.editable(call, target)
        return await self.edit(call, stored, changed(stored.record, disabled=False), held, "enable")

    async def disable(self, call: Call, target: str) -> Mutation:
        """Keep the farms from acting on a record, such as adding and removing pods; what runs keeps running.

        Raises:
            Conflict: it is being deleted, or locked (R13).
        """
        stored, held = await self.editable(call, target)
        return await self.edit(call, stored, changed(stored.record, disabled=True), held, "disable")

    async def delete(self, call: Call, target: str, *, cascade: bool) -> Mutation:
        """Mark a record for its worker to delete. What has no worker is deleted at once, and so is an owner
        that wants no pods and has none.

        The worker takes everything down, the record last (``farmd.work.named``). An owner that has pods needs
        ``cascade``.

        Raises:
            Conflict: pods remain and ``cascade`` is not set; it is a part, managed, or locked.
        """
        stored = await self.find(call, target)
        record, pods = stored.record, 0
        await commands.parts.refuse_part(call, self.kind, record)
        held = await self.guard(call, record)
        await commands.parts.refuse_managed(call, self.kind, record)
        if FAMILIES[self.kind].passive:
            return await self.removal(call, stored, held)
        if self.pods is not None:
            pods = await commands.parts.pods_left(call, record.id)
            if not (pods or self.pods.wanted(record) or await commands.parts.processes_left(call, record.id)):
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
        return await self.edit(call, stored, wanted, held, "mark-deleted", destructive=True, details=details)

    async def _same(self, call: Call, existing: Stored[T], wanted: T, spec: S) -> Mutation:
        """The result of creating a name that exists: nothing to do, or a conflict that names the
        differences.
        """
        record, words, word = existing.record, self.words, commands.difference.word
        if record.deleting:
            raise Conflict(
                f"{words.noun} {wanted.name!r} is being deleted", id=record.id, hint="wait until it is gone"
            )
        before, after = commands.difference.fields(record, wanted, self.file.names)
        if not before:
            return Mutation(self.change(record, "create"))
        await commands.parts.refuse_part(call, self.kind, record)
        names = [f"{name} ({word(before[name])} -> {word(after[name])})" for name in after if name != "pod"]
        if "pod" in after:
            names += [
                line.partition(":")[0] for line in await commands.difference.pod_lines(call, record, spec)
            ]
        now = " --now" if self.pods is not None else ""
        raise Conflict(
            f"{words.noun} {wanted.name!r} exists and differs: {', '.join(names)}",
            id=record.id,
            differs=list(after),
            hint=words.instead or f"farmctl {words.noun} update -f FILE{now} changes it{words.other_ways}",
        )


# What a file would change of a record, and edits that are held to the version that a person saw.


async def compare(call: Call, noun: Noun[S, T], spec: S) -> Change:
    """What ``create`` or ``update`` would change, whether or not it is allowed now; empty: nothing.

    Raises:
        InputInvalid: the record does not exist, and the spec lacks what a new one cannot do without.
    """
    word, records = noun.words.noun, noun.records(call.client, call.keys)
    stored, _ = await records.named(spec.name)
    wanted = await noun.built(call, spec, "", stored.record if stored is not None else None)
    if stored is None:
        return Change(noun.kind, "", spec.name, f"{word}.create", after={**noun.told(wanted), "exists": True})
    record = stored.record
    before, after = commands.difference.fields(record, wanted, noun.file.names)
    lines = await commands.difference.pod_lines(call, record, spec) if "pod" in after else ()
    return Change(noun.kind, record.id, record.name, f"{word}.update", before, after, lines)


async def edited(call: Call, noun: Noun[S, T], stored: Stored[T], spec: S) -> Mutation:
    """The change of the version of a record that a person saw to what the person made of it.

    Raises:
        InputInvalid: another name, or what ``update`` refuses.
        Conflict: it is managed, being deleted or locked. A later version is refused as it is committed.
    """
    if spec.name != stored.record.name:
        raise InputInvalid(
            f"name: found {spec.name!r}, expected {stored.record.name!r}: a name never changes", field="name"
        )
    mutation = await noun.update(call, spec, now=not noun.gradual(spec))
    seen = operations.check_index(stored.key, stored.index)
    return replace(mutation, operations=(seen, *mutation.operations)) if mutation.needed else mutation


# Explains why each node gets a pod or not, by the scheduler's own judgement.
#
# It uses the same pure functions as the farms, over one read of the fleet (``farmd.commands.fleet``), so it
# cannot differ from what happens.


async def explain(
    call: Call, noun: Noun[S, T], record: T, view: FleetView | None = None
) -> list[tuple[str, Explanation]]:
    """The verdict on every node for one more pod of an owner: one for each type of its pods, by the type's
    name, which is empty where there is one type. ``view`` is the fleet; None: read it.

    Raises:
        NotFound: a manifest is gone. RecordInvalid: it does not decode.
        PlacementInvalid: its placement block cannot work.
    """
    from scheduler.decide import explanation

    requests = noun.words.requests
    wanted = await (requests()(call, record) if requests else _request(call, noun, record))
    if view is not None:
        return [(name, explanation(request, view)) for name, request in wanted]
    now = await commands.fleet.read(call.client, call.keys)
    return [
        (name, explanation(request, now.view({request.owner, *request.replaces}))) for name, request in wanted
    ]


async def _request(call: Call, noun: Noun[S, T], record: T) -> list[tuple[str, PlacementRequest]]:
    assert noun.pods is not None
    manifest = await manifests.read(call.client, call.keys, commands.difference.manifest_of(record))
    return [("", noun.pods.request(record, manifest))]
