"""How long a retry waits: longer with each failure of its key, and all keys share a bucket of tokens."""

from __future__ import annotations

from collections.abc import Hashable

from store.ports import Clock

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
