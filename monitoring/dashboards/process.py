"""Store and process: is Consul slow, do sessions hold, do loops move, and what does a process cost."""

from __future__ import annotations

from monitoring.dashboards import common
from monitoring.dashboards.common import INSTANCE
from monitoring.dashboards.layout import dashboard
from monitoring.dashboards.panels import (
    BYTES,
    GREEN,
    RED,
    REQUESTS,
    SECONDS,
    SHARE,
    YELLOW,
    Json,
    graph,
    query,
    steps,
    timeline,
)

KINDS = ("housekeeping", "catalog")
JOBS = f'job=~"farmd-.+", {INSTANCE}'
FAULTS = 'code!~"200|404|409|cancelled"'
# A watch waits for a change on purpose.
ASKED = f'{INSTANCE}, op!="watch"'


def process() -> Json:
    return dashboard(
        "farmd-process",
        "Store and process",
        "Consul as farms and agents see it, their sessions and loops, and what they cost.",
        KINDS,
        ("Is Consul the cause?", (_reachable(), _codes(), _times(), _rates(), _staleness(), _operations())),
        ("Do sessions and locks hold?", (_sessions(), _renewals(), _failover(), _locks())),
        ("Does every loop make progress?", (_progress(), _alerts(), _reloads(), _housekeeping(), _catalog())),
        ("What does it cost?", (_cpu(), _memory(), _files(), _starts())),
    )


def _reachable() -> Json:
    return timeline(
        "Processes that reach Consul",
        "All red at once: Consul. One: its machine or network. Agents keep their pods running meanwhile.",
        query(f"min by (instance) (farmd_store_reachable{{{INSTANCE}}})", "{{instance}}", least=True),
        words={"0": ("unreachable", RED), "1": ("reached", GREEN)},
        thresholds=steps((1, GREEN), first=RED),
        runbook="FarmdStoreUnreachable",
    )


def _codes() -> Json:
    return graph(
        "Errors from Consul, by code",
        "What is wrong with Consul? `no_leader`: an election. 403, `access_denied`: the token. 429, "
        "`throttled`: its limits. `outcome_unknown`: the connection broke during a write.",
        query(
            common.some(
                common.rate("farmd_store_requests_total", "code", f"{INSTANCE}, {FAULTS}"),
                "code",
            ),
            "{{code}}",
        ),
        unit=REQUESTS,
        runbook="FarmdStoreErrors",
    )


def _times() -> Json:
    return graph(
        "Duration of a request to Consul, 99th percentile",
        "Is Consul slow? Only transactions: its disk. Everything: its processor or the network.",
        query(common.quantile(0.99, "farmd_store_request_duration_seconds", "op", ASKED), "{{op}}"),
        unit=SECONDS,
        marks=True,
        thresholds=steps((0.5, YELLOW), (2, RED)),
        runbook="FarmdStoreSlow",
    )


def _rates() -> Json:
    return graph(
        "Requests to Consul",
        "Who sends so many requests? An idle farm sends at most two per second.",
        query(
            common.rate("farmd_store_requests_total", "instance"),
            "{{instance}}",
        ),
        unit=REQUESTS,
        runbook="FarmdStoreSlow",
    )


def _staleness() -> Json:
    return graph(
        "Age of each watch's last answer",
        "Does a farm see changes? A watch is answered each minute even if nothing changed.",
        query(f"max by (watch) (farmd_watch_staleness_seconds{{{INSTANCE}}})", "{{watch}}"),
        unit=SECONDS,
        marks=True,
        thresholds=steps((120, YELLOW), (180, RED)),
        runbook="FarmdWatchStale",
    )


def _operations() -> Json:
    return graph(
        "Operations in one transaction",
        "Are writes packed well? Consul takes 64 operations at most.",
        query(common.quantile(0.5, "farmd_txn_ops", "", INSTANCE), "median"),
        query(common.quantile(0.99, "farmd_txn_ops", "", INSTANCE), "99th percentile"),
        runbook="FarmdStoreSlow",
    )


def _sessions() -> Json:
    return graph(
        "Events of sessions, by process",
        "Who loses its session? All work of a farm moves each time.",
        query(
            common.some(common.increase("farmd_session_events_total", "instance, event"), "event"),
            "{{instance}} {{event}}",
        ),
        runbook="FarmdSessionLost",
    )


