"""The table of farms."""

from __future__ import annotations

from collections.abc import Sequence

from farmd.overview import FarmRow
from farmd.tables.model import Column, Table
from farmd.tables.words import ago, pairs
from store.farms import Member
from store.times import plain


def state(member: Member) -> str:
    """Whether a farm takes items, in one word."""
    return "draining" if member.draining else "starting" if member.starting else "ready"


def table(rows: Sequence[FarmRow], now: float) -> Table:
    """One line for each farm; ``now`` in seconds since the epoch."""
    columns = (
        Column("NAME", lambda row: row.member.id),
        Column("STATE", lambda row: state(row.member)),
        Column("ITEMS", lambda row: str(sum(row.items.values()))),
        Column("UP", lambda row: ago(now, row.member.since)),
        Column("VERSION", lambda row: row.member.version),
        Column("HOST", lambda row: row.member.host),
        Column("PID", lambda row: str(row.member.pid or ""), wide=True),
        Column("ADDRESS", lambda row: row.member.address, wide=True),
        Column("KINDS", lambda row: ",".join(row.member.kinds), wide=True),
        Column("SELECTOR", lambda row: row.member.selector, wide=True),
        Column("HOLDS", lambda row: pairs(row.items)),
    )
    return Table(
        kind="Farm",
        rows=rows,
        columns=columns,
        name=lambda row: f"farm/{row.member.id}",
        plain=lambda row: {**plain(row.member), "items": row.items},
        empty="no farm is alive: nothing repairs, moves or adds pods; what runs keeps running",
    )
