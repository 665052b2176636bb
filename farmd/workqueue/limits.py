"""How long a retry waits: longer with each failure of its key, and all keys share a bucket of tokens."""

from __future__ import annotations

from collections.abc import Hashable

from store.ports import Clock

BASE_SECONDS = 0.005
LONGEST_SECONDS = 1000.0


class Failures:
    """Failures by key; the n-th waits 5 ms · 2ⁿ, and 1,000 s at most."""

    def __init__(self, base: float = BASE_SECONDS, longest: float = LONGEST_SECONDS) -> None:
        self._base = base
        self._longest = longest
        self._counts: dict[Hashable, int] = {}

    def wait(self, key: Hashable) -> float:
        """Count one more failure; seconds that its retry waits."""
        failures = self._counts.get(key, 0)
        self._counts[key] = failures + 1
        return min(self._longest, self._base * 2.0 ** min(failures, 64))

    def forget(self, key: Hashable) -> None:
        """Begin anew: the key had a success."""
        self._counts.pop(key, None)

    def count(self, key: Hashable) -> int:
        """How often it failed since its last success."""
        return self._counts.get(key, 0)


class Bucket:
    """Tokens that come back at a rate; whoever finds none takes the next one, and waits for it."""

    def __init__(self, clock: Clock, rate: float = 10.0, burst: int = 100) -> None:
        self._clock = clock
        self._rate = rate
        self._burst = float(burst)
        self._tokens = self._burst
        self._at = clock.mono()

    def wait(self) -> float:
        """Take a token; seconds until it is there."""
        now = self._clock.mono()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate) - 1.0
        self._at = now
        return max(0.0, -self._tokens / self._rate)
