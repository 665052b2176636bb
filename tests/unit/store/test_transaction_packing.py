"""Groups of operations become full transactions (R25), and rejections find their way back (R12)."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store import operations
from store.entry import Entry
from store.errors import (
    AccessDenied,
    OperationError,
    OutcomeUnknown,
    SessionSuspended,
    StoreUnavailable,
    TooLarge,
    TransactionRejected,
)
from store.operations import MAX_BODY_BYTES, MAX_OPERATIONS, Operation
from store.transaction import ATTEMPTS, ROUTINE_BYTES, Batch, Group, Result, commit, pack, submit
from tests.garbage import garbage
from tests.virtual import VirtualClock

FENCE = [operations.check_session("lock", "s"), operations.check_index("lock", 1)]


def group(subject: int, count: int, size: int = 10) -> Group[int]:
    return Group(tuple(operations.put(f"k/{subject}/{n}", b"x" * size) for n in range(count)), subject)


def trailer(groups: list[Group[int]]) -> list[Operation]:
    return [operations.put("audit", ",".join(str(g.subject) for g in groups).encode())]


def packed(groups: Sequence[Group[int]], **options: object) -> list[Batch[int]]:
    return list(pack(groups, fence=FENCE, trailer=trailer, **options))  # type: ignore[arg-type]


# -- packing -----------------------------------------------------------------------------------
@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(0, 3000)), max_size=60),
    st.integers(24, MAX_OPERATIONS),
)
def test_r25_groups_stay_whole_in_order_within_the_limits(
    shapes: list[tuple[int, int]], max_operations: int
) -> None:
    groups = [group(number, count, size // count) for number, (count, size) in enumerate(shapes)]
    batches = packed(groups, max_operations=max_operations)
    assert [g for batch in batches for g in batch.groups] == groups
    for batch in batches:
        assert len(batch.operations) <= max_operations
        assert sum(operation.size() for operation in batch.operations) <= ROUTINE_BYTES
        assert batch.groups
        body = [operation for g in batch.groups for operation in g.operations]
        assert batch.operations == [*FENCE, *body, *trailer(batch.groups)]


@given(st.lists(st.integers(1, 8), min_size=1, max_size=100))
def test_r25_transactions_are_filled(counts: list[int]) -> None:
    batches = packed([group(number, count) for number, count in enumerate(counts)])
    for full, following in itertools.pairwise(batches):
        assert len(full.operations) + len(following.groups[0].operations) > MAX_OPERATIONS


def test_nothing_to_do_is_no_transaction() -> None:
    assert packed([]) == []


def test_the_first_transaction_is_there_before_the_last_group_is_built() -> None:
    built = []

    def lazily() -> object:
        for number in range(100):
            built.append(number)
            yield group(number, 3)

    first = next(iter(pack(lazily(), fence=FENCE)))  # type: ignore[arg-type, var-annotated]
    assert len(first.groups) == 20
    assert len(built) == 21


@pytest.mark.parametrize("oversized", [group(1, MAX_OPERATIONS), group(1, 1, MAX_BODY_BYTES)])
def test_a_group_that_fits_into_no_transaction_is_refused(oversized: Group[int]) -> None:
    with pytest.raises(TooLarge):
        packed([group(0, 1), oversized])


def test_a_group_of_many_bytes_has_a_transaction_of_its_own() -> None:
    groups = [group(0, 1), group(1, 1, ROUTINE_BYTES), group(2, 1)]
    assert [[each.subject for each in batch.groups] for batch in packed(groups)] == [[0], [1], [2]]


@given(st.lists(st.integers(1, 6), min_size=1, max_size=40), st.data())
def test_r12_a_failed_operation_names_its_own_group(counts: list[int], data: st.DataObject) -> None:
    for batch in packed([group(number, count) for number, count in enumerate(counts)]):
        operation = data.draw(st.sampled_from(batch.operations))
        rejected = TransactionRejected((OperationError(0, "no", operation),))
        assert batch.failed(rejected) == [g for g in batch.groups if operation in g.operations]
        assert rejected.refused(FENCE) == (operation in FENCE)


def test_r12_several_failures_of_one_group_name_it_once() -> None:
    (batch,) = packed([group(0, 3), group(1, 3)])
    errors = [OperationError(i, "no", batch.operations[i]) for i in (0, 5, 6, 7, 8)]
    assert [g.subject for g in batch.failed(TransactionRejected(tuple(errors)))] == [1]


# -- committing --------------------------------------------------------------------------------
class Client:
    """Answers transactions as the test says; by default they succeed."""

    def __init__(self, answer: Callable[[int], object] = lambda _: None) -> None:
        self.sent: list[list[Operation]] = []
        self.in_flight = self.most_in_flight = 0
        self.finished: list[int] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self._answer = answer

    async def transaction(self, items: Sequence[Operation]) -> list[Entry]:
        number = len(self.sent)
        self.sent.append([*items])
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await self.gate.wait()
            await asyncio.sleep(0)
            outcome = self._answer(number)
            if isinstance(outcome, asyncio.Event):
                await outcome.wait()
            if isinstance(outcome, Exception):
                try:
                    raise outcome
                finally:
                    del outcome  # its traceback refers to this frame
            self.finished.append(number)
            return [Entry(op.key, b"", 100 + number) for op in items]
        finally:
            self.in_flight -= 1


def batches_of(count: int) -> list[Batch[int]]:
    return packed([group(number, 40) for number in range(count)])


async def test_a_transaction_that_never_left_is_sent_again() -> None:
    client = Client(lambda n: StoreUnavailable("no") if n < 2 else None)
    result = await commit(client, batches_of(1)[0], clock=_running())  # type: ignore[arg-type]
    assert result.committed
    assert len(client.sent) == 3
    assert result.index == 102


def _running() -> VirtualClock:
    class Instant(VirtualClock):
        async def sleep(self, seconds: float) -> None:
            await asyncio.sleep(0)

    return Instant()


async def test_it_gives_up_after_a_few_tries() -> None:
    client = Client(lambda _: StoreUnavailable("no"))
    result = await commit(client, batches_of(1)[0], clock=_running())  # type: ignore[arg-type]
    assert not result.committed
    assert isinstance(result.error, StoreUnavailable)
    assert len(client.sent) == ATTEMPTS


@pytest.mark.parametrize("outcome", [TransactionRejected((OperationError(2, "no"),)), OutcomeUnknown("?")])
async def test_r12_a_rejected_or_unanswered_transaction_is_never_sent_again(outcome: Exception) -> None:
    client = Client(lambda _: outcome)
    (result,) = await submit(client, batches_of(1), clock=_running())  # type: ignore[arg-type]
    assert outcome in (result.rejected, result.error)
    assert not result.committed
    assert len(client.sent) == 1


async def test_r2_before_each_send_it_is_asked_whether_writing_is_allowed() -> None:
    client = Client(lambda n: StoreUnavailable("no") if n == 0 else None)
    asked = []

    def may_write() -> None:
        asked.append(len(client.sent))
        if len(asked) == 2:
            raise SessionSuspended("no")

    with pytest.raises(SessionSuspended):
        await commit(client, batches_of(1)[0], clock=_running(), may_write=may_write)  # type: ignore[arg-type]
    assert asked == [0, 1]
    assert len(client.sent) == 1


async def test_r25_several_transactions_are_in_flight_and_results_come_in_order() -> None:
    client = Client()
    batches = batches_of(20)
    told: list[Result[int]] = []
    results = await submit(client, batches, clock=_running(), in_flight=4, committed=told.append)  # type: ignore[arg-type]
    assert client.most_in_flight == 4
    assert [result.batch for result in results] == batches
    assert sorted(r.batch.groups[0].subject for r in told) == list(range(20))


async def test_what_was_submitted_is_freed_without_the_collector() -> None:
    with garbage() as left:
        await submit(Client(), batches_of(20), clock=_running())  # type: ignore[arg-type]
    assert [each for each in left if isinstance(each, Batch | Result | asyncio.Task)] == []


async def test_what_could_not_be_submitted_is_freed_without_the_collector() -> None:
    client = Client(lambda n: AccessDenied("no") if n == 3 else None)
    with garbage() as left:
        with suppress(AccessDenied):
            await submit(client, batches_of(20), clock=_running())  # type: ignore[arg-type]
        await asyncio.sleep(0)  # until then the loop holds the answer that it just gave
    kinds = Batch | Result | asyncio.Task | AccessDenied
    assert [each for each in left if isinstance(each, kinds)] == []


async def test_one_rejection_stops_no_other_batch() -> None:
    client = Client(lambda n: TransactionRejected((OperationError(2, "no"),)) if n == 1 else None)
    results = await submit(client, batches_of(5), clock=_running(), in_flight=2)  # type: ignore[arg-type]
    assert [result.committed for result in results] == [True, False, True, True, True]


async def test_r12_what_was_sent_before_writing_stopped_is_still_learnt() -> None:
    """Nothing more is sent after a refusal for all, and no commit that was under way is forgotten."""
    slow = asyncio.Event()
    client = Client(lambda n: AccessDenied("no") if n == 1 else slow)
    told: list[int] = []
    running = asyncio.ensure_future(
        submit(
            client,  # type: ignore[arg-type]
            batches_of(8),
            clock=_running(),
            in_flight=3,
            committed=lambda result: told.append(result.batch.groups[0].subject),
        )
    )
    while client.in_flight != 2:
        await asyncio.sleep(0)
    slow.set()
    with pytest.raises(AccessDenied):
        await running
    assert client.finished == [0, 2]
    assert sorted(told) == [0, 2]
    assert len(client.sent) == 3


async def test_cancelling_stops_all() -> None:
    client = Client()
    client.gate.clear()
    running = asyncio.ensure_future(submit(client, batches_of(8), clock=_running()))  # type: ignore[arg-type]
    while not client.sent:
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert client.in_flight == 0
