"""Packs groups of operations into transactions and commits them (R12, R25; p2
``pkg/store/consul/transaction``).

A transaction holds the fence, whole groups, and a trailer that is built from its groups (the audit
record). Several are in flight at once. A rejected transaction is never repeated unchanged, and an
unanswered one never without a read.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import msgspec

from store.consul.client import ConsulClient
from store.entry import Entry
from store.errors import (
    OutcomeUnknown,
    StoreError,
    StoreUnavailable,
    TooLarge,
    TransactionRejected,
)
from store.operations import MAX_BODY_BYTES, MAX_OPERATIONS, Operation
from store.ports import Clock

T = TypeVar("T")

ROUTINE_BYTES = 60 * 1024
IN_FLIGHT = 8
ATTEMPTS = 4


class Group(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """Operations that must be committed together, and their subject."""

    operations: tuple[Operation, ...]
    subject: T


@dataclass(frozen=True, slots=True)
class Batch(Generic[T]):
    """One transaction: the fence, then the operations of the groups in order, then the trailer."""

    operations: list[Operation]
    groups: list[Group[T]]

    def failed(self, rejected: TransactionRejected) -> list[Group[T]]:
        """The groups whose own operations a rejection names."""
        return [group for group in self.groups if rejected.refused(group.operations)]


@dataclass(frozen=True, slots=True)
class Result(Generic[T]):
    """The outcome of one batch: committed, rejected, or failed with an error."""

    batch: Batch[T]
    entries: list[Entry] = field(default_factory=list)
    rejected: TransactionRejected | None = None
    error: StoreError | None = None

    @property
    def committed(self) -> bool:
        """Whether the batch was committed."""
        return self.rejected is None and self.error is None

    @property
    def index(self) -> int:
        """The index of the commit, which all written keys share."""
        return max((entry.modify_index for entry in self.entries), default=0)

    def indexes(self) -> Mapping[str, int]:
        """The index of each key: an unchanged key keeps its own, any other key has the commit's."""
        commit = self.index
        return defaultdict(lambda: commit, ((entry.key, entry.modify_index) for entry in self.entries))


def pack(
    groups: Iterable[Group[T]],
    *,
    fence: Sequence[Operation] = (),
    trailer: Callable[[list[Group[T]]], list[Operation]] | None = None,
    trailer_bytes: Callable[[Group[T]], int] = lambda _: 64,
    max_operations: int = MAX_OPERATIONS,
    max_bytes: int = ROUTINE_BYTES,
) -> Iterator[Batch[T]]:
    """Fill transactions with whole groups, in order; lazily, so that the first is sent while others fill.

    ``trailer`` builds the last operation of a transaction from its groups; ``trailer_bytes`` is the size
    that one group adds to the trailer.

    A group of more than ``max_bytes`` has a transaction of its own.

    Raises:
        TooLarge: a single group does not fit into a transaction.
    """
    room = max_operations - len(fence) - (1 if trailer else 0)
    fixed = sum(operation.size() for operation in fence) + 512
    space, most = max_bytes - fixed, MAX_BODY_BYTES - fixed
    current: list[Group[T]] = []
    count = size = 0

    def close() -> Batch[T]:
        body = [*fence, *(operation for group in current for operation in group.operations)]
        return Batch(body + (trailer(current) if trailer else []), current)

    for group in groups:
        needs = sum(operation.size() for operation in group.operations) + trailer_bytes(group)
        if len(group.operations) > room or needs > most:
            raise TooLarge(
                f"{len(group.operations)} operations of {needs} bytes do not fit into one transaction",
                operations=len(group.operations),
                bytes=needs,
            )
        if current and (count + len(group.operations) > room or size + needs > space):
            yield close()
            current, count, size = [], 0, 0
        current.append(group)
        count += len(group.operations)
        size += needs
    if current:
        yield close()


async def submit(
    client: ConsulClient,
    batches: Iterable[Batch[T]],
    *,
    clock: Clock,
    may_write: Callable[[], None] = lambda: None,
    committed: Callable[[Result[T]], None] = lambda _: None,
    in_flight: int = IN_FLIGHT,
) -> list[Result[T]]:
    """Commit batches, several at a time, and return the outcome of each, in order.

    ``may_write`` is called right before each send and raises to stop (R2); ``committed`` is called after
    each commit. A request that never left is sent again, a few times; after any other failure the
    caller must read and plan again.

    Raises:
        StoreError: from ``may_write``, or a refusal that concerns all batches (access denied).
    """
    submission = _Submission(client, clock, may_write, committed, in_flight, iter(enumerate(batches)))
    submission.begin()
    await submission.over()
    return [submission.results[position] for position in sorted(submission.results)]


@dataclass(slots=True)
class _Submission(Generic[T]):
    """The state of one ``submit``, without a reference cycle: it is freed when it ends.

    As garbage its thousands of operations would wait for the collector, which then blocks the loop for long.
    """

    client: ConsulClient
    clock: Clock
    may_write: Callable[[], None]
    committed: Callable[[Result[T]], None]
    in_flight: int
    queue: Iterator[tuple[int, Batch[T]]]
    results: dict[int, Result[T]] = field(default_factory=dict)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    stopped: bool = False

    def begin(self) -> None:
        """Start one more task that takes batches from the queue."""
        self.tasks.append(asyncio.create_task(self._drain()))

    async def over(self) -> None:
        """Return when no request is under way, or raise the first error then."""
        tasks = self.tasks
        try:
            # Requests in flight are awaited also after an error: cancelled, their outcome would be unknown.
            while pending := [task for task in tasks if not task.done()]:
                await asyncio.wait(pending)
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        tasks.clear()  # a task refers to its error, whose traceback refers to this submission
        errors, ended = [error for error in ended if error is not None], []
        if errors:
            raise errors.pop(0)  # not by a name: it would refer to itself

    async def _drain(self) -> None:
        while not self.stopped and (following := next(self.queue, None)) is not None:
            position, batch = following
            if len(self.tasks) < self.in_flight:
                self.begin()
            try:
                result = await commit(self.client, batch, clock=self.clock, may_write=self.may_write)
            except StoreError:
                self.stopped = True
                raise
            self.results[position] = result
            if result.committed:
                self.committed(result)


async def commit(
    client: ConsulClient, batch: Batch[T], *, clock: Clock, may_write: Callable[[], None] = lambda: None
) -> Result[T]:
    """Commit one batch; see ``submit``."""
    for attempt in range(ATTEMPTS):
        may_write()
        try:
            return Result(batch, await client.transaction(batch.operations))
        except TransactionRejected as rejected:
            return Result(batch, rejected=rejected)
        except OutcomeUnknown as unknown:
            return Result(batch, error=unknown)
        except TooLarge as refused:
            if len(batch.operations) <= MAX_OPERATIONS:
                raise
            # The client has learned of this server's limit: what is planned again fits.
            return Result(batch, error=StoreUnavailable(refused.message))
        except StoreUnavailable as never_left:
            if attempt == ATTEMPTS - 1:
                return Result(batch, error=never_left)
            await clock.sleep(0.1 * 2**attempt)
    raise AssertionError("unreachable")
