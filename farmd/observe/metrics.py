"""All metrics of farmd, in one table; ``farmd.observe.recorder`` refuses any other metric.

Names follow Prometheus' conventions: one prefix, base units, ``_total`` for counters. A label takes
its values from a closed set and never from an id, a node or a name, because a fleet of ten thousand items
must not make ten thousand series. The exceptions are ``owner`` and ``item``, of which a process exports few
at a time (``farmd/work/owner.py``, ``farmd/agent/usage.py``). It exports the metrics of its role alone.
``docs/metrics.md`` is rendered from this table and a test keeps both equal; alert rules are checked against
the table. What one kind of work alone measures stands in its own ``metrics.py``, which the registry names.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from farmd.kinds import KINDS
from store import errors, families
from store.consul.exchange import Op
from store.status import Status

Kind = Literal["counter", "gauge", "histogram"]
Values = tuple[str, ...]
Role = Literal["farm", "agent", "both"]

# The labels without a closed set, and what their values are.
OPEN_LABELS = {
    "version": "the version",
    "owner": "the name of an owner; of agents the `id` of its pods' manifest, or `(others)`",
    "item": "the name of an item whose file asks for it",
    "pod": "the name of an instance on a node with agent.pod_metrics",
}

# Requests to Consul: from 1 ms on loopback to 30 s for a store that hardly answers.
REQUEST_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
CYCLE_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300)
STEP_SECONDS = (1, 5, 10, 30, 60, 300, 600, 1800, 3600, 14400, 86400)
OPERATIONS = (1, 2, 4, 8, 16, 32, 48, 64, 128)


def _error_codes() -> set[str]:
    """The codes of what a client of the store raises; other modules may have errors of this sort of their
    own.
    """
    found = (each for each in vars(errors).values() if isinstance(each, type))
    return {each.code for each in found if issubclass(each, errors.StoreError)}


STATUSES: Values = (
    "200",
    "400",
    "401",
    "403",
    "404",
    "409",
    "413",
    "429",
    "500",
    "502",
    "503",
    "504",
    "other",
)
CODES: Values = (*STATUSES, "cancelled", *sorted(_error_codes()))
STORE_OPERATIONS: Values = tuple(op.value for op in Op)
LOOPS: Values = (
    "daemon", "session", "members", "claims", "release", "handover", "sweep", "failsafe", "collector",
    "watch", "cache", "worker", "intent", "reality", "health", "supervisor", "alerts", "dev", "leader",
)  # fmt: skip
SINKS: Values = ("log", "webhook", "pagerduty", "slack", "alertmanager")
KUBERNETES_VERBS: Values = ("get", "post", "put", "patch", "delete")
KNATIVE_RESOURCES: Values = (
    *("ksvcs", "configurations", "routes", "revisions", "podautoscalers"),
    *("rolloutorchestrators", "stagepodautoscalers"),
)
KUBERNETES_RESOURCES: Values = ("jobs", "pods", "services", "events", *KNATIVE_RESOURCES, "other")


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table; ``labels`` maps each label to its closed set of values, ``role`` says whether
    farms or agents export it.
    """

    name: str
    kind: Kind
    help: str
    labels: Mapping[str, Values] = field(default_factory=dict)
    buckets: tuple[float, ...] = REQUEST_SECONDS
    role: Role = "farm"


