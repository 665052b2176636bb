"""The metrics of job templates."""

from __future__ import annotations

from farmd.observe.metrics import Metric, Values

RESULTS: Values = ("accepted", "refused", "repeated", "invalid")

METRICS: tuple[Metric, ...] = (
    Metric(
        "farmd_job_starts_total",
        "counter",
        "Starts of job templates that this farm answered, by the answer.",
        {"result": RESULTS},
    ),
    Metric("farmd_job_starts_waiting", "gauge", "Starts of job templates that no farm has answered yet."),
)
