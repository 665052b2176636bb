"""Audit records: a table of changes, and a change in one line."""

from __future__ import annotations

from collections.abc import Sequence

from farmd.tables.model import Column, Table, differences
from store.audit import Audit
from store.times import plain, rfc3339
from store.words import listed


def table(rows: Sequence[Audit], broken: Sequence[str]) -> Table:
    """One line for each change."""
    columns = (
        Column("TIME", lambda row: rfc3339(row.at)),
        Column("ACTOR", lambda row: row.actor),
        Column("ACTION", lambda row: row.action),
        Column("ITEM", lambda row: row.name or row.id),
        Column("ID", lambda row: row.id, wide=True),
        Column("CHANGE", summary),
        Column("REASON", lambda row: row.reason),
    )
    return Table(
        kind="AuditRecord",
        rows=rows,
        columns=columns,
        name=lambda row: f"audit/{rfc3339(row.at)}/{row.id}",
        plain=plain,
        broken=broken,
        empty="no audit records",
    )


def summary(record: Audit) -> str:
    """The change in one line."""
    words = differences(record.before, record.after)
    pods = {"placed": record.placed, "removed": record.removed, "relabelled": record.relabelled}
    words += [f"{word} {listed(items, 4)}" for word, items in pods.items() if items]
    return "; ".join(words)


def line(record: Audit) -> str:
    """A change of one item."""
    return f"{record.action}  {record.actor}  {told(record)}"


def told(record: Audit) -> str:
    """The change in one line, and its reason in brackets."""
    return " ".join(part for part in (summary(record), record.reason and f"({record.reason})") if part)
