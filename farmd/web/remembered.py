"""Addresses of processes that may be gone, for Prometheus: it alerts of targets that do not answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from store.presence import host


@dataclass(eq=False)
class Remembered:
    """Where processes were that cannot be asked any more: an address by name, and when it was seen last."""

    seen: dict[str, tuple[str, float]] = field(default_factory=dict)

    def addresses(self, present: Mapping[str, str], now: float) -> Mapping[str, tuple[str, float]]:
        """Those that are present, and those that were."""
        self.seen |= {name: (address, now) for name, address in present.items() if host(address)}
        return self.seen

    def forget(self, gone: Iterable[str]) -> None:
        """Drop what is no target any more."""
        for name in tuple(gone):
            del self.seen[name]
