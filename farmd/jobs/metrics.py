"""The metrics of jobs."""

from __future__ import annotations

from farmd.observe.metrics import Metric, Values

STATES: Values = (
    *("waiting", "running", "restarting", "suspended", "succeeded", "failed", "deleting"),
    *("blocked", "frozen"),
)

METRICS = (
    Metric(
        "farmd_jobs",
        "gauge",
        "Jobs that this farm works on, by where they are.",
        {"state": STATES},
    ),
    Metric(
        "farmd_job_restarts_total",
        "counter",
        "Members of jobs that were tried again, by why they ended; evicted: their node was drained.",
        {"cause": ("exit", "oom", "lost", "evicted", "preempted")},
    ),
)
