"""The table of services."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from farmd.services.commands import ServiceRow
from farmd.tables.model import Column, Table
from farmd.tables.words import ago
from store.images import parse
from store.services import NOUN, Version
from store.times import plain


def table(rows: Sequence[ServiceRow], broken: Sequence[str], now: float) -> Table:
    """One line for each service; ``now`` in seconds since the epoch."""
    columns = (
        Column("NAME", lambda row: row.record.name),
        Column("ID", lambda row: row.record.id, wide=True),
        Column("PROJECT", lambda row: row.record.project or "-"),
        Column("MODE", lambda row: row.record.mode or "-"),
        Column("HEALTHY", lambda row: f"{row.healthy}/{row.desired}"),
        Column("REVISION", lambda row: str(row.record.revision or "-")),
        Column("DEPLOYMENT", lambda row: row.deployment or "-"),
        Column("PORT", lambda row: row.record.port),
        Column("IMAGE", lambda row: image(row.record.version), wide=True),
        Column("ACTIVE", active),
        Column("AGE", lambda row: ago(now, row.record.created), wide=True),
    )
    return Table(
        kind="Service",
        rows=rows,
        columns=columns,
        name=lambda row: f"{NOUN}/{row.record.name}",
        plain=plain_row,
        broken=broken,
        empty="no services",
    )


def image(version: Version | None) -> str:
    """The image of a version, without the parts that are usual."""
    return parse(version.image).short if version is not None and version.image else "-"


def active(row: ServiceRow) -> str:
    """The owners whose pods serve, as people write them."""
    return ", ".join([*row.serving, *(f"{ref} (gone)" for ref in row.gone)]) or "-"


def plain_row(row: ServiceRow) -> dict[str, Any]:
    """For JSON: the record's own fields, and what is known besides."""
    told = {name: getattr(row, name) for name in ("serving", "gone", "desired", "healthy")}
    found: dict[str, Any] = {**plain(row.record), **told, "deploying": row.deployment}
    return found
