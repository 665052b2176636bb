"""A queue of keys that lets one worker at a time process a key (client-go's rate-limiting work queue).

What must never break: a key is never with two workers; any number of additions while a key is processed
leads to exactly one more turn; of two delayed additions of a key the earlier one counts.

In a farm the queue merges the events of a job's objects: many events, one wake of the job's worker. Retries
after a failure are the worker's own (``farmd.work.worker``), because only a worker whose claim is in force
may write. ``add_rate_limited`` serves programs that run a ``JobController`` by themselves.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

from farmd.runtime import wake
from store.ports import Clock

# How long a retry waits: longer with each failure of its key, and all keys share a bucket of tokens.

BASE_SECONDS = 0.005
LONGEST_SECONDS = 1000.0
# Tokens a second, and as many at once.
RATE, BURST = 10.0, 100.0


class Failures:
    """Failures by key; the n-th waits 5 ms · 2ⁿ, and 1,000 s at most."""

    def __init__(self) -> None:
        self._counts: dict[Hashable, int] = {}

    def wait(self, key: Hashable) -> float:
        """Count one more failure; seconds that its retry waits."""
        failures = self._counts.get(key, 0)
        self._counts[key] = failures + 1
        return min(LONGEST_SECONDS, BASE_SECONDS * 2.0 ** min(failures, 64))

    def forget(self, key: Hashable) -> None:
        """Begin anew: the key had a success."""
        self._counts.pop(key, None)

    def count(self, key: Hashable) -> int:
        """How often it failed since its last success."""
        return self._counts.get(key, 0)


class Bucket:
    """Tokens that come back at a rate; whoever finds none takes the next one, and waits for it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tokens = BURST
        self._at = clock.mono()

    def wait(self) -> float:
        """Take a token; seconds until it is there."""
        now = self._clock.mono()
        self._tokens = min(BURST, self._tokens + (now - self._at) * RATE) - 1.0
        self._at = now
        return max(0.0, -self._tokens / RATE)


K = TypeVar("K", bound=Hashable)


class WorkQueue(Generic[K]):
    """Keys that wait for a worker. ``get`` a key, process it, then ``forget`` it or ``add_rate_limited`` it
    again, and always say ``done``; ``turn`` does that for a block.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures = Failures()
        self._bucket = Bucket(clock)
        self._keys: deque[K] = deque()
        self._dirty: set[K] = set()
        self._processing: set[K] = set()
        self._later: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._order = itertools.count()
        self._changed = asyncio.Event()
        self.shutting_down = False

    def __len__(self) -> int:
        """How many keys wait for a worker now."""
        return len(self._keys)

    def add(self, key: K) -> None:
        """Have a key processed, once more if it is being processed."""
        if self.shutting_down or key in self._dirty:
            return
        self._dirty.add(key)
        if key not in self._processing:
            self._list(key)

    def add_after(self, key: K, seconds: float) -> None:
        """The same after some time; an earlier time that was set before stays."""
        if self.shutting_down:
            return
        if seconds <= 0:
            self.add(key)
            return
        ready = self._clock.mono() + seconds
        if ready < self._later.get(key, float("inf")):
            self._later[key] = ready
            heapq.heappush(self._heap, (ready, next(self._order), key))
            self._changed.set()

    def add_rate_limited(self, key: K) -> None:
        """The same after a failure, when both the key's own wait and that of the bucket are over."""
        self.add_after(key, max(self._failures.wait(key), self._bucket.wait()))

    def forget(self, key: K) -> None:
        """Forget the failures of a key; ``done`` is still due."""
        self._failures.forget(key)

    def num_requeues(self, key: K) -> int:
        """How often a key was added after a failure since it was forgotten."""
        return self._failures.count(key)

    async def get(self) -> K | None:
        """The next key, which is processed from now on; None: the queue is shut down and empty."""
        while True:
            self._take_due()
            if self._keys:
                key = self._keys.popleft()
                self._dirty.discard(key)
                self._processing.add(key)
                return key
            if self.shutting_down:
                return None
            self._changed.clear()
            due = self._heap[0][0] - self._clock.mono() if self._heap else None
            await wake.wait(self._changed, self._clock, due)

    def done(self, key: K) -> None:
        """A key is not processed any more."""
        self._processing.discard(key)
        if key in self._dirty:
            self._list(key)

    def shut_down(self) -> None:
        """Take no more keys, and drop those that were to come later; ``get`` gives out the others."""
        self.shutting_down = True
        self._later.clear()
        self._heap.clear()
        self._changed.set()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[K | None]:
        """The next key for a block: forgotten if the block succeeds, added again later if it raises."""
        key = await self.get()
        if key is None:
            yield None
            return
        try:
            yield key
        except Exception:
            self.add_rate_limited(key)
            raise
        else:
            self.forget(key)
        finally:
            self.done(key)

    def _list(self, key: K) -> None:
        self._keys.append(key)
        self._changed.set()

    def _take_due(self) -> None:
        now = self._clock.mono()
        while self._heap and self._heap[0][0] <= now:
            ready, _, key = heapq.heappop(self._heap)
            if self._later.get(key) == ready:
                del self._later[key]
                self.add(key)