def table() -> tuple[Metric, ...]:
    """All metrics, also those of single kinds; kinds and watched trees are those that are registered."""
    kinds: Values = tuple(family.name for family in families.claimed())
    replicas: Values = tuple(family.name for family in families.owners() if issubclass(family.status, Status))
    watches: Values = tuple(family.name for family in families.cached())
    clusters: Values = tuple(f"kubernetes_{resource}" for resource in KUBERNETES_RESOURCES)
    return (
        Metric(
            "farmd_build_info",
            "gauge",
            "Always 1; the version is in the label.",
            {"version": ()},
            role="both",
        ),
        Metric(
            "farmd_http_connections_closed_total",
            "counter",
            "Connections that this process ended: full (no room for a new one), idle (made room for one),"
            " busy (a long request that made room for one), slow (a request not sent in time),"
            " unread (an answer not read in time), handshake (no TLS).",
            {"reason": ("full", "idle", "busy", "slow", "unread", "handshake")},
            role="both",
        ),
        Metric(
            "farmd_token_denied",
            "gauge",
            "1 while the process's token may not do in Consul what its role needs.",
            role="both",
        ),
        Metric(
            "farmd_sign_ins_refused_total",
            "counter",
            "Requests whose credential was refused: a token, or a one-time key.",
            {"credential": ("token", "key")},
            role="both",
        ),
        Metric(
            "farmd_web_certificate_end_timestamp_seconds",
            "gauge",
            "When the first certificate of web.tls_cert ends, as it is served; 0 without TLS.",
            role="both",
        ),
        Metric(
            "farmd_cycles_total",
            "counter",
            "Cycles of workers, by result.",
            {
                "kind": kinds,
                "result": ("done", "after", "backoff", "blocked", "rejected", "frozen", "crashed"),
            },
        ),
        Metric(
            "farmd_cycle_duration_seconds",
            "histogram",
            "Time of one cycle, from reading to the last commit.",
            {"kind": kinds},
            CYCLE_SECONDS,
        ),
        Metric(
            "farmd_loop_last_progress_timestamp_seconds",
            "gauge",
            "When the slowest loop of that name last made progress.",
            {"loop": LOOPS},
            role="both",
        ),
        Metric(
            "farmd_loop_stalled",
            "gauge",
            "1 while a loop of that name makes no progress for longer than it may.",
            {"loop": LOOPS},
            role="both",
        ),
        Metric("farmd_owned", "gauge", "Items whose lock this farm holds.", {"kind": kinds}),
        Metric(
            "farmd_blocked",
            "gauge",
            "Owned items that are blocked, with a reason in their status.",
            {"kind": kinds},
        ),
        Metric(
            "farmd_owners_short",
            "gauge",
            "Owned items with fewer available pods than they should have.",
            {"kind": replicas},
        ),
        Metric(
            "farmd_owner_desired_pods",
            "gauge",
            "Pods that an owner should have; only the worst 20 owners per farm and kind that lack pods.",
            {"kind": replicas, "owner": ()},
        ),
        Metric(
            "farmd_owner_available_pods",
            "gauge",
            "Available pods of the same owners.",
            {"kind": replicas, "owner": ()},
        ),
        Metric(
            "farmd_crash_loops",
            "gauge",
            "Owned items with a pod in a crash loop, on any node.",
            {"kind": replicas},
        ),
        Metric("farmd_frozen", "gauge", "1 while removals of this kind are frozen.", {"kind": kinds}),
        Metric(
            "farmd_invalid_records",
            "gauge",
            "Records and objects of Kubernetes that do not decode and are skipped.",
            {"family": (*watches, *clusters)},
            role="both",
        ),
        Metric(
            "farmd_lock_events_total",
            "counter",
            "Events of item locks.",
            {"event": ("claimed", "rejected", "lost", "released", "handed_over", "adopted")},
        ),
        Metric(
            "farmd_lock_failover_seconds",
            "histogram",
            "Time from a lock seen free to its claim by this farm.",
            {},
            CYCLE_SECONDS,
        ),
        Metric(
            "farmd_session_events_total",
            "counter",
            "Events of this process's session.",
            {"event": ("created", "resumed", "suspended", "lost", "destroyed")},
            role="both",
        ),
        Metric(
            "farmd_session_renew_seconds",
            "histogram",
            "Time of one successful renewal of the session.",
            role="both",
        ),
        Metric(
            "farmd_store_requests_total",
            "counter",
            "Requests to Consul, by result.",
            {"op": STORE_OPERATIONS, "code": CODES},
            role="both",
        ),
        Metric(
            "farmd_store_request_duration_seconds",
            "histogram",
            "Time of one request, waits of watches included.",
            {"op": STORE_OPERATIONS},
            role="both",
        ),
        Metric(
            "farmd_kubernetes_requests_total",
            "counter",
            "Requests to the Kubernetes API server, except watches; code `none`: no answer.",
            {"verb": KUBERNETES_VERBS, "resource": KUBERNETES_RESOURCES, "code": (*STATUSES, "none")},
        ),
        Metric(
            "farmd_informer_objects",
            "gauge",
            "Objects of Kubernetes that this farm knows from its watches.",
            {"resource": KUBERNETES_RESOURCES},
        ),
        Metric(
            "farmd_store_reachable", "gauge", "1 while the last request to Consul was answered.", role="both"
        ),
        Metric(
            "farmd_watch_staleness_seconds",
            "gauge",
            "Age of a watch's last proven answer.",
            {"watch": (*watches, *clusters)},
        ),
        Metric("farmd_txn_ops", "histogram", "Operations in one transaction.", {}, OPERATIONS, role="both"),
        *(row for kind in KINDS.values() if kind.metrics for row in kind.metrics()),
        Metric(
            "farmd_alerts_sent_total",
            "counter",
            "Alerts handed to a sink.",
            {"sink": SINKS, "result": ("sent", "failed", "duplicate", "resolved")},
        ),
        Metric(
            "farmd_alerts_waiting",
            "gauge",
            "Incidents with a message that a sink has not received yet.",
            {"sink": SINKS},
        ),
        Metric(
            "farmd_pods",
            "gauge",
            "Pods on this node, by state.",
            {"state": ("running", "starting", "backoff", "stopping", "failed", "held", "done")},
            role="agent",
        ),
        Metric(
            "farmd_checked_pods",
            "gauge",
            "Running pods of this node that have a health check, by health; unknown: no verdict yet.",
            {"health": ("passing", "critical", "unknown")},
            role="agent",
        ),
        Metric(
            "farmd_pod_events_total",
            "counter",
            "Actions and events of the agent's pods.",
            {
                "event": (
                    "started",
                    "exited",
                    "restarted",
                    "unhealthy",
                    "leaving",
                    "stopped",
                    "killed",
                    "adopted",
                    "refused",
                )
            },
            role="agent",
        ),
        Metric(
            "farmd_unsigned_pods",
            "gauge",
            "Pods of this node without a signature that it trusts: started with a warning, or refused.",
            {"result": ("warned", "refused")},
            role="agent",
        ),
        *(
            Metric(
                f"farmd_pod_{name}",
                "gauge",
                f"{text}, with agent.pod_metrics; at most 200 pods per node.",
                {"pod": ()},
                role="agent",
            )
            for name, text in (
                ("cpu_cores", "The cores that a pod used in the last seconds"),
                ("cpu_throttled_seconds", "How long a pod was held back by its limit of cores"),
                ("memory_bytes", "The memory of a pod"),
                ("memory_limit_bytes", "The limit of memory of a pod, 0 without one"),
                ("oom_kills", "Processes of a pod that the kernel killed because of its limit of memory"),
                ("tasks", "Processes and threads of a pod"),
                ("disk_read_bytes", "Bytes that a pod read from disks"),
                ("disk_written_bytes", "Bytes that a pod wrote to disks"),
            )
        ),
        *(
            Metric(
                f"farmd_owner_{name}",
                "counter" if name.endswith("_total") else "gauge",
                f"{text}, of this node; for at most agent.owner_metrics owners.",
                {"owner": ()},
                role="agent",
            )
            for name, text in (
                ("cpu_seconds_total", "Seconds of CPU that pods of an owner used"),
                ("cpu_throttled_seconds_total", "Seconds for which limits of CPU held pods of an owner back"),
                ("cpu_requested_cores", "The cores that the running pods of an owner ask for"),
                ("memory_bytes", "The memory that pods of an owner use"),
                ("memory_requested_bytes", "The memory that the running pods of an owner ask for"),
                ("oom_kills_total", "Processes of pods of an owner that the kernel killed at their limit"),
                ("tasks", "Processes and threads of pods of an owner"),
                ("disk_read_bytes_total", "Bytes that pods of an owner read from disks"),
                ("disk_written_bytes_total", "Bytes that pods of an owner wrote to disks"),
                ("measured_pods", "Pods of an owner whose use is known, by their control groups"),
            )
        ),
        *(
            Metric(
                f"farmd_log_bytes_{what}_total",
                "counter",
                text,
                {"to": ("journald", "udp", "tcp", "tls")},
                role="agent",
            )
            for what, text in (
                ("sent", "Bytes of pods' output that the agent sent to a journald or a syslog server."),
                ("lost", "Bytes of pods' output that were rotated away before they could be sent."),
            )
        ),
        Metric(
            "farmd_runtime_up",
            "gauge",
            "Whether the runtime reports what runs on this node: 1, or 0 while it does not answer.",
            {"runtime": ("container", "systemd")},
            role="agent",
        ),
        Metric(
            "farmd_images_removed_total",
            "counter",
            "Images that an agent pulled and later removed as unused.",
            {"cause": ("unused", "disk")},
            role="agent",
        ),
        Metric(
            "farmd_image_pull_duration_seconds",
            "histogram",
            "Time of one pull of an image.",
            {"result": ("ok", "failed")},
            CYCLE_SECONDS,
            role="agent",
        ),
        Metric(
            "farmd_artifacts_removed_total",
            "counter",
            "Artifacts that an agent removed, because no pod had needed them for long.",
            {"cause": ("unused", "disk")},
            role="agent",
        ),
        Metric(
            "farmd_artifact_fetch_duration_seconds",
            "histogram",
            "Time of fetching and unpacking one artifact.",
            {"result": ("ok", "failed")},
            CYCLE_SECONDS,
            role="agent",
        ),
        Metric(
            "farmd_health_checks_total",
            "counter",
            "Health checks of pods.",
            {"type": ("http", "tcp", "command"), "result": ("passing", "failing", "timeout")},
            role="agent",
        ),
        Metric(
            "farmd_config_reloads_total",
            "counter",
            "Reloads of the configuration.",
            {"result": ("applied", "unchanged", "refused")},
            role="both",
        ),
    )


