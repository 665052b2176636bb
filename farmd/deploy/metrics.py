"""The metrics of deployments."""

from __future__ import annotations

from farmd.observe.metrics import STEP_SECONDS, Metric, Values

STATES: Values = ("draft", "pending", "rolling", "back", "paused", "halted")

METRICS: tuple[Metric, ...] = (
    Metric(
        "farmd_deployments",
        "gauge",
        "Deployments that this farm works on, by state.",
        {"state": STATES},
    ),
    Metric(
        "farmd_deployment_operations_total",
        "counter",
        "Steps of deployments; refused: something had changed, so the step was planned again.",
        {"op": ("run", "replace", "remove", "repair", "hook", "volume"), "result": ("done", "refused")},
    ),
    Metric(
        "farmd_deployment_duration_seconds",
        "histogram",
        "Time from the submission of a deployment to its end, by outcome.",
        {"result": ("done", "reverted", "stale", "abandoned")},
        STEP_SECONDS,
    ),
)
