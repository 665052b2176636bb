"""The table of open incidents."""

from __future__ import annotations

from collections.abc import Sequence

from farmd.overview.incidents import Incident
from farmd.tables.model import Column, Table
from farmd.tables.words import ago
from store.times import plain


def table(rows: Sequence[Incident], now: float) -> Table:
    """One line for each incident; ``now`` in seconds since the epoch."""
    columns = (
        Column("INCIDENT", lambda row: row.key),
        Column("KIND", lambda row: row.kind),
        Column("ABOUT", lambda row: row.name),
        Column("STATE", lambda row: row.state),
        Column("FOR", lambda row: ago(now, row.since) if row.since else "-"),
        Column("FARM", lambda row: row.farm, wide=True),
        Column("REASON", lambda row: row.reason),
    )
    return Table(
        "Incident", rows, columns, name=lambda row: f"incident/{row.key}", plain=plain, empty="none is open"
    )
