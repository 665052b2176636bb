"""Job templates as a kind of work: its one item, ``starts``, and the worker that answers them all.

Templates are nobody's work by themselves, and the farm that holds the item alone follows the starts. It
follows their keys, so that large values of a starter cost memory nowhere. What must never break: one
transaction under the claim's fence compares the start and the template, removes the start, writes its answer
where none is, and makes the job. So a start has one answer and a job is made once, whichever farm falls.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Sequence, Set
from dataclasses import dataclass
from typing import Any

import msgspec

from farmd.commands.mutation import Call, Mutation, audited
from farmd.farm.kind import Items
from farmd.farm.writer import deletion
from farmd.jobtemplates.commands import job_of, template_of
from farmd.kinds import asked
from farmd.runtime.wake import Wake
from farmd.work.context import Context
from farmd.work.kind import Kind
from farmd.work.model import Blocked, Outcome
from farmd.work.worker import Worker
from store import codec, operations
from store.entry import Entry, Page, Stored
from store.errors import Conflict, InputInvalid, RecordInvalid, TooLarge
from store.families import JOBS
from store.jobtemplates import KIND, STARTED, STARTS, JobStart, JobTemplate, Started, StartKey, place
from store.keys import Keys
from store.locks import Claim
from store.operations import Operation
from store.ports import Recorder
from store.sessions import Session
from store.several import several
from store.status import Status
from store.watch import follow

BATCH, AT_ONCE = 64, 8
PAUSE_SECONDS = 0.5
"""Every answer changes the tree, and each look at it brings the keys of all starts."""
PRUNE_SECONDS, FIRST_PRUNE_SECONDS = 600.0, 60.0
KEPT_SECONDS, KEPT_LEAST_SECONDS, REFUSED_LEAST_SECONDS, MOST_KEPT = 7 * 86_400.0, 600.0, 60.0, 10_000
"""An answer is kept for a week; of more than that of a template, or of all refusals, the oldest go, but no
young one.
"""
CHANGED_SECONDS = 0.2
"""A starter that changes its start all the time holds up nobody for longer."""
LONGEST_TEXT, LONGEST_BY = 500, 80
PRUNED_AT_ONCE = 30


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The starts that are answered next, and how many wait."""

    batch: tuple[Entry, ...]
    waiting: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Answer the batch, or look after old answers; ``after`` is when those are due."""

    batch: tuple[Entry, ...] = ()
    prune: bool = False
    after: float | None = None
    blocked: Blocked | None = None

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write except a status."""
        return not (self.batch or self.prune)


