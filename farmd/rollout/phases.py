"""How many rollouts of this farm are in which phase, as a metric."""

from __future__ import annotations

from collections import Counter

from farmd.observe.metrics import ROLLOUT_PHASES
from store.ports import Recorder


class Phases:
    """The phase of each rollout that a worker of this farm saw last."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._now: dict[str, str] = {}

    def see(self, rollout: str, phase: str) -> None:
        """A rollout is in this phase; ``""``: no worker of this farm works on it any more."""
        if phase == self._now.get(rollout, ""):
            return
        if phase:
            self._now[rollout] = phase
        else:
            self._now.pop(rollout, None)
        counts = Counter(self._now.values())
        for each in ROLLOUT_PHASES:
            self._recorder.set("farmd_rollouts", counts[each], phase=each)
