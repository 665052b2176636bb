"""The index rules of blocking queries (R23), and that no watch ever spins."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from store.entry import Page
from store.errors import StoreError, StoreUnavailable
from store.watch import BACKOFF_LIMIT, FIRST_WAIT_LEAST, WAIT_SECONDS, follow
from tests.virtual import VirtualClock

WHOLE = math.inf


class Watched:
    """Follows a scripted server; ``pages`` are what came through, ``asked`` what was queried and when."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.asked: list[tuple[float, int, float]] = []
        self.pages: list[Page[str]] = []
        self.errors: list[StoreError] = []
        self.answers = 0
        self.restores = 0
        self.script: list[Page[str] | StoreError | float] = []
        self.fallback: Callable[[int], Page[str]] | None = None

    async def query(self, index: int, wait: float) -> Page[str]:
        """The next line of the script; a number is seconds before the line behind it, WHOLE all of them."""
        self.asked.append((self.clock.mono(), index, wait))
        while self.script:
            line = self.script.pop(0)
            if isinstance(line, float):
                await self.clock.sleep(wait if line == WHOLE else line)
                continue
            if isinstance(line, StoreError):
                raise line
            return line
        if self.fallback is None:
            await asyncio.Event().wait()
        assert self.fallback is not None
        return self.fallback(index)

    def answered(self) -> None:
        self.answers += 1

    def restored(self) -> None:
        self.restores += 1

    @asynccontextmanager
    async def following(self, pause: float = 0.0) -> AsyncIterator[None]:
        async def run() -> None:
            async for page in follow(
                self.query,
                name="t",
                clock=self.clock,
                rng=random.Random(1),
                pause=pause,
                on_error=self.errors.append,
                on_answer=self.answered,
                on_restore=self.restored,
            ):
                self.pages.append(page)

        task = asyncio.create_task(run())
        await self.clock.settle()
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    @property
    def indexes(self) -> list[int]:
        return [index for _, index, _ in self.asked]


async def test_the_first_page_comes_at_once_and_the_next_query_parks() -> None:
    watched = Watched()
    watched.script = [Page(7, ["a"])]
    async with watched.following():
        assert watched.pages == [Page(7, ["a"])]
        assert watched.indexes == [0, 7]
        assert watched.asked[0][2] == 0.0


async def test_r23_queries_of_one_process_do_not_all_end_at_once() -> None:
    watched = Watched()
    watched.script = [Page(7, ["a"]), WHOLE, Page(7, []), Page(8, ["b"])]
    watched.script += [StoreUnavailable("no"), Page(9, ["c"])]
    async with watched.following():
        await watched.clock.advance(WAIT_SECONDS + 10.0)
        waits = [wait for _, _, wait in watched.asked]
    assert watched.indexes == [0, 7, 7, 8, 0, 9]
    assert WAIT_SECONDS * FIRST_WAIT_LEAST <= waits[1] < WAIT_SECONDS, "the first one after a whole read"
    assert waits[2] == waits[3] == WAIT_SECONDS
    assert waits[5] < WAIT_SECONDS
    assert waits[1] != waits[5]


async def test_r23_an_unchanged_index_yields_nothing_but_is_an_answer() -> None:
    watched = Watched()
    watched.script = [Page(7, ["a"]), WHOLE, Page(7, ["a"]), WHOLE, Page(7, ["a"]), 3.0, Page(9, ["b"])]
    async with watched.following():
        await watched.clock.advance(120.0)
        assert watched.pages == [Page(7, ["a"]), Page(9, ["b"])]
        assert watched.answers == 4
        assert watched.indexes == [0, 7, 7, 7, 9]


async def test_r23_an_index_that_went_back_starts_again_from_zero() -> None:
    watched = Watched()
    watched.script = [Page(70, ["a"]), Page(5, ["b"]), Page(5, ["b"])]
    async with watched.following():
        assert watched.indexes == [0, 70, 0, 5]
        assert watched.pages == [Page(70, ["a"]), Page(5, ["b"])]


async def test_r23_a_wait_that_ends_early_with_another_index_right_after_tells_of_a_restore() -> None:
    watched = Watched()
    watched.script = [Page(70, ["a"]), 5.0, Page(70, [], unchanged=True), Page(50, ["b"])]
    async with watched.following():
        await watched.clock.advance(6.0)
        assert watched.restores == 1
        assert watched.indexes == [0, 70, 0, 50], "the old index would park for all of its wait"
        assert watched.pages == [Page(70, ["a"]), Page(50, ["b"])]