class StartsWorker(Worker[Snapshot, Plan]):
    """Answers the starts of all templates."""

    __slots__ = ("_answered", "_due", "_templates")

    kind: JobTemplates

    def __init__(self, kind: JobTemplates, claim: Claim, session: Session, wake: Wake) -> None:
        super().__init__(kind, claim, session, wake)
        self._due = self.context.clock.mono() + FIRST_PRUNE_SECONDS
        self._answered = 0
        self._templates: dict[str, Stored[JobTemplate]] = {}

    def attach(self) -> None:
        """Follow the starts from now on."""
        self.kind.followed(self.wake)

    def detach(self) -> None:
        """Follow them no more."""
        self.kind.followed(None)

    def stands(self) -> Sequence[Operation]:
        """No checks: the item has no record."""
        return ()

    async def reread(self) -> None:
        """Read which starts wait, because nobody knows whether a write was made (R12)."""
        await self.kind.look()

    async def read(self) -> Snapshot:
        """The next starts, read consistently; one that is gone was answered, or taken back."""
        keys = self.kind.waiting[:BATCH]
        found = await several(self._read, keys)
        self.kind.over({key for key, entry in zip(keys, found, strict=True) if entry is None})
        return Snapshot(tuple(entry for entry in found if entry is not None), len(self.kind.waiting))

    async def _read(self, key: str) -> Entry | None:
        """A start. A key that no start can have is not read: Consul refuses an address with ``..`` in it."""
        try:
            place(self.context.keys, key)
        except RecordInvalid:
            return Entry(key, b"", 0)
        return await self.context.client.read(key, mode="consistent")

    def decide(self, snapshot: Snapshot) -> Plan:
        """The oldest names first; old answers are looked after while none waits, and in any case in time."""
        left = self._due - self.context.clock.mono()
        if snapshot.batch and left > -PRUNE_SECONDS and self._answered <= MOST_KEPT:
            return Plan(batch=snapshot.batch)
        if snapshot.waiting and not snapshot.batch:
            return Plan(after=0.0)
        return Plan(prune=left <= 0 or self._answered > MOST_KEPT, after=max(0.0, left))

    async def act(self, snapshot: Snapshot, plan: Plan) -> Outcome:
        """One transaction for each start, several at a time: none rests on another."""
        if plan.prune:
            await self._prune()
            self._due, self._answered = self.context.clock.mono() + PRUNE_SECONDS, 0
        self._templates.clear()
        done = await several(self._answer, plan.batch, AT_ONCE)
        changed = {entry.key for entry, answered in zip(plan.batch, done, strict=True) if not answered}
        self.kind.last(changed)
        self._answered += len(plan.batch)
        return Outcome("after", CHANGED_SECONDS if changed else 0.0)

    def describe(self, snapshot: Snapshot, plan: Plan) -> Status:
        """It is ready for starts."""
        return Status(state="converged", farm=self.context.farm, since=self.context.clock.now())

    # -- one start -----------------------------------------------------------------------------
    async def _answer(self, entry: Entry) -> bool:
        """Answer one start; False: something that the answer rests on changed meanwhile."""
        context, keys, start = self.context, self.context.keys, JobStart()
        try:
            at = place(keys, entry.key)
        except RecordInvalid:
            return await self._settle(entry, "invalid")
        before = await context.client.read(at.started(keys), mode="consistent")
        if before is not None and not codec.decode(Started, before.value, before.key).refused:
            return await self._settle(entry, "repeated")

        def told(**said: str) -> Operation:
            by, now = start.by[:LONGEST_BY], context.clock.now()
            answer = Started(digest=start.digest, by=by, at=now, **said)
            index = 0 if before is None else before.modify_index
            return operations.cas(at.started(keys), codec.encode(answer), index)

        try:
            start = codec.decode(JobStart, entry.value, entry.key)
            template = await self._template(at.template)
            made = await self._made(at, start, template.record)
            answer = told(job=made.change.id, name=at.job, template=template.record.id)
            checked = operations.check_index(template.key, template.index)
            return await self._settle(entry, "accepted", checked, answer, *made.operations)
        except (InputInvalid, RecordInvalid, Conflict, TooLarge) as error:
            why = error.message.removeprefix(f"{entry.key}: ")[:LONGEST_TEXT]
            return await self._settle(entry, "refused", told(refused=why))

    async def _made(self, at: StartKey, start: JobStart, template: JobTemplate) -> Mutation:
        """The creation of a start's job, with its audit record; nothing to write if the very job exists.

        Raises:
            InputInvalid: what it asks for does not fit. Conflict: another job has the name.
        """
        by = f", asked by {start.by[:LONGEST_BY]}" if start.by else ""
        call = self.kind.call(f"start {at.key} of job-template/{at.template}{by}")
        spec = job_of(template, at.job, "job", start)
        marks = {**spec.labels, "job-template": at.template, "start": at.key}
        made: Mutation = await asked(JOBS.name).create(call, msgspec.structs.replace(spec, labels=marks))
        told = (audited(call, made.change),) if made.needed else ()
        return Mutation(made.change, (*made.operations, *told))

    async def _settle(self, entry: Entry, result: str, *writes: Operation) -> bool:
        """Remove a start, in the transaction of its answer and its job; False: nothing was written."""
        key, index = entry.key, entry.modify_index
        gone = deletion(key, index) if index else [operations.delete(key)]
        if await self.writer.attempt(*gone, *writes) is None:
            return False
        self.kind.over({entry.key})
        self.context.recorder.count("farmd_job_starts_total", result=result)
        return True

    async def _template(self, name: str) -> Stored[JobTemplate]:
        """The template of a name, read once a batch.

        Raises:
            InputInvalid: there is none, it makes no jobs now, or its jobs need a newer farm.
        """
        if name not in self._templates:
            self._templates[name] = await template_of(self.kind.call(), name)
        found = self._templates[name]
        if lacks := sorted(set(found.record.needs) - self.context.features()):
            raise InputInvalid(f"job template {name!r}: needs {', '.join(lacks)}, unknown to the farm")
        return found

    # -- old answers -----------------------------------------------------------------------------
    async def _prune(self) -> None:
        """Remove answers that are old, or too many."""
        keys, now = self.context.keys, self.context.clock.now()
        page = await self.context.client.list(keys.tree(STARTED), mode="consistent")
        old = expired([Entry.of(raw) for raw in page.items], keys, now)
        for at in range(0, len(old), PRUNED_AT_ONCE):
            some = old[at : at + PRUNED_AT_ONCE]
            await self.writer.attempt(
                *(each for entry in some for each in deletion(entry.key, entry.modify_index))
            )