def _renewals() -> Json:
    return graph(
        "Duration of a session renewal, 99th percentile",
        "Is a session about to be lost? Renewals must finish well within the TTL (15 s).",
        query(common.quantile(0.99, "farmd_session_renew_seconds", "instance", INSTANCE), "{{instance}}"),
        unit=SECONDS,
        marks=True,
        thresholds=steps((2, YELLOW), (5, RED)),
        runbook="FarmdSessionLost",
    )


def _failover() -> Json:
    return graph(
        "Time from a free lock to its claim, 90th percentile",
        "How long is work idle after a farm stops? Consul keeps the locks of a killed farm for "
        "twice the TTL before that.",
        query(common.quantile(0.9, "farmd_lock_failover_seconds", "instance", INSTANCE), "{{instance}}"),
        unit=SECONDS,
        marks=True,
        thresholds=steps((10, YELLOW), (60, RED)),
        runbook="FarmdFailoverSlow",
    )


def _locks() -> Json:
    return graph(
        "Events of locks, by farm",
        "Does work move between farms, and why?",
        query(
            common.some(common.increase("farmd_lock_events_total", "instance, event"), "event"),
            "{{instance}} {{event}}",
        ),
        runbook="FarmdFailoverSlow",
    )


def _progress() -> Json:
    return graph(
        "Time since each loop's last progress",
        "Does a process hang? Only health checks with long intervals pause for long.",
        query(
            f"max by (instance, loop) (time() - farmd_loop_last_progress_timestamp_seconds{{{INSTANCE}}})",
            "{{instance}} {{loop}}",
        ),
        unit=SECONDS,
        marks=True,
        runbook="FarmdLoopStalled",
    )


def _alerts() -> Json:
    return graph(
        "Farms' own alerts, by sink and result",
        "Are people told? `failed` without `sent`: the sink is down; the state of now follows once it "
        "is back.",
        query(common.increase("farmd_alerts_sent_total", "sink, result"), "{{sink}} {{result}}"),
        runbook="FarmdAlertsNotDelivered",
    )


def _reloads() -> Json:
    return graph(
        "Reloads of the configuration",
        "Was a changed configuration applied? `refused`: the log names the field; the old one still holds.",
        query(common.increase("farmd_config_reloads_total", "result"), "{{result}}"),
        runbook="FarmdConfigRefused",
    )


def _housekeeping() -> Json:
    return graph(
        "House-keeping",
        "Is the store kept tidy? Manifests are condemned a day before they are collected; the audit log "
        "is pruned by hours.",
        query(common.increase("farmd_housekeeping_total", "what"), "{{what}}"),
        runbook="FarmdBlocked",
    )


def _catalog() -> Json:
    return graph(
        "Services in Consul's catalogue",
        "Do proxies and DNS find the pods? Entries by the status of their checks, and how often somebody "
        "else changed some within half an hour, which farms repaired.",
        query(common.some(f"sum by (status) (farmd_catalog_entries{{{INSTANCE}}})", "status"), "{{status}}"),
        query(f"sum(increase(farmd_catalog_drift_total{{{INSTANCE}}}[30m]))", "repaired"),
        query(f"sum(increase(farmd_catalog_changes_total{{{INSTANCE}}}[30m]))", "written"),
        runbook="FarmdCatalogDrift",
    )


def _cpu() -> Json:
    return graph(
        "Processor, in cores",
        "Is a process starved or busy? One core is all that it can use: then its loops are late.",
        query(f"rate(process_cpu_seconds_total{{{JOBS}}}[$__rate_interval])", "{{instance}}"),
        marks=True,
        thresholds=steps((0.5, YELLOW), (0.9, RED)),
        runbook="FarmdLoopStalled",
    )


def _memory() -> Json:
    return graph(
        "Memory",
        "Does memory grow? A farm of 50,000 pods takes less than 200 MB.",
        query(f"process_resident_memory_bytes{{{JOBS}}}", "{{instance}}"),
        unit=BYTES,
        runbook="FarmdRestarts",
    )


def _files() -> Json:
    return graph(
        "Open files, as a share of the limit",
        "Will a process run out of files?",
        query(f"process_open_fds{{{JOBS}}} / process_max_fds{{{JOBS}}}", "{{instance}}"),
        unit=SHARE,
        marks=True,
        thresholds=steps((0.5, YELLOW), (0.8, RED)),
        runbook="FarmdFilesNearLimit",
    )


def _starts() -> Json:
    return graph(
        "Age of each process",
        "Does a process keep restarting? Each start drops the line to 0.",
        query(f"time() - process_start_time_seconds{{{JOBS}}}", "{{instance}}", least=True),
        unit=SECONDS,
        runbook="FarmdRestarts",
    )
