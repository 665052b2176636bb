"""Renders named records: a line in a table, and the facts of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from farmd.commands.mutation import holder_told
from farmd.commands.noun import Noun
from farmd.overview import Row
from farmd.tables.model import Column, Table, ago, pairs
from store.locks import Holder
from store.times import plain, rfc3339

_RECORD_FACTS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "manifest": ("Manifest", str),
    "pod_id": ("Pod id", str),
    "node_selector": ("Node selector", lambda selector: selector or "(every node)"),
    "labels": ("Labels", pairs),
    "pod_labels": ("Pod labels", pairs),
}


def _count(name: str) -> Callable[[Any], str]:
    """A column of the status: a number, or ``-`` while it is not known."""
    return lambda row: _number(row, 0 if row.status is None else getattr(row.status, name))


def _number(row: Row[Any], count: int) -> str:
    """A count of the status; 0 of an outdated status may be of before a rollout brought the pods."""
    known = row.status is not None and (count or row.reported)
    return str(count) if known else "-"


def _desired(row: Row[Any]) -> str:
    return _count("desired")(row) if row.record.count is None else str(row.record.count)


def _serving(row: Row[Any]) -> str:
    # A farm of an earlier version reports none, but whatever is healthy serves.
    return _number(row, 0 if row.status is None else max(row.status.serving, row.status.healthy))


_COUNTS = (
    Column("DESIRED", _desired),
    Column("PLACED", _count("placed")),
    Column("HEALTHY", _count("healthy")),
    Column("OUTDATED", _count("outdated")),
    Column("SERVING", _serving),
)


def _column(title: str, shown: Callable[[Any, Any], str]) -> Column:
    """A column of one kind alone."""
    return Column(title, lambda row: shown(row.record, row.status))


_PROGRESS = Column("PROGRESS", lambda row: "-" if row.status is None else row.status.progress)


def table(noun: Noun[Any, Any], rows: Sequence[Row[Any]], now: float, broken: Sequence[str] = ()) -> Table:
    """One line for each record; owners of pods with their counts."""
    columns = [
        Column("NAME", lambda row: row.record.name),
        Column("ID", lambda row: row.record.id, wide=True),
        *([] if noun.pods is None else _COUNTS),
        Column("STATE", lambda row: row.state),
        *(_column(*each) for each in noun.columns),
        *([_PROGRESS] if noun.words.ended and not noun.columns else []),
        *(
            [Column("AGE", lambda row: ago(now, row.record.created), order=lambda row: -row.record.created)]
            if noun.aged
            else []
        ),
        Column("OWNER", lambda row: row.owner or "-", wide=True),
    ]
    if noun.pods is not None:
        columns.append(Column("MANIFEST", lambda row: row.record.manifest[:12], wide=True))
        columns.append(Column("SELECTOR", lambda row: row.record.node_selector, wide=True))
    return Table(
        kind=noun.document,
        rows=rows,
        columns=(*columns, Column("REASON", lambda row: row.reason)),
        name=lambda row: f"{noun.words.noun}/{row.record.name}",
        plain=plain_row,
        broken=broken,
        empty=f"no {noun.words.many}",
    )


def plain_row(row: Row[Any]) -> dict[str, Any]:
    """For JSON: the record's own fields, and what is known besides."""
    return {
        **plain(row.record),
        "state": row.state,
        "owner": row.owner,
        "modify_index": row.index,
        "status": plain(row.status),
        "status_outdated": row.status is not None and not row.reported,
    }


def facts(
    noun: Noun[Any, Any], row: Row[Any], now: float, runs: Sequence[tuple[str, str]] = ()
) -> list[tuple[str, str]]:
    """The lines of ``describe`` for a record; ``runs`` are those of its pods' manifest."""
    record, own = row.record, list(noun.facts(row.record, row.status))
    counts = own[:1] if noun.pods is not None else []
    told = [
        ("Name", record.name),
        ("Id", record.id),
        ("State", row.state + (f": {row.reason}" if row.reason else "")),
        *counts,
        ("Owner", f"farm {row.owner}" if row.owner else "none"),
    ]
    if created := getattr(record, "created", 0.0):
        told.append(("Age", f"{ago(now, created)}, created {rfc3339(created)}"))
    if row.whole:
        told.append(("Part of", row.whole))
    if hasattr(record, "managed_by"):
        told.append(("Managed by", row.managed or record.managed_by or "nobody"))
    if row.locked:
        told.append(("Locked", f"by {holder_told(Holder.parse(row.locked.encode()))}"))
    told += [
        (title, shown(getattr(record, name)))
        for name, (title, shown) in _RECORD_FACTS.items()
        if name in record.__struct_fields__
    ]
    return [*told, *own[len(counts) :], *runs]
