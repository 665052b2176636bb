"""Replication and daemon sets: are there as many pods as asked, where, and what keeps them from running."""

from __future__ import annotations

from monitoring.dashboards import common
from monitoring.dashboards.common import CHOSEN, INSTANCE
from monitoring.dashboards.layout import dashboard
from monitoring.dashboards.panels import (
    GREEN,
    NONE_IS_GOOD,
    RED,
    SECONDS,
    SHARE,
    YELLOW,
    Json,
    graph,
    query,
    stat,
    steps,
    timeline,
)

ENDS = f'{INSTANCE}, event=~"exited|restarted|killed"'
KINDS = ("rcs", "daemonsets", "nodes")


def replication() -> Json:
    return dashboard(
        "farmd-replication",
        "Replication and daemon sets",
        "Controllers, daemon sets, the nodes that they place pods on, and what the agents report.",
        KINDS,
        ("Is anything wrong?", _now()),
        (
            "What is not converged, and why?",
            (_lacking(), common.blocked(), common.frozen(), common.cycles(), common.cycle_time()),
        ),
        ("What do the nodes report?", (_pods(), _events(), _checks(), _runtimes(), _pulls(), _records())),
        ("Who owns it?", (common.owned(), _staleness())),
    )


def _now() -> tuple[Json, ...]:
    return (
        stat(
            "Running pods",
            "How many pods run on all nodes together?",
            f'sum(farmd_pods{{{INSTANCE}, state="running"}})',
        ),
        stat(
            "Pods that do not stay up",
            "Do pods crash? `farmctl pod list` shows state and restarts, `farmctl pod logs` why.",
            f'sum(farmd_pods{{{INSTANCE}, state=~"backoff|failed"}})',
            thresholds=NONE_IS_GOOD,
            runbook="FarmdPodsCrash",
        ),
        stat(
            "Held pods",
            "Does an agent leave pods as they are? A full disk or a runtime that does not answer: "
            "`farmctl node describe`.",
            f'sum(farmd_pods{{{INSTANCE}, state="held"}})',
            thresholds=NONE_IS_GOOD,
            runbook="FarmdRuntimeDown",
        ),
        stat(
            "Controllers",
            "How many are there, without daemon sets?",
            f'sum(farmd_owned{{{INSTANCE}, kind="rcs"}})',
        ),
        common.short(),
        stat(
            "Nodes",
            "How many nodes do farms manage? Lost and drained ones count, too: `farmctl node list`.",
            f'sum(farmd_owned{{{INSTANCE}, kind="nodes"}})',
        ),
    )


def _lacking() -> Json:
    lacks = "max by (kind, owner) (farmd_owner_{}_pods{{{}}})"
    return graph(
        "Desired and available pods of owners that are short of pods",
        "Which owner lacks pods, and how many? Those that lack most; `farmctl rc explain NAME` shows why.",
        query(lacks.format("desired", CHOSEN), "{{owner}} desired"),
        query(lacks.format("available", CHOSEN), "{{owner}} available", least=True),
        runbook="FarmdOwnerShort",
    )


def _pods() -> Json:
    return graph(
        "Pods that are not running, by agent and state",
        "Which node is it? Choose it above; `farmctl node describe NODE` shows its pods.",
        query(
            common.some(
                f'sum by (instance, state) (farmd_pods{{{INSTANCE}, state!~"running|done"}})', "state"
            ),
            "{{instance}} {{state}}",
        ),
        runbook="FarmdPodsCrash",
    )


def _events() -> Json:
    return graph(
        "Ends and restarts of pods, by agent",
        "What changed on the nodes? One node alone: look there. All nodes: a bad version, or something "
        "that pods share.",
        query(
            common.some(common.increase("farmd_pod_events_total", "instance, event", ENDS), "event"),
            "{{instance}} {{event}}",
        ),
        runbook="FarmdPodsCrash",
    )


def _checks() -> Json:
    return graph(
        "Share of pods that fail their health check, by agent",
        "Are pods unhealthy on one node or everywhere? Mass failures freeze removals. Pods without a verdict "
        "yet do not count.",
        query(
            f'sum by (instance) (farmd_checked_pods{{{INSTANCE}, health="critical"}}) '
            f'/ (sum by (instance) (farmd_checked_pods{{{INSTANCE}, health!="unknown"}}) > 0) '
            f"or sum by (instance) (farmd_pods{{{INSTANCE}}}) * 0",
            "{{instance}}",
        ),
        unit=SHARE,
        marks=True,
        thresholds=steps((0.1, YELLOW), (0.5, RED)),
        runbook="FarmdHealthFails",
    )


def _runtimes() -> Json:
    return timeline(
        "Runtimes that answer",
        "Does the container engine or systemd answer its agent? Pods of one that does not are left as they "
        "are. Empty where agents run processes alone.",
        query(
            f"min by (instance, runtime) (farmd_runtime_up{{{INSTANCE}}})",
            "{{instance}} {{runtime}}",
            least=True,
        ),
        words={"0": ("silent", RED), "1": ("answers", GREEN)},
        thresholds=steps((1, GREEN), first=RED),
        runbook="FarmdRuntimeDown",
    )


def _pulls() -> Json:
    return graph(
        "Images and artifacts: fetched and removed",
        "Does a pod wait for its image or its artifacts?",
        query(
            common.increase("farmd_image_pull_duration_seconds_count", "result"),
            "pulls: {{result}}",
        ),
        query(common.increase("farmd_images_removed_total", "cause"), "removed: {{cause}}"),
        query(
            common.increase("farmd_artifact_fetch_duration_seconds_count", "result"),
            "artifacts: {{result}}",
        ),
        query(common.increase("farmd_artifacts_removed_total", "cause"), "artifacts removed: {{cause}}"),
        runbook="FarmdImagePullFails",
    )


def _records() -> Json:
    return graph(
        "Records that do not decode",
        "Did somebody write into Consul by hand, or does a newer version? The log names each key, "
        "`farmctl doctor` the way out.",
        query(common.some(f"max by (family) (farmd_invalid_records{{{INSTANCE}}})", "family"), "{{family}}"),
        marks=True,
        thresholds=NONE_IS_GOOD,
        runbook="FarmdInvalidRecords",
    )


def _staleness() -> Json:
    watches = 'watch=~"rcs|daemonsets|pods|intent|reality|nodes|agents"'
    return graph(
        "Age of what farms know of pods and nodes",
        "Do farms see what the nodes report? A watch is answered each minute even if nothing changed.",
        query(f"max by (watch) (farmd_watch_staleness_seconds{{{INSTANCE}, {watches}}})", "{{watch}}"),
        unit=SECONDS,
        marks=True,
        thresholds=steps((120, YELLOW), (180, RED)),
        runbook="FarmdWatchStale",
    )
