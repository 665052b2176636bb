"""The metrics of house-keeping."""

from __future__ import annotations

from farmd.observe.metrics import Metric

METRICS: tuple[Metric, ...] = (
    Metric(
        "farmd_housekeeping_total",
        "counter",
        "Actions of house-keeping on manifests, hours of the audit log and checkpoints.",
        {"what": ("condemned", "absolved", "collected", "pruned", "checkpoint")},
    ),
)
