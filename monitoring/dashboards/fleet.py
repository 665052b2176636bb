"""The fleet at a glance: what is wrong, what changed, who owns it, and whether Consul is the cause."""

from __future__ import annotations

from farmd.kinds import KINDS
from monitoring.dashboards import common
from monitoring.dashboards.common import CHOSEN, INSTANCE
from monitoring.dashboards.layout import FIRING, dashboard
from monitoring.dashboards.panels import (
    GREEN,
    NONE_IS_GOOD,
    RED,
    SECONDS,
    YELLOW,
    Json,
    graph,
    query,
    stat,
    steps,
    table,
)


def fleet() -> Json:
    return dashboard(
        "farmd-fleet",
        "Fleet",
        "Begin here: what is wrong, what is not converged, what changed, who owns it, and whether "
        "Consul is the cause.",
        tuple(KINDS),
        ("Is anything wrong?", (*_now(), _alerts(), common.frozen())),
        ("What is not converged, and why?", (common.blocked(), common.cycles(), _pods(), _failed_checks())),
        ("What changed?", (_pod_events(), _locks(), _versions(), _sessions())),
        ("Who owns it?", (common.owned(), _shares())),
        ("Is Consul the cause?", (_store_errors(), _staleness())),
    )


def _now() -> tuple[Json, ...]:
    return (
        stat(
            "Farms that answer",
            "Does anybody work? With one farm nothing takes over when it fails; with none, running pods "
            "keep running.",
            'count(up{job="farmd-farm"} == 1) or vector(0)',
            thresholds=steps((1, YELLOW), (2, GREEN), first=RED),
            width=3,
            runbook="FarmdNoFarm",
        ),
        stat(
            "Agents that do not answer",
            "Which nodes have no running agent? `farmctl node list` names them. Their pods keep running.",
            'count(up{job="farmd-agent"} == 0) or vector(0)',
            thresholds=NONE_IS_GOOD,
            width=3,
            runbook="FarmdAgentDown",
        ),
        stat(
            "Processes without Consul",
            "Is Consul the cause? Farms and agents whose last request to Consul was not answered.",
            "count(farmd_store_reachable == 0) or vector(0)",
            thresholds=NONE_IS_GOOD,
            width=3,
            runbook="FarmdStoreUnreachable",
        ),
        stat(
            "Frozen kinds of work",
            "Are removals frozen? `farmctl failsafe status` names the evidence.",
            f"sum(max by (kind) (farmd_frozen{{{CHOSEN}}}))",
            thresholds=NONE_IS_GOOD,
            width=3,
            runbook="FarmdFrozen",
        ),
        stat(
            "Blocked items",
            "Does an item wait for a person? `farmctl top` lists them first.",
            f"sum(farmd_blocked{{{CHOSEN}}})",
            thresholds=NONE_IS_GOOD,
            width=3,
            runbook="FarmdBlocked",
        ),
        stat(
            "Stalled loops",
            "Does a process hang? Its watchdog restarts it; an unresponsive Consul does not stall a loop.",
            f"sum(farmd_loop_stalled{{{INSTANCE}}})",
            thresholds=NONE_IS_GOOD,
            width=3,
            runbook="FarmdLoopStalled",
        ),
        common.short(width=3),
        stat(
            "Owners in a crash loop",
            "Does a pod keep crashing, on any node? `farmctl alert list` names its owner.",
            f"sum(farmd_crash_loops{{{CHOSEN}}})",
            thresholds=NONE_IS_GOOD,
            width=3,
            runbook="FarmdCrashLoop",
        ),
    )


def _alerts() -> Json:
    return table(
        "Firing alerts",
        "What should I do first? Each alert has a runbook under docs/runbooks.",
        f'{FIRING} or on () label_replace(vector(0), "alertname", "none", "", "")',
        hidden=("alertstate", "job"),
    )


def _pods() -> Json:
    return graph(
        "Pods on all nodes, by state",
        "Do pods run? `backoff`: they keep crashing. `failed`: they do not start. `held`: the agent "
        "starts nothing (a full disk, a runtime that does not answer). `farmctl pod list` names them.",
        query(f"sum by (state) (farmd_pods{{{INSTANCE}}})", "{{state}}"),
        stacked=True,
        runbook="FarmdPodsCrash",
    )


def _failed_checks() -> Json:
    return graph(
        "Failing health checks",
        "Are pods unhealthy, and in how many places at once? Many at once: something that they share.",
        query(
            common.increase("farmd_health_checks_total", "result", f'{INSTANCE}, result!="passing"'),
            "{{result}}",
        ),
        runbook="FarmdHealthFails",
    )


def _pod_events() -> Json:
    return graph(
        "Events of pods",
        "What happened on the nodes? `farmctl audit list` shows who requested it; `farmctl pod describe` "
        "shows the last ends.",
        query(common.increase("farmd_pod_events_total", "event"), "{{event}}"),
        runbook="FarmdPodsCrash",
    )


def _locks() -> Json:
    return graph(
        "Locks of items",
        "Did work move between farms? `claimed` after `lost` is a take-over, `handed_over` is a clean stop "
        "or a better owner; many `rejected`: farms race.",
        query(common.increase("farmd_lock_events_total", "event"), "{{event}}"),
        runbook="FarmdFailoverSlow",
    )


def _versions() -> Json:
    return graph(
        "Processes, by version",
        "Was something upgraded? Two versions work side by side; new features wait for the last old farm.",
        query("count by (version) (farmd_build_info)", "{{version}}"),
        stacked=True,
        runbook="FarmdVersionsMixed",
    )


def _sessions() -> Json:
    return graph(
        "Sessions in Consul",
        "Did a process lose its session? All work of a farm moves when it does.",
        query(common.increase("farmd_session_events_total", "event"), "{{event}}"),
        runbook="FarmdSessionLost",
    )


def _shares() -> Json:
    return table(
        "Items, by farm and kind",
        "Which farm's log do I read? `farmctl farm list` shows the same. A link leads to the dashboard "
        "of the kind.",
        f"sum by (instance, kind) (farmd_owned{{{CHOSEN}}}) > 0",
        runbook="FarmdFailoverSlow",
    )


def _store_errors() -> Json:
    bad = 'code!~"200|404|409|cancelled"'
    return graph(
        "Share of failed requests to Consul, by process",
        "Is Consul the cause? All processes at once: Consul. One: its machine, network or token.",
        query(
            f"{common.rate('farmd_store_requests_total', 'instance', f'{INSTANCE}, {bad}')} "
            f"/ {common.rate('farmd_store_requests_total', 'instance')} "
            f"or sum by (instance) (farmd_store_reachable{{{INSTANCE}}}) * 0",
            "{{instance}}",
        ),
        unit="percentunit",
        marks=True,
        thresholds=steps((0.05, YELLOW), (0.2, RED)),
        runbook="FarmdStoreErrors",
    )


def _staleness() -> Json:
    return graph(
        "Oldest watch of each farm",
        "Do farms see changes? A watch is answered each minute even if nothing changed.",
        query(f"max by (instance) (farmd_watch_staleness_seconds{{{INSTANCE}}})", "{{instance}}"),
        unit=SECONDS,
        marks=True,
        thresholds=steps((120, YELLOW), (180, RED)),
        runbook="FarmdWatchStale",
    )
