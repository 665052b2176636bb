"""Turns single answers of a check into the health of one start: thresholds, and damping of flaps. Pure.

Published health must be true and must not flood the store. Every published change costs a token, tokens
come back slowly, and the last token is only for a change to ill health. So a pod is never shown as passing
because changes are held back (p2 shows such a pod as unknown, which blocks rollouts without a reason).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import msgspec

from store.manifests import HealthCheck
from store.reality import Health, HealthState
from store.words import count_of

RANK: dict[HealthState, int] = {"critical": 0, "unknown": 1, "warning": 2, "passing": 3}
BUCKET = 16.0
REFILL = 4 / 60
QUICK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class HealthRun:
    """Equal answers in a row, and the resulting state. ``counted``: when a bad answer last counted."""

    state: HealthState = "unknown"
    reason: str = ""
    passes: int = 0
    failures: int = 0
    counted: float = -math.inf


def judge(check: HealthCheck, before: HealthRun, good: bool, reason: str, *, age: float) -> HealthRun:
    """The verdict after one more answer; ``age`` is seconds since the start of the workload.

    Checks come faster than ``interval`` until the first verdict, so that a good start is seen at once;
    bad answers still count only once an interval.
    """
    if good:
        passes = before.passes + 1
        if before.state == "passing" or passes >= check.passes:
            return HealthRun("passing", reason, passes)
        return replace(before, passes=passes, failures=0)
    if age < check.start_period or age < before.counted + check.interval * 0.8:
        return replace(before, passes=0)
    failures = before.failures + 1
    if before.state == "critical" or failures >= check.failures:
        return HealthRun("critical", reason, 0, failures, age)
    return replace(before, passes=0, failures=failures, counted=age)


def pause(check: HealthCheck, verdict: HealthRun) -> float:
    """Seconds until the next check, before jitter."""
    return min(check.interval, QUICK_SECONDS) if verdict.state == "unknown" else check.interval


class Spell:
    """Since when a start has been unhealthy; a short time of passing in between does not end that.

    Farms replace pods that are critical for long. Without this a pod that flaps would never be replaced.
    """

    def __init__(self, health: Health) -> None:
        self._since = health.since if health.state == "critical" else 0.0
        self._passed = -math.inf

    def turned(self, state: HealthState, *, now: float, mono: float, settle: float) -> float:
        """Since when the start has the state that it just changed to: ``now``, or an earlier time if it
        had passed for less than ``settle`` seconds."""
        if state != "critical":
            self._passed = mono
            return now
        if not self._since or mono - self._passed >= settle:
            self._since = now
        return self._since


class Damper:
    """Decides which changes of one instance's health are published; one token each."""

    def __init__(self, now: float, *, bucket: float = BUCKET, refill: float = REFILL) -> None:
        self._bucket = bucket
        self._refill = refill
        self._tokens = bucket
        self._filled = now
        self._held = 0
        self._seen = Health()
        self.published = Health()

    def begin(self, health: Health) -> None:
        """Publish the health of a new (or adopted) start without damping."""
        self._held = 0
        self._seen = self.published = health

    def offer(self, current: Health, now: float) -> Health:
        """The health to publish, given the current health."""
        self._tokens = min(self._bucket, self._tokens + (now - self._filled) * self._refill)
        self._filled = now
        if current == self._seen == self.published:
            return self.published
        if current != self._seen:
            self._seen = current
            self._held += 1
        if _same(current, self.published):
            return self.published
        if self._tokens >= self._price(current):
            self._tokens -= 1
            self.published = current if self._held <= 1 else self._flapping(current)
            self._held = 0
        return self.published

    def retry_in(self) -> float:
        """Seconds until a held-back change can be published; infinity if there is none."""
        if _same(self._seen, self.published):
            return math.inf
        return max(0.0, self._price(self._seen) - self._tokens) / self._refill

    def _price(self, health: Health) -> float:
        worse = RANK[health.state] < RANK[self.published.state]
        return 1.0 if worse else 2.0

    def _flapping(self, health: Health) -> Health:
        note = f"flapping, {count_of(self._held, 'change')} since the last shown"
        return msgspec.structs.replace(health, reason=f"{note}; {health.reason}" if health.reason else note)


def _same(current: Health, published: Health) -> bool:
    """Whether both say the same; a published reason may begin with the note about flapping."""
    return current.state == published.state and published.reason.endswith(current.reason)
