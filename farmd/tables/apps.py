"""The table of apps, and the facts of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from farmd.apps.commands import told
from farmd.apps.plan import falls_back
from farmd.apps.scene import AppState, Kept
from farmd.tables.model import Column, Table, ago
from store.times import plain


def table(rows: Sequence[AppState], broken: Sequence[str]) -> Table:
    """One line for each app."""
    return Table(
        kind="App",
        rows=rows,
        columns=(
            Column("NAME", lambda row: row.name),
            Column("STATE", state),
            Column("REVISION", lambda row: str(row.stored.record.revision)),
            Column("REACHED", lambda row: str(row.state.reached or "-")),
            Column("READY", ready),
            Column("LEFT", lambda row: str(row.status.left) if row.reported else "-"),
            Column("REASON", reason),
        ),
        name=lambda row: f"app/{row.name}",
        plain=plain_row,
        broken=broken,
        empty="no apps",
    )


def state(now: AppState) -> str:
    """One word for what is happening."""
    assert now.stored is not None
    if now.stored.record.deleting:
        return "deleting"
    if now.unowned:
        return "unowned"
    if now.lost:
        return "blocked"
    return now.status.state if now.status is not None and now.reported else "pending"


def ready(now: AppState) -> str:
    """How many objects are as the revision that is applied says, of how many; ``-``: nobody could look."""
    if now.stored is None or now.status is None or not (now.reported and now.status.objects):
        return "-"
    back = falls_back(now.stored.record, now.state)
    return f"{now.status.ready}/{now.status.objects}{f' of revision {now.state.reached}' if back else ''}"


def reason(now: AppState) -> str:
    """Why no farm works on it, what it lacks, or what its farm says of it as it is now."""
    return now.unowned or now.lost or (now.status.reason if now.status is not None and now.reported else "")


def plain_row(now: AppState) -> dict[str, Any]:
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


def facts(now: AppState, kept: Kept, at: float) -> list[tuple[str, str]]:
    """The lines of ``describe`` for an app, with what is wrong with its revisions."""
    assert now.stored is not None
    record, progress, tracker = now.stored.record, now.state, kept.tracker
    lost = "cannot be read" if record.revision in kept.broken else "somebody removed"
    told_of = f"{record.revision}, which {lost}"
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
        (
            "Prune",
            "objects that are no longer in the files are removed"
            if record.prune
            else "objects that are no longer in the files stay",
        ),
    ]
    found += [("Broken", text) for text in kept.broken.values()]
    found += [("Reason", tracker.reason)] if tracker is not None and tracker.reason else []
    found += [("Failed", f"revision {progress.refused}: {progress.failure}")] if progress.refused else []
    found += [("Paused", f"farmctl app resume {now.name} continues it")] if record.paused else []
    return found
