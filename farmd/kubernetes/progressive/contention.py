"""Notices who writes bounds anew that a stage has set, so that people are told of a tool that always does.

One write is a person's, and becomes the final bound of its revision; the stage's bound stands again after it.
What a worker has seen is lost with its claim: the next one begins to count, and ends nothing before it knows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from farmd.kubernetes.progressive import bounds
from farmd.kubernetes.progressive.model import RevisionBounds, Snapshot, Write

MOST_REWRITES = 3
WINDOW_SECONDS = 600.0


@dataclass(slots=True)
class Contention:
    """What one worker saw since ``since``, in seconds since the epoch by the API server's clock."""

    since: float
    _last: dict[str, set[tuple[str, str]]] = field(default_factory=dict)
    _seen: dict[str, list[tuple[float, str]]] = field(default_factory=dict)

    def note(self, knative: Snapshot, writes: Iterable[Write]) -> None:
        """Note what is about to be written, and who wrote there after this worker."""
        for name in [each.revision for each in writes if isinstance(each, RevisionBounds)]:
            found = bounds.others(knative, name)
            new = found - self._last.get(name, found)
            self._seen.setdefault(name, []).extend((knative.now, manager) for manager, _ in sorted(new))
            self._last[name] = found

    def told(self, now: float) -> str | None:
        """Who writes bounds again and again; empty: nobody; None: this worker has not seen enough to say."""
        for name, seen in sorted(self._seen.items()):
            self._seen[name] = recent = [each for each in seen if now - each[0] < WINDOW_SECONDS]
            if len(recent) >= MOST_REWRITES:
                managers = ", ".join(sorted({manager for _, manager in recent}))
                return f"the bounds of {name} are written by {managers}, too"
        return "" if now - self.since >= WINDOW_SECONDS else None
