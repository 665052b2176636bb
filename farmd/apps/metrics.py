"""The metrics of apps."""

from __future__ import annotations

from farmd.observe.metrics import STEP_SECONDS, Metric, Values

STATES: Values = ("applying", "sweeping", "reached", "paused", "blocked", "failed", "deleting")

METRICS: tuple[Metric, ...] = (
    Metric(
        "farmd_apps",
        "gauge",
        "Apps that this farm works on, by state.",
        {"state": STATES},
    ),
    Metric(
        "farmd_app_objects_total",
        "counter",
        "Changes of objects of apps.",
        {
            "backend": ("consul", "kubernetes"),
            "act": ("create", "update", "adopt", "repair", "replace", "release", "hand", "remove"),
        },
    ),
    Metric(
        "farmd_app_wave_duration_seconds",
        "histogram",
        "Time of one step of an app until all of its objects were ready, or the revision failed.",
        {"result": ("done", "failed")},
        STEP_SECONDS,
    ),
)
