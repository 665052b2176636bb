"""The table of apps, and the facts of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from farmd.dispatch.standing import Standing
from farmd.dispatch.waiting import told
from farmd.tables.model import Column, Table
from farmd.tables.words import ago
from store.apps import ResourceTracker
from store.times import plain


def table(rows: Sequence[Standing], broken: Sequence[str]) -> Table:
    """One line for each app."""
    return Table(
        kind="App",
        rows=rows,
        columns=(
            Column("NAME", lambda row: row.name),
            Column("STATE", state),
            Column("REVISION", lambda row: str(row.stored.record.revision)),
            Column("REACHED", lambda row: str(row.state.reached or "-")),
            Column("READY", lambda row: f"{row.status.ready}/{row.status.objects}" if row.status else "-"),
            Column("LEFT", lambda row: str(row.status.left) if row.status else "-"),
            Column("REASON", reason),
        ),
        name=lambda row: f"app/{row.name}",
        plain=plain_row,
        broken=broken,
        empty="no apps",
    )


def state(now: Standing) -> str:
    """One word for what is happening."""
    assert now.stored is not None
    if now.stored.record.deleting:
        return "deleting"
    if now.unowned:
        return "unowned"
    return now.status.state if now.status is not None and now.reported else "pending"


def reason(now: Standing) -> str:
    """Why no farm works on it, or what its farm says of it as it is now."""
    return now.unowned or (now.status.reason if now.status is not None and now.reported else "")


def plain_row(now: Standing) -> dict[str, Any]:
    """For JSON: the record, how far it is, and its status."""
    assert now.stored is not None
    return {
        "name": now.name,
        "state": state(now),
        "record": plain(now.stored.record),
        "progress": plain(now.state),
        "status": plain(now.status) if now.status is not None else None,
        "status_outdated": now.status is not None and not now.reported,
    }


def facts(now: Standing, tracker: ResourceTracker | None, at: float) -> list[tuple[str, str]]:
    """The lines of ``describe`` for an app; ``tracker`` is that of its wanted revision, if it is there."""
    assert now.stored is not None
    record, progress = now.stored.record, now.state
    told_of = f"{record.revision}, which somebody removed"
    if tracker is not None:
        told_of = f"{record.revision}, by {tracker.by} {ago(at, tracker.at)} ago"
        told_of += f", as revision {tracker.of}" if tracker.of else ""
    found = [
        ("Name", now.name),
        ("State", state(now)),
        ("Progress", told(now)),
        ("Revision", told_of),
        ("Reached", str(progress.reached or "none")),
        ("On failure", f"{record.on_failure}, a wave has {record.deadline:g} s"),
        ("Prune", "what left the files goes" if record.prune else "what left the files stays"),
    ]
    found += [("Reason", tracker.reason)] if tracker is not None and tracker.reason else []
    found += [("Failed", f"revision {progress.refused}: {progress.failure}")] if progress.refused else []
    found += [("Paused", f"farmctl app resume {now.name} goes on")] if record.paused else []
    return found
