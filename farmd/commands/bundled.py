"""How bundles of objects hold the records of one noun: read, find, compare, make, change and take away.

Each kind that bundles may hold declares its ``Bundled``. What must never break: a bundle
changes only the fields that its document states, so all others stay as people or farms set them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, runtime_checkable

from farmd import overview
from farmd.commands import difference, resolving, waiting
from farmd.commands.edits import Readiness, S
from farmd.commands.mutation import Call, Change, Mutation, Scalar, lock_told
from farmd.commands.noun import Noun
from farmd.commands.outlook import T
from farmd.commands.specs import changed
from farmd.commands.waiting import Spells
from store import manifests
from store.entry import Stored
from store.errors import NotFound, RecordInvalid
from store.several import several


class Wish(NamedTuple):
    """What a document asks of a record; of an existing one it sets only the ``stated`` fields."""

    name: str
    spec: Any
    stated: frozenset[str]


class FoundRecord(NamedTuple):
    """A record as it is: what it is part of, and what prevents a change of it now."""

    stored: Stored[Any]
    part_of: str = ""
    busy: str = ""


class Written(NamedTuple):
    """Records as people would write them: documents by file, commands for what no document can express, and
    one line for each thing that neither can.
    """

    files: dict[str, list[dict[str, Any]]]
    commands: list[list[str]]
    left: list[str]


class Exported(Protocol):
    """One noun whose records can be written as files."""

    @property
    def spec(self) -> type[Any]:
        """The type of its documents."""

    async def written(self, call: Call) -> Written:
        """All of its records, save what is a part of something else; see ``farmd.commands.exporting``."""


class Bundled(Exported, Protocol):
    """One noun in bundles; ``order`` is its place among the nouns of one wave.

    Mutations bear ``call.part_of``. ``replaces``: a record that differs is deleted and created again.
    """

    @property
    def noun(self) -> str: ...

    @property
    def order(self) -> int: ...

    @property
    def replaces(self) -> bool: ...

    def parse(self, document: Any, where: str) -> Any:
        """Check a document; its spec, which has a ``name``.

        Raises:
            InputInvalid: naming the place and the field.
        """

    def wish(self, document: Mapping[str, Any], ignore: Collection[str] = ()) -> Wish:
        """What a document that was checked asks for, save fields that count for the creation alone."""

    async def find(self, call: Call, name: str) -> FoundRecord | None:
        """The record of a name; None: there is none."""

    def seen(self, call: Call, stored: Stored[Any]) -> FoundRecord:
        """What ``find`` returns for a record, as far as the record itself contains it."""

    def held(self, call: Call, found: FoundRecord, wish: Wish) -> FoundRecord:
        """The record with what those fields of it are part of that a wish states."""

    async def differs(
        self, call: Call, found: FoundRecord, wish: Wish
    ) -> tuple[dict[str, Scalar], dict[str, Scalar]]:
        """The stated fields that differ, before and after."""

    async def create(self, call: Call, wish: Wish) -> Mutation:
        """Make the record."""

    async def update(self, call: Call, wish: Wish) -> Mutation:
        """Bring the stated fields to what is asked for."""

    async def delete(self, call: Call, name: str) -> Mutation:
        """Take the record away with all that is below it, at once or by its worker."""

    async def mark(self, call: Call, name: str, to: str, wish: Wish | None = None) -> Mutation:
        """Make a record a part of ``to`` (empty: of nothing) if it is part of ``call.part_of``, or if it
        belongs to nobody and equals its ``wish``. Nothing else changes.
        """

    async def verdict(
        self, call: Call, found: FoundRecord, spells: Spells, wish: Wish | None = None
    ) -> Readiness:
        """How far it is, by the world and not by a status. It failed only if what failed is what the ``wish``
        asks for; without one, if anything did.
        """


@runtime_checkable
class Superseding(Protocol):
    """One noun in bundles whose records may get a version gradually, which another version can replace on
    the way.
    """

    async def superseding(self, call: Call, wish: Wish) -> Mutation | None:
        """Put what a document asks for in place of the version that is coming; None: nothing to do.

        Raises:
            Conflict, InputInvalid: it cannot take that place.
        """


def marked(change: Change, before: str, after: str) -> Change:
    """A change of what a record is a part of, for the audit."""
    return replace(change, before={"part_of": before}, after={"part_of": after})


async def by_name(call: Call, found: FoundRecord, known: dict[str, str] | None = None) -> FoundRecord:
    """A record with what manages it by name; ``known`` keeps the names that were read.

    Raises:
        StoreError: a name cannot be read.
    """
    manager, known = getattr(found.stored.record, "managed_by", ""), {} if known is None else known
    if not manager or manager not in found.busy:
        return found
    if manager not in known:
        known[manager] = await overview.titled_or_not(call.client, call.keys, manager)
    return found._replace(busy=found.busy.replace(manager, known[manager]))


async def _followed(call: Call, existing: Any, wanted: Any, spec: Any) -> bool:
    """Whether an owner that follows config keys differs from its document by their values alone: those are a
    farm's to bring (R41).
    """
    follows = getattr(existing, "follow", False) and getattr(wanted, "follow", False)
    if not follows or existing.manifest == wanted.manifest:
        return False
    try:
        return resolving.refer_alike(
            await manifests.read(call.client, call.keys, existing.manifest), spec.pod
        )
    except (NotFound, RecordInvalid):
        return False


_parsed: dict[int, tuple[Any, Any]] = {}
"""Documents that were just read from files, with what they say, until the plan takes that: so each document
of a large bundle is checked once.
"""
MOST_PARSED = 1_000


@dataclass(frozen=True, slots=True)
class BundledNoun(Generic[S, T]):
    """The records of a noun that has the commands of all nouns; see ``Bundled``."""

    of: Noun[S, T]

    @property
    def order(self) -> int:
        return self.of.words.bundle_order

    @property
    def replaces(self) -> bool:
        return self.of.replaces

    @property
    def spec(self) -> type[S]:
        return self.of.file.spec

    @property
    def noun(self) -> str:
        return self.of.words.noun

    def parse(self, document: Any, where: str) -> S:
        spec = self.of.file.parse(document, where)
        if len(_parsed) >= MOST_PARSED:
            _parsed.clear()
        _parsed[id(document)] = document, spec  # which keeps the id from another document
        return spec

    def wish(self, document: Mapping[str, Any], ignore: Collection[str] = ()) -> Wish:
        parsed, spec = _parsed.pop(id(document), (None, None))
        if parsed is not document or not isinstance(spec, self.spec):
            spec = self.of.file.parse(document, "document")
        return Wish(spec.name, spec, frozenset(document.keys() - {"name", *ignore}))

    async def find(self, call: Call, name: str) -> FoundRecord | None:
        stored, _ = await self.of.records(call.client, call.keys).named(name)
        if stored is None:
            return None
        found = await by_name(call, self.seen(call, stored))
        return found._replace(busy=found.busy or await lock_told(call, self.of.kind, stored.record.id))

    def seen(self, call: Call, stored: Stored[T]) -> FoundRecord:  # noqa: ARG002
        record = stored.record
        manager = getattr(record, "managed_by", "")
        busy = f"managed by {manager}" if manager else ""
        if record.deleting:
            busy = "is being deleted"
        return FoundRecord(stored, getattr(record, "part_of", ""), busy)

    def held(self, call: Call, found: FoundRecord, wish: Wish) -> FoundRecord:  # noqa: ARG002
        return found

    async def differs(
        self, call: Call, found: FoundRecord, wish: Wish
    ) -> tuple[dict[str, Scalar], dict[str, Scalar]]:
        file, existing = self.of.file, found.stored.record
        built = await self.of.built(call, wish.spec, existing.id, existing)
        wanted = file.stated(existing, built, wish.stated)
        if await _followed(call, existing, wanted, wish.spec):
            wanted = changed(wanted, manifest=existing.manifest)
        return difference.fields(existing, wanted, file.names)

    async def create(self, call: Call, wish: Wish) -> Mutation:
        return await self.of.create(call, wish.spec)

    async def update(self, call: Call, wish: Wish) -> Mutation:
        now = not self.of.gradual(wish.spec)
        return await self.of.update(call, wish.spec, now=now, stated=wish.stated)

    async def superseding(self, call: Call, wish: Wish) -> Mutation | None:
        """See ``Superseding``."""
        found = await self.of.superseding(call, wish.spec, asked=True, stated=wish.stated)
        return found if found is not None and found.needed else None

    async def delete(self, call: Call, name: str) -> Mutation:
        return await self.of.delete(call, name, cascade=True)

    async def mark(self, call: Call, name: str, to: str, wish: Wish | None = None) -> Mutation:  # noqa: ARG002
        found = await self.of.find(call, name, by_name=True)
        held = await self.of.guard(call, found.record)
        wanted = changed(found.record, part_of=to, open=list(call.open))
        verb = "adopt" if to else "release"
        made = await self.of.edit(call, found, wanted, held, verb)
        return replace(made, change=marked(made.change, getattr(found.record, "part_of", ""), to))

    async def written(self, call: Call) -> Written:
        listing = await self.of.records(call.client, call.keys).list()
        made: list[dict[str, Any]] = []
        left = [error.message for error in listing.broken]
        records = [each.record for each in listing.items if not getattr(each.record, "part_of", "")]
        documents = await several(partial(self._document, call), records)
        for record, told in zip(records, documents, strict=True):
            if isinstance(told, str):
                left.append(f"{self.noun}/{record.name}: {told}")
            else:
                made.append(told)
        return Written({self.noun: made}, [], left)

    async def _document(self, call: Call, record: T) -> dict[str, Any] | str:
        """A record as its file, or why it is not written."""
        if record.deleting:
            return "is being deleted"
        try:
            return await self.of.left_out(call, record) or await self.of.as_file(call, record)
        except (NotFound, RecordInvalid) as error:
            return error.message

    async def verdict(
        self, call: Call, found: FoundRecord, spells: Spells, wish: Wish | None = None
    ) -> Readiness:
        if self.of.judge is not None:
            return await self.of.judge(call, found.stored.record)
        if failed := await self.failed(call, found.stored.record, wish):
            return Readiness("failed", failed)
        try:
            now = await waiting.look(call, self.of, found.stored.record.id, spells)
        except NotFound:
            return Readiness("unknown", "it is gone")
        if now.state == "disabled":
            return Readiness("unknown", now.reason)
        ready = now.converged and not found.busy
        return Readiness("ready" if ready else "progressing", waiting.describe(now))

    async def failed(self, call: Call, record: T, wish: Wish | None) -> str:
        """Why the version that is asked for failed on a record; empty: it did not."""
        failed: str = getattr(record, "failed", "")
        if failed and wish is not None:
            sha = (await difference.ensured(call, wish.spec, record)).sha
            return failed if sha == record.reverted.manifest else ""  # type: ignore[attr-defined]
        return failed
