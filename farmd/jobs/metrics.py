"""The metrics of jobs."""

from __future__ import annotations

from farmd.observe.metrics import Metric, Values

STATES: Values = (
    *("waiting", "running", "restarting", "suspended", "succeeded", "failed", "deleting"),
    *("blocked", "frozen"),
)

METRICS: tuple[Metric, ...] = (
    Metric(
        "farmd_jobs",
        "gauge",
        "Jobs that this farm works on, by state.",
        {"state": STATES},
    ),
    Metric(
        "farmd_job_restarts_total",
        "counter",
        "Retries of jobs' members, by why the previous member ended; evicted: its node was drained.",
        {"cause": ("exit", "oom", "lost", "evicted", "preempted")},
    ),
)
