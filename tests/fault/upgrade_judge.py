"""What must hold of a dump and of the workloads' own lines after an upgrade: a line for each violation."""

from __future__ import annotations

from collections.abc import Mapping

from store.audit import Audit
from store.presence import start_ticks
from tests.fault.invariants import Dump
from tests.fault.upgrade_rig import Place


def counts_hold(dump: Dump) -> list[str]:
    """No farm ever took a controller below the count that was asked for when it did."""
    lines = []
    standing: dict[str, int] = {}
    wanted: dict[str, int] = {}
    for index, audit in dump.audits:
        if audit.kind != "rcs":
            continue
        if "replicas" in audit.after:
            wanted[audit.id] = int(audit.after["replicas"])
        before = standing.get(audit.id, 0)
        after = before + len(audit.placed) - len(audit.removed)
        standing[audit.id] = after
        if after < before and after < wanted[audit.id]:
            lines.append(
                f"{audit.actor} {audit.action} at {index}: {after} pods, {wanted[audit.id]} asked for"
            )
    return lines


def asked_for(dump: Dump, instance: str, node: str) -> int:
    """How often the audit says that a pod was placed at a place, or given another manifest."""

    def names(audit: Audit) -> bool:
        return any(f"/{each}".endswith(f"/{node}/{instance}") for each in audit.placed + audit.relabelled)

    return sum(names(audit) for _, audit in dump.audits)


def nothing_restarted(starts: Mapping[Place, list[int]], dump: Dump) -> list[str]:
    """Each workload started as often as it was asked for, and the last start of those that stand lives."""
    lines = []
    for (node, instance), pids in starts.items():
        asked = asked_for(dump, instance, node)
        if len(pids) > asked:
            lines.append(f"{node}/{instance} was started {len(pids)} times, asked for {asked} times")
    for _, node, instance in dump.pods:
        pids = starts.get((node, instance), [])
        if not pids or start_ticks(pids[-1]) is None:
            lines.append(f"{node}/{instance} does not run")
    return lines


def left_alone(dump: Dump, owner: str, since: int) -> list[str]:
    """No farm changed a pod of an owner of whom nobody asked anything."""
    return [
        f"{audit.actor} {audit.action} at {index}: {audit.reason}"
        for index, audit in dump.audits
        if audit.id == owner and index > since and audit.actor.startswith("farm/")
    ]


def nodes_of(dump: Dump, owner: str) -> set[str]:
    return {node for (each, node, _) in dump.pods if each == owner}
