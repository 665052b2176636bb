"""The metrics of schedules."""

from __future__ import annotations

from farmd.observe.metrics import Metric, Values

STATES: Values = (
    *("converged", "running", "failing", "overrun", "missed"),
    *("disabled", "blocked", "frozen"),
)
SUCCEEDED = "farmd_schedule_last_success_timestamp_seconds"
MOST_EXPORTED = 100
RESULTS: Values = ("start", "skip", "miss")

METRICS: tuple[Metric, ...] = (
    Metric(
        "farmd_schedules",
        "gauge",
        "Schedules that this farm works on, by state.",
        {"state": STATES},
    ),
    Metric(
        "farmd_schedule_times_total",
        "counter",
        "Due times of schedules, by their result; one miss may stand for several times.",
        {"result": RESULTS},
    ),
    Metric(
        SUCCEEDED,
        "gauge",
        "When the last job that succeeded ended, of schedules with export_success; at most 100 per farm.",
        {"item": ()},
    ),
)
