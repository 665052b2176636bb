"""Panels that several dashboards show, each for the kinds that the dashboard is about."""

from __future__ import annotations

from typing import Any

from monitoring.dashboards.panels import (
    GREEN,
    NONE_IS_GOOD,
    RATE,
    RED,
    SECONDS,
    YELLOW,
    Json,
    by_kind,
    graph,
    query,
    stat,
    steps,
    timeline,
)

KIND = 'kind=~"$kind"'
INSTANCE = 'instance=~"$instance"'
CHOSEN = f"{KIND}, {INSTANCE}"


def quantile(share: float, metric: str, by: str, chosen: str = "") -> str:
    """A quantile of a histogram, by one label."""
    labels = "le" + (f", {by}" if by else "")
    rate = f"rate({metric}_bucket{{{chosen}}}[$__rate_interval])"
    return f"histogram_quantile({share}, sum by ({labels}) ({rate}))"


def increase(metric: str, by: str, chosen: str = INSTANCE) -> str:
    """Events within one step of the graph, by labels."""
    return f"sum by ({by}) (increase({metric}{{{chosen}}}[$__rate_interval]))"


def rate(metric: str, by: str, chosen: str = INSTANCE) -> str:
    """Events a second, by labels."""
    return f"sum by ({by}) (rate({metric}{{{chosen}}}[$__rate_interval]))"


def number(metric: str, chosen: str) -> str:
    """How many there are now of what a gauge counts; 0 while nobody counts any."""
    return f"sum({metric}{{{INSTANCE}, {chosen}}}) or vector(0)"


def some(expr: str, label: str) -> str:
    """Only the series above 0, where there are many; one 0 while there are none."""
    return f'{expr} > 0 or on () label_replace(vector(0), "{label}", "none", "", "")'


def short(**more: Any) -> Json:
    return stat(
        "Owners short of pods",
        "Do controllers and daemon sets have all their pods? `farmctl top` lists those that do not.",
        f"sum(farmd_owners_short{{{CHOSEN}}})",
        thresholds=steps((1, YELLOW)),
        runbook="FarmdOwnerShort",
        **more,
    )


def blocked() -> Json:
    return graph(
        "Blocked items, by kind",
        "What is not converged? Items that are stuck. `farmctl top` and the farm's page list them "
        "with their reasons; `farmctl <noun> explain NAME` shows one.",
        query(f"sum by (kind) (farmd_blocked{{{CHOSEN}}})", "{{kind}}"),
        stacked=True,
        marks=True,
        thresholds=NONE_IS_GOOD,
        runbook="FarmdBlocked",
        overrides=by_kind(),
    )


def frozen() -> Json:
    return timeline(
        "Frozen removals, by kind",
        "Does a farm distrust its data? While a kind is frozen, nothing of it is removed, moved or taken "
        "over. `farmctl failsafe status` names the evidence.",
        query(f"max by (kind) (farmd_frozen{{{CHOSEN}}})", "{{kind}}"),
        words={"0": ("normal", GREEN), "1": ("frozen", RED)},
        thresholds=NONE_IS_GOOD,
        runbook="FarmdFrozen",
        overrides=by_kind(),
    )


def cycles() -> Json:
    return graph(
        "Cycles of workers, by how they ended",
        "Does work succeed? `done` and `after` are good. Much `backoff` or `rejected`: the store "
        "refuses, or others write the same keys. `crashed`: a fault of farmd.",
        query(rate("farmd_cycles_total", "result", CHOSEN), "{{result}}"),
        unit=RATE,
        runbook="FarmdWorkerCrashes",
    )


def cycle_time() -> Json:
    return graph(
        "Duration of one cycle, 99th percentile",
        "Are workers slow? From reading to the last commit. A slow Consul shows here for all kinds at once.",
        query(quantile(0.99, "farmd_cycle_duration_seconds", "kind", CHOSEN), "{{kind}}"),
        unit=SECONDS,
        marks=True,
        thresholds=steps((10, YELLOW), (60, RED)),
        runbook="FarmdStoreSlow",
        overrides=by_kind(),
    )


def owned() -> Json:
    return graph(
        "Items, by the farm that owns them",
        "Who owns it? The farms share items evenly. When a farm is gone, its share moves to the others "
        "within twice the TTL. `farmctl <noun> describe NAME` names the owner of one item.",
        query(f"sum by (instance) (farmd_owned{{{CHOSEN}}})", "{{instance}}"),
        stacked=True,
        runbook="FarmdFailoverSlow",
    )