def expired(answers: Sequence[Entry], keys: Keys, now: float) -> list[Entry]:
    """The answers that are removed: those that are old, and of a template with many the oldest."""
    gone, kept = list[Entry](), dict[str, list[tuple[float, Entry]]]()
    for entry in answers:
        try:
            at, answer = place(keys, entry.key, STARTED), codec.decode(Started, entry.value, entry.key)
        except RecordInvalid:
            continue  # a newer version may have written it
        if (age := now - answer.at) > KEPT_SECONDS:
            gone.append(entry)
        else:  # starters choose the names of templates that do not exist: all refusals count together
            kept.setdefault("" if answer.refused else at.template, []).append((age, entry))
    for of, found in kept.items():
        found.sort(key=lambda each: each[0])
        least = KEPT_LEAST_SECONDS if of else REFUSED_LEAST_SECONDS
        gone += [entry for age, entry in found[MOST_KEPT:] if age > least]
    return gone


def fair(keys: Keys, starts: Sequence[str]) -> tuple[str, ...]:
    """Starts in an order in which the templates take turns, so that none waits for all starts of another."""
    seen, turns = Counter[str](), dict[str, int]()
    for key in starts:
        template = key[len(keys.tree(STARTS)) :].partition("/")[0]
        turns[key] = seen[template] = seen[template] + 1
    return tuple(sorted(starts, key=turns.__getitem__))


class JobTemplates(Kind):
    """The kind ``jobtemplates``: its one item has no record and no labels."""

    name = KIND

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.waiting: tuple[str, ...] = ()
        self._wake: Wake | None = None
        self._held = asyncio.Event()

    def records(self) -> Items:
        """The starts of all templates, which are one item."""
        return Items((), self.context.keys, always=(STARTS,))

    async def barrier(self, items: Sequence[str]) -> None:
        """Read the last status, and which starts wait (R15)."""
        await self.recollection.read(items)
        await self.look()

    def call(self, reason: str = "") -> Call:
        """This farm as the caller of a command."""
        context = self.context
        return Call(context.client, context.keys, context.clock, context.ids, context.actor, reason)

    def worker(self, claim: Claim, session: Session, wake: Wake) -> StartsWorker:
        """The worker of the item."""
        return StartsWorker(self, claim, session, wake)

    def publish(self, recorder: Recorder) -> None:
        """Write how many starts wait."""
        super().publish(recorder)
        recorder.set("farmd_job_starts_waiting", len(self.waiting))

    # -- which starts wait ---------------------------------------------------------------------
    def followed(self, wake: Wake | None) -> None:
        """Follow the starts for a worker; None: for none any more."""
        self._wake = wake
        if wake is None:
            self._held.clear()
            self.waiting = ()
        else:
            self._held.set()

    def over(self, keys: Set[str]) -> None:
        """These starts wait no more."""
        self.waiting = tuple(key for key in self.waiting if key not in keys)

    def last(self, keys: Set[str]) -> None:
        """These starts come after all others."""
        self.waiting = tuple(sorted(self.waiting, key=keys.__contains__))

    async def look(self) -> None:
        """Read which starts wait."""
        self._see(await self.context.client.keys(self._prefix, mode="consistent"))

    @property
    def _prefix(self) -> str:
        return self.context.keys.tree(STARTS)

    def _see(self, page: Page[str]) -> None:
        sentinel = self.context.keys.sentinel(self._prefix)
        self.waiting = fair(self.context.keys, [key for key in page.items if key != sentinel])
        if self._wake is not None and self.waiting:
            self._wake.set()

    def background(self) -> Sequence[Coroutine[Any, Any, None]]:
        """The tasks of the kind, with its one parked query while this farm has the item (R23)."""
        return (*super().background(), self._follow())

    async def _follow(self) -> None:
        client, caches = self.context.client, self.context.caches

        async def query(index: int, seconds: float) -> Page[str]:
            await self._held.wait()
            if not index:
                return await client.keys(self._prefix, mode="consistent")
            return await client.keys(self._prefix, index=index, wait=seconds)

        pages = follow(
            query,
            name=self._prefix,
            clock=self.context.clock,
            rng=self.context.rng,
            pause=PAUSE_SECONDS,
            on_restore=caches.restored.set,
            leadership=caches.leadership,
            proven=lambda page: self.context.keys.sentinel(self._prefix) in page.items,
        )
        async for page in pages:
            if self._held.is_set():
                self._see(page)
