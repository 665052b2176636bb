"""The metrics of rollouts."""

from __future__ import annotations

from farmd.observe.metrics import STEP_SECONDS, Metric, Values

TARGETS: Values = ("rc", "ksvc")
PHASES: Values = ("pending", "moving", "baking", "paused", "halted", "back")

METRICS: tuple[Metric, ...] = (
    Metric(
        "farmd_rollouts",
        "gauge",
        "Rollouts that this farm works on, by what they scale (`rc`: replication controllers, `ksvc`: "
        "Knative Services) and their phase.",
        {"target": TARGETS, "phase": PHASES},
    ),
    Metric(
        "farmd_rollout_moves_total",
        "counter",
        "Pods that rollouts moved: taken over, dropped, added, placed again (refill: of the version that "
        "grows, restore: of the other), or trimmed after a scale.",
        {"way": ("take", "drop", "grow", "refill", "restore", "trim")},
    ),
    Metric(
        "farmd_rollout_step_duration_seconds",
        "histogram",
        "Time of one stage of a rollout or of its revert, without its pauses, by outcome.",
        {"result": ("done", "reverted", "failed")},
        STEP_SECONDS,
    ),
    Metric(
        "farmd_rollout_gate_answers_total",
        "counter",
        "Answers of gates of rollouts; none: without data.",
        {"type": ("http", "prometheus"), "result": ("pass", "fail", "none")},
    ),
)
