"""The table of pods that several commands show."""

from __future__ import annotations

from collections.abc import Sequence

from farmd.overview import PodRow
from farmd.tables.model import Column, Table
from farmd.tables.words import ago, pairs
from store.times import plain


def pod_table(rows: Sequence[PodRow], broken: Sequence[str], now: float, *, same: str = "") -> Table:
    """One line for each pod; ``now`` in seconds since the epoch.

    ``same`` is the title of a column with one value for all pods: only ``wide`` shows it, and ports get its
    room.
    """
    columns = (
        Column("NODE", lambda row: row.node, wide=same == "NODE"),
        Column("INSTANCE", lambda row: row.instance),
        Column("OWNER", lambda row: row.owner_name or row.owner, wide=same == "OWNER"),
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