async def test_r23_after_an_answer_that_came_too_late_to_tell_all_is_read() -> None:
    """Such as in a process that was stopped: the restore may have ended the wait."""
    watched = Watched()
    watched.script = [Page(70, ["a"]), 100.0, Page(70, [], unchanged=True), Page(50, ["b"])]
    async with watched.following():
        await watched.clock.advance(101.0)
        assert watched.restores == 0
        assert watched.indexes == [0, 70, 0, 50]


async def test_r23_a_server_that_allows_no_long_waits_is_not_restored() -> None:
    watched = Watched()
    watched.script = [Page(70, ["a"]), *[5.0, Page(70, [], unchanged=True), Page(70, ["a"])] * 3]
    async with watched.following():
        await watched.clock.advance(20.0)
        assert watched.restores == 0
        assert watched.indexes == [0, 70] + [0, 70] * 3


async def test_r23_a_server_that_ends_all_waits_at_once_is_not_asked_all_the_time() -> None:
    watched = Watched()
    watched.fallback = lambda _: Page(7, ["a"])
    async with watched.following():
        await watched.clock.advance(10.0)
        assert len(watched.asked) <= 170


async def test_errors_are_told_and_retried_with_growing_bounded_backoff() -> None:
    watched = Watched()
    watched.script = [Page(7, ["a"]), *[StoreUnavailable("no")] * 12, Page(8, ["b"])]
    async with watched.following():
        await watched.clock.advance(120.0)
        assert len(watched.errors) == 12
        assert [page.index for page in watched.pages] == [7, 8]
    times = [at for at, _, _ in watched.asked]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times[1:14])]
    assert gaps[0] <= 0.5
    assert all(0 < gap <= 1.5 * BACKOFF_LIMIT for gap in gaps)
    assert max(gaps) > BACKOFF_LIMIT / 2
    # The server may be another one by now, and keep a query with the old index parked for all of its wait.
    assert watched.indexes[1:14] == [7] + [0] * 12, "after an error the whole prefix is read"


async def test_a_good_answer_of_a_parked_query_ends_the_backoff() -> None:
    watched = Watched()
    watched.script = [*[StoreUnavailable("no")] * 8, Page(7, ["a"]), Page(8, ["b"])]
    watched.script += [StoreUnavailable("no"), Page(9, ["c"])]
    async with watched.following():
        await watched.clock.advance(60.0)
        assert [page.index for page in watched.pages] == [7, 8, 9]
    times = [at for at, _, _ in watched.asked]
    assert times[11] - times[10] <= 0.5


async def test_r23_a_tree_is_not_read_all_the_time_while_its_parked_queries_alone_fail() -> None:
    """Such as by a proxy that answers them with an error, or by a limit of connections."""
    watched = Watched()
    watched.script = [Page(7, ["a"]), StoreUnavailable("429")] * 1000
    async with watched.following():
        await watched.clock.advance(600.0)
        assert watched.indexes.count(0) <= 600 / (BACKOFF_LIMIT / 2)


async def test_an_absent_index_never_spins() -> None:
    for pause in (0.0, 0.05, 3.0):
        watched = Watched()
        watched.fallback = lambda _: Page(0, [])
        async with watched.following(pause):
            await watched.clock.advance(10.0)
            assert len(watched.asked) <= 12, f"with a pause of {pause} s"
            assert len(watched.pages) == len(watched.asked)


async def test_an_index_that_always_moves_is_slowed_down_by_the_pause() -> None:
    watched = Watched()
    watched.fallback = lambda index: Page(index + 1, [])
    async with watched.following(pause=2.0):
        await watched.clock.advance(20.0)
        assert len(watched.pages) == 11


async def test_what_changes_during_the_pause_comes_as_one_page() -> None:
    watched = Watched()
    watched.script = [Page(7, ["a"])]
    async with watched.following(pause=5.0):
        watched.script = [Page(90, ["a", "b", "c"])]
        await watched.clock.advance(4.9)
        assert len(watched.pages) == 1
        await watched.clock.advance(0.1)
        assert watched.pages[1:] == [Page(90, ["a", "b", "c"])]
