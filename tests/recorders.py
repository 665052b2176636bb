"""A metric recorder that remembers, for tests of what is counted."""

from __future__ import annotations

from collections import Counter


class CountingRecorder:
    """A ``store.ports.Recorder``; keys are the metric's name and its labels' values in order of name."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, ...]] = Counter()
        self.values: dict[tuple[str, ...], float] = {}

    def count(self, name: str, value: float = 1, /, **labels: str) -> None:
        self.counts[_key(name, labels)] += int(value)

    def observe(self, name: str, seconds: float, /, **labels: str) -> None:
        self.counts[_key(name, labels)] += 1

    def set(self, name: str, value: float, /, **labels: str) -> None:
        self.values[_key(name, labels)] = value

    def forget(self, name: str, /, **labels: str) -> None:
        key = _key(name, labels)
        del (self.values if key in self.values else self.counts)[key]


def _key(name: str, labels: dict[str, str]) -> tuple[str, ...]:
    return (name, *(labels[label] for label in sorted(labels)))
