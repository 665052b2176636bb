"""Records metrics for Prometheus, and refuses what ``farmd.observe.metrics`` does not declare."""

from __future__ import annotations

import itertools
import math

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from farmd.observe.metrics import OPEN_LABELS, Kind, Metric, Role, table

# The requests to Consul would be some 500 series: only those that occur are exported.
_EXPORTED_FROM_THE_START = 100


class UnknownMetric(Exception):
    """Code used a metric, label or label value that is not in the table: a bug, never input."""


class Metrics:
    """Records the metrics of a role into one registry; satisfies ``store.ports.Recorder``.

    Metrics without labels, and counters and histograms of few series, are exported from the start: "never
    happened" is 0, and Prometheus sees the first increase.

    Raises:
        UnknownMetric: from all methods, for a metric or label that is not in ``table``, or not of the role.
    """

    def __init__(self, registry: CollectorRegistry, role: Role = "both") -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry
        self._rows = {row.name: row for row in table() if "both" in (role, row.role) or role == row.role}
        self._made = {name: _make(row, registry) for name, row in self._rows.items()}
        self._known: dict[tuple[object, ...], Counter | Gauge | Histogram] = {}
        for row in self._rows.values():
            parts = len(row.buckets) if row.kind == "histogram" else 1
            series = math.prod(map(len, row.labels.values())) * parts
            if row.kind != "gauge" and row.labels and series <= _EXPORTED_FROM_THE_START:
                for values in itertools.product(*row.labels.values()):
                    self._labelled(row.name, row.kind, dict(zip(row.labels, values, strict=True)))

    def count(self, name: str, value: float = 1, /, **labels: str) -> None:
        """Add to a counter."""
        found = self._labelled(name, "counter", labels)
        assert isinstance(found, Counter)
        found.inc(value)

    def observe(self, name: str, seconds: float, /, **labels: str) -> None:
        """Add one observation to a histogram."""
        found = self._labelled(name, "histogram", labels)
        assert isinstance(found, Histogram)
        found.observe(seconds)

    def set(self, name: str, value: float, /, **labels: str) -> None:
        """Set a gauge."""
        found = self._labelled(name, "gauge", labels)
        assert isinstance(found, Gauge)
        found.set(value)

    def forget(self, name: str, /, **labels: str) -> None:
        """Export this series no more."""
        kind = self._rows[name].kind if name in self._rows else "gauge"
        self._labelled(name, kind, labels)
        self._made[name].remove(*(labels[label] for label in self._rows[name].labels))
        del self._known[(name, kind, *labels.items())]

    def _labelled(self, name: str, kind: Kind, labels: dict[str, str]) -> Counter | Gauge | Histogram:
        key = (name, kind, *labels.items())
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._checked(name, kind, labels)
        return found

    def _checked(self, name: str, kind: Kind, labels: dict[str, str]) -> Counter | Gauge | Histogram:
        row = self._rows.get(name)
        if row is None or row.kind != kind:
            raise UnknownMetric(f"{name}: no such {kind} in the table of metrics")
        if labels.keys() != row.labels.keys():
            raise UnknownMetric(f"{name}: found labels {sorted(labels)}, expected {sorted(row.labels)}")
        for label, value in labels.items():
            if label not in OPEN_LABELS and value not in row.labels[label]:
                raise UnknownMetric(f"{name}: label {label} has no value {value!r} in the table of metrics")
        made = self._made[name]
        return made.labels(**labels) if labels else made


def _make(row: Metric, registry: CollectorRegistry) -> Counter | Gauge | Histogram:
    names = tuple(row.labels)
    if row.kind == "counter":
        return Counter(row.name, row.help, names, registry=registry)
    if row.kind == "gauge":
        return Gauge(row.name, row.help, names, registry=registry)
    return Histogram(row.name, row.help, names, registry=registry, buckets=row.buckets)
