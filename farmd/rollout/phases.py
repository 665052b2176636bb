"""How many rollouts of this farm are in which phase, as a metric, by what they scale."""

from __future__ import annotations

from collections import Counter

from farmd.observe.metrics import ROLLOUT_PHASES
from store.ports import Recorder


class Phases:
    """The phase of each rollout of a ``target`` that a worker of this farm saw last."""

    def __init__(self, recorder: Recorder, target: str) -> None:
        self._recorder, self._target = recorder, target
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
            self._recorder.set("farmd_rollouts", counts[each], target=self._target, phase=each)
