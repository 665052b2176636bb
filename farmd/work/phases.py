"""How many items of a kind this farm works on, by where they are, as a metric."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from store.ports import Recorder


class Phases:
    """The phase of each item that a worker of this farm saw last: the ``label`` of a ``metric``, which has
    ``labels`` besides.
    """

    def __init__(
        self, recorder: Recorder, metric: str, label: str, phases: Sequence[str], **labels: str
    ) -> None:
        self._recorder = recorder
        self._metric, self._label, self._phases, self._labels = metric, label, phases, labels
        self._now: dict[str, str] = {}
        self._count()

    def see(self, item: str, phase: str) -> None:
        """An item is in this phase; ``""``: no worker of this farm works on it any more."""
        if phase == self._now.get(item, ""):
            return
        if phase:
            self._now[item] = phase
        else:
            self._now.pop(item, None)
        self._count()

    def _count(self) -> None:
        counts = Counter(self._now.values())
        for each in self._phases:
            self._recorder.set(self._metric, counts[each], **self._labels, **{self._label: each})
