"""Notices when a newcomer last grew, so that a stage without progress fails some day.

What a worker has seen is lost with its claim: the next one begins to count, and gives a stage all of its
time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from farmd.kubernetes.progressive import reading
from farmd.kubernetes.progressive.model import Snapshot
from farmd.kubernetes.progressive.traffic import actual


@dataclass(slots=True)
class Growth:
    """When one worker last saw a newcomer grow, in seconds since the epoch by the API server's clock."""

    risen: float
    _target: str = ""
    _most: int = 0

    def seen(self, knative: Snapshot) -> Snapshot:
        """The same, with when the newcomer last grew. Pods that come back after they went are no growth: a
        newcomer that breaks again and again would never fail.
        """
        record = knative.orchestrator
        names = reading.names(record.spec.target_revisions) if record is not None else set()
        pods, target = sum(actual(knative, name) or 0 for name in names), ",".join(sorted(names))
        if target != self._target or pods > self._most:
            self.risen = knative.now
        self._most = max(pods, self._most if target == self._target else 0)
        self._target = target
        return replace(knative, risen=self.risen)
