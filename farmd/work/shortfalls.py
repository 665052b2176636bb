"""The owners of a farm that have fewer available pods than they should, for the metrics.

A fleet has ten thousand owners, so only those that fall short are exported by name, and of a failure of all
of them no more than ``MOST``; their number is always exported.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from store.ports import Recorder

MOST = 20
DESIRED, AVAILABLE = "farmd_owner_desired_pods", "farmd_owner_available_pods"


@dataclass(eq=False)
class Shortfalls:
    """Those of one kind: by item their name, their desired pods, and the available ones."""

    kind: str
    _short: dict[str, tuple[str, int, int]] = field(default_factory=dict, init=False)
    _exported: set[str] = field(default_factory=set, init=False)

    def see(self, item: str, name: str, desired: int, available: int) -> None:
        """Note how many pods an owner should have, and has."""
        if available < desired:
            self._short[item] = name, desired, available
        else:
            self.forget(item)

    def forget(self, item: str) -> None:
        """Drop an owner that this farm does not look after, or that should have no pods."""
        self._short.pop(item, None)

    def publish(self, recorder: Recorder) -> None:
        """Export the worst: first owners without any pod, then those that miss the most pods."""
        worst = sorted(self._short.values(), key=lambda each: (each[2] > 0, each[2] - each[1], each[0]))
        shown = {name: (desired, available) for name, desired, available in worst[:MOST]}
        recorder.set("farmd_owners_short", len(self._short), kind=self.kind)
        for name in self._exported - shown.keys():
            recorder.forget(DESIRED, kind=self.kind, owner=name)
            recorder.forget(AVAILABLE, kind=self.kind, owner=name)
        for name, (desired, available) in shown.items():
            recorder.set(DESIRED, desired, kind=self.kind, owner=name)
            recorder.set(AVAILABLE, available, kind=self.kind, owner=name)
        self._exported = set(shown)
