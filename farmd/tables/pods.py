"""The table of pods that several commands show, and the facts of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from farmd.kinds import KINDS, title
from farmd.overview import PodRow
from farmd.tables.model import Column, Table, ago, clean, pairs
from store.containers import Limits
from store.manifests import Manifest
from store.reality import Exit, Forwarded, SidecarStatus, Usage, ending
from store.times import plain, rfc3339
from store.words import amount_text, count_of, size_text

_MAIN = next(kind.family for kind in KINDS.values() if kind.main)


def owner_of(row: PodRow) -> str:
    """The owner with its noun, ``rc/web``; the id of one that is gone."""
    name = row.owner_name
    return name if "/" in name else title(_MAIN, name) if name else row.owner


def same_owner(rows: Sequence[PodRow]) -> str:
    """The title of the column of owners, where all pods have one; else empty."""
    return "OWNER" if len({row.owner for row in rows}) < 2 else ""


def pod_table(rows: Sequence[PodRow], broken: Sequence[str], now: float, *, same: str = "") -> Table:
    """One line for each pod; ``now`` in seconds since the epoch.

    ``same`` is the title of a column with one value for all pods: only ``wide`` shows it, and ports get its
    room.
    """
    columns = (
        Column("NODE", lambda row: row.node, wide=same == "NODE"),
        Column("INSTANCE", lambda row: row.instance),
        Column("OWNER", owner_of, wide=same == "OWNER"),
        Column("PHASE", lambda row: row.phase),
        Column("HEALTH", lambda row: row.health),
        Column("RESTARTS", lambda row: str(row.restarts)),
        Column("AGE", lambda row: ago(now, row.placed_at)),
        Column("UP", lambda row: ago(now, row.started)),
        Column("PORTS", lambda row: pairs(row.ports), wide=not same),
        Column("PID", lambda row: str(row.pid or ""), wide=True),
        Column("MANIFEST", lambda row: row.manifest[:12], wide=True),
        Column("LABELS", lambda row: pairs(row.labels), wide=True),
        Column("REASON", lambda row: row.preparing or ("" if row.healthy else row.reason)),
    )
    return Table(
        kind="Pod",
        rows=rows,
        columns=columns,
        name=lambda row: f"pod/{row.node}/{row.instance}",
        plain=plain,
        broken=broken,
        empty="no pods",
    )


def facts(row: PodRow, runs: list[tuple[str, str]], now: float) -> list[tuple[str, str]]:
    """The lines of ``describe`` for a pod; ``runs`` are those of its manifest, ``now`` is in seconds since
    the epoch.
    """
    told = [
        ("Pod", row.instance),
        ("Node", row.node),
        ("Owner", owner_of(row) if row.owner_name else f"{row.owner} (gone)"),
        ("Phase", row.phase + (f": {row.reason}" if row.reason else "")),
        *([("Prepares", row.preparing)] if row.preparing else []),
        ("Health", row.health + (f" for {ago(now, row.health_since)}" if row.health_since else "")),
        ("Age", ago(now, row.placed_at)),
        ("Started", _started(row, now)),
        ("Restarts", str(row.restarts)),
    ]
    told += [
        ("Exit", f"{rfc3339(end.at)}, {ago(now, end.at)} ago, {_ending(end)}") for end in reversed(row.exits)
    ]
    told += [("Sidecar", f"{name}: {_beside_it(each, now)}") for name, each in row.sidecars.items()]
    told += [("Pid", str(row.pid))] if row.pid else []
    told += [("Serves on", pairs(row.ports))] if row.ports else []
    return [*told, ("Labels", pairs(row.labels)), ("Manifest", row.manifest), *runs]


def _beside_it(sidecar: SidecarStatus, now: float) -> str:
    how = "runs" if sidecar.runs else f"does not run ({clean(sidecar.reason)})"
    restarts = f", {count_of(sidecar.restarts, 'restart')}" if sidecar.restarts else ""
    return f"{how} for {ago(now, sidecar.since)}{restarts}" if sidecar.since else how


def usage_facts(used: Usage, manifest: Manifest | None) -> list[tuple[str, str]]:
    """What a pod uses, beside what its manifest asks for and its limits."""
    asks = manifest.resources if manifest is not None else {}
    limits = manifest.limits if manifest is not None else Limits()
    cpu = [f"{used.cores:.2f} cores", *_beside(asks.get("cpu", 0.0), limits.cpu, amount_text)]
    cpu += [f"held back for {used.throttled_seconds:.1f} s"] if used.throttled_seconds else []
    asked_memory = asks.get("memory", 0.0)
    memory = [size_text(used.memory), f"{size_text(used.memory_peak)} at most until now"]
    memory += _beside(asked_memory, limits.memory, lambda count: size_text(int(count)))
    memory += [f"{used.oom_kills} killed for it"] if used.oom_kills else []
    tasks = [f"{used.pids}", *_beside(0, limits.pids, lambda count: str(int(count)))]
    disk = f"{size_text(used.io_read)} read, {size_text(used.io_written)} written"
    return [
        ("CPU", ", ".join(cpu)),
        ("Memory", ", ".join(memory)),
        ("Tasks", ", ".join(tasks)),
        ("Disk", disk),
    ]


def log_facts(found: Sequence[Forwarded]) -> list[tuple[str, str]]:
    """How a pod's output is forwarded."""
    told = []
    for each in found:
        words = [f"{size_text(each.sent)} sent"]
        words += [f"{size_text(each.lost)} lost"] if each.lost else []
        words += [f"{size_text(each.behind)} waiting"] if each.behind else []
        words += [f"not now: {clean(each.problem)}"] if each.problem else []
        of = f", {each.process}" if each.process else ""
        told.append(("Logs to", f"{each.to}{of}: {', '.join(words)}"))
    return told


def _beside(asked: float, limit: float, text: Callable[[float], str]) -> list[str]:
    return [f"asks for {text(asked)}"] * bool(asked) + [f"limit {text(limit)}"] * bool(limit)


def _started(row: PodRow, now: float) -> str:
    if row.started:
        return f"{rfc3339(row.started)}, {ago(now, row.started)} ago"
    return "not now" if row.exits else "never"


def _ending(end: Exit) -> str:
    """How a start ended, and what it said of that."""
    how = {"lost": "cause unknown", "oom": f"out of memory, {ending(end.code)}"}.get(
        end.cause, ending(end.code)
    )
    how = f"unhealthy, {how}" if end.unhealthy else how
    return f"{how}: {clean(end.message)}" if end.message else how