# The headings of docs/metrics.md, and the words with which the names of their metrics begin. What one kind
# measures has the kind's heading.
_HEADINGS = {
    "Processes": "build config http loop sign token web",
    "Consul": "invalid session store txn watch",
    "Work of a farm": "blocked cycle cycles frozen lock owned",
    "Owners of pods": "crash owner owners",
    "Nodes and their pods": "artifact artifacts checked health image images log pod pods runtime unsigned",
    "Kubernetes": "informer kubernetes",
    "Alerts": "alerts",
}
# Longer lists of values are written once, below a heading of their own.
_INLINE = 100


def markdown() -> str:
    """The metrics by subsystem as ``docs/metrics.md`` shows them, then the long lists of labels' values."""
    heading_of = {word: heading for heading, words in _HEADINGS.items() for word in words.split()}
    kinds = {
        row.name: kind.many[0].upper() + kind.many[1:]
        for kind in KINDS.values()
        if kind.metrics
        for row in kind.metrics()
    }
    found: dict[str, list[str]] = {heading: [] for heading in [*_HEADINGS, *kinds.values(), "Label values"]}
    long: dict[Values, list[str]] = {}
    for row in table():
        found[kinds.get(row.name) or heading_of[row.name.split("_")[1]]] += _entry(row)
        for label, values in row.labels.items():
            if len(", ".join(values)) > _INLINE and label not in long.setdefault(values, []):
                long[values].append(label)
    for values, labels in sorted(long.items(), key=lambda each: each[1]):
        names = " and ".join(f"`{label}`" for label in labels)
        found["Label values"] += _wrapped(f"- **{names}**: {', '.join(values)}", "  ")
    return "\n".join(
        "\n".join([f"## {heading}", "", *lines, ""]) for heading, lines in found.items() if lines
    )


def _entry(row: Metric) -> list[str]:
    """One metric: its help and the values of its labels."""
    of = {"farm": "farms", "agent": "agents", "both": "farms and agents"}[row.role]
    lines = _wrapped(f"- **`{row.name}`** ({row.kind} of {of}): {row.help}", "  ")
    for label, values in row.labels.items():
        said = ", ".join(values) or OPEN_LABELS[label]
        lines += _wrapped(
            f"  - `{label}`: {said if len(said) <= _INLINE else 'see [below](#label-values)'}", "    "
        )
    return lines


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
