"""The metrics of daemon sets."""

from __future__ import annotations

from farmd.observe.metrics import Metric

METRICS: tuple[Metric, ...] = (
    Metric(
        "farmd_daemonsets_ailing",
        "gauge",
        "Daemon sets with a pod that runs and has failed its check for five minutes.",
    ),
)
