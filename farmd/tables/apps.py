"""The table of apps, and the description and explanation of one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

from farmd.apps.commands import told
from farmd.apps.facts import Live, owner_of
from farmd.apps.plan import falls_back
from farmd.apps.revision import found
from farmd.apps.scene import AppState, Kept, kept, owned
from farmd.commands.mutation import Call
from farmd.tables.items import Items
from farmd.tables.model import Column, Described, Explained, Table, ago
from store.apps import KIND, AppStatus, Entry
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
    """How many objects match the applied revision, of how many; ``-``: unknown."""
    if now.stored is None or now.status is None or not (now.reported and now.status.objects):
        return "-"
    back = falls_back(now.stored.record, now.state)
    return f"{now.status.ready}/{now.status.objects}{f' of revision {now.state.reached}' if back else ''}"


def reason(now: AppState) -> str:
    """Why no farm works on the app, why its revision is lost, or the reason that its farm reports."""
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


def facts(now: AppState, known: Kept, at: float) -> list[tuple[str, str]]:
    """The lines of ``describe`` for an app, with what is wrong with its revisions."""
    assert now.stored is not None
    record, progress, tracker = now.stored.record, now.state, known.tracker
    lost = "cannot be read" if record.revision in known.broken else "somebody removed"
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
    found += [("Broken", text) for text in known.broken.values()]
    found += [("Reason", tracker.reason)] if tracker is not None and tracker.reason else []
    found += [("Failed", f"revision {progress.refused}: {progress.failure}")] if progress.refused else []
    found += [("Paused", f"farmctl app resume {now.name} continues it")] if record.paused else []
    return found


# The objects of an app.


class AppObject(NamedTuple):
    """One object of an app: its entry, and its live state; None: it is missing."""

    entry: Entry
    live: Live | None
    state: str


def object_state(now: AppState, entry: Entry, live: Live | None, *, asked: bool) -> str:
    """One word for an object: why it differs from its file, otherwise its verdict. ``asked``: its cluster
    was read, if it is in one.
    """
    if live is None:
        return "missing" if entry.ref.own or asked else "unknown"
    if live.owner != owner_of(now.name):
        return "nobody's" if not live.owner else "foreign"
    if entry.left:
        return "left"
    if live.differs or live.busy:
        return "differs" if live.differs else "busy"
    # A process that has just begun to look cannot know for how long pods are healthy; the farm does.
    settled = now.reported and now.status is not None and now.status.phase == "reached"
    return "ready" if settled else live.verdict


def _objects_table(rows: Sequence[AppObject]) -> Table:
    return Table(
        kind="AppObject",
        rows=rows,
        columns=(
            Column("OBJECT", lambda row: str(row.entry.ref)),
            Column("STATE", lambda row: row.state),
            Column("WAVE", lambda row: str(row.entry.wave)),
            Column("REASON", _object_reason),
        ),
        name=lambda row: str(row.entry.ref),
        plain=plain_object,
        empty="none",
    )


def _object_reason(row: AppObject) -> str:
    if row.live is None:
        return ""
    if row.state == "differs":
        return ", ".join(row.live.differs)
    return row.live.busy or (row.live.owner if row.state == "foreign" else row.live.why)


def plain_object(row: AppObject) -> dict[str, Any]:
    """For JSON: an object and its state."""
    live: Mapping[str, Any] = {}
    if row.live is not None:
        live = {name: getattr(row.live, name) for name in ("owner", "differs", "verdict", "why", "busy")}
    return {"object": str(row.entry.ref), "state": row.state, "wave": row.entry.wave, **live}


def object_lines(row: AppObject, where: str = "") -> list[str]:
    """The lines of ``explain`` for an object: its state, then its settings in the app's files."""
    return [f"{row.entry.ref}: {row.state}{where}", *(f"  {line}" for line in _said(row))]


def _said(row: AppObject) -> list[str]:
    entry, live = row.entry, row.live
    lines = [f"wave {entry.wave}" + (f", after {', '.join(entry.after)}" if entry.after else "")]
    lines += ["kept when it is no longer in the files"] if entry.on_remove == "keep" else []
    lines += ["applied once in each revision"] if entry.apply == "once" else []
    lines += [f"ignored: {', '.join(entry.ignore)}"] if entry.ignore else []
    lines += ["in no file; --prune removes it"] if entry.left else []
    if live is not None:
        lines += [f"differs in {', '.join(live.differs)}"] if live.differs else []
        lines += [text for text in (live.busy, live.why) if text]
    return lines


class AppItems(Items):
    """The apps. ``objects`` reads the objects of one app with a person's login to its cluster; without it, a
    description has what the app's farm is waiting for.
    """

    def __init__(
        self,
        call: Call,
        objects: Callable[[AppState, Kept], Awaitable[Sequence[AppObject]]] | None = None,
    ) -> None:
        super().__init__(call)
        self._objects = objects

    async def _read(self, name: str) -> tuple[AppState, Kept, Sequence[AppObject]]:
        now = await owned(self.call, await found(self.call, name))
        known = await kept(self.call, now)
        return now, known, () if self._objects is None else await self._objects(now, known)

    async def described(self, name: str) -> Described:
        now, known, objects = await self._read(name)
        tables = {f"Objects ({len(objects)})": _objects_table(objects)}
        return Described(
            id=name,
            name=name,
            state=state(now),
            reason=reason(now),
            facts=facts(now, known, self.call.clock.now()),
            tables={"Waited for": _waiting_table(now)} if self._objects is None else tables,
            row=now,
            audited=KIND,
            document={**plain_row(now), "objects": list(map(plain_object, objects))},
            broken=list(known.broken.values()),
        )

    async def explained(self, name: str) -> Explained:
        """How far an app is, and each of its objects that differs from its file."""
        now, known, objects = await self._read(name)
        broken = list(known.broken.values())
        rows = [row for row in objects if row.state not in ("ready", "left")]
        lines = [f"app/{name}: {told(now)}", *broken, *(line for row in rows for line in object_lines(row))]
        document = {
            "app": name,
            "progress": told(now),
            "objects": list(map(plain_object, rows)),
            "broken": broken,
        }
        return Explained(lines, document, lines)


def _waiting_table(now: AppState) -> Table:
    status: AppStatus | None = now.status if now.reported else None
    return Table(
        kind="AppObject",
        rows=() if status is None else status.waiting,
        columns=(
            Column("OBJECT", lambda row: row.ref),
            Column("STATE", lambda row: row.state),
            Column("REASON", lambda row: row.why),
        ),
        name=lambda row: str(row.ref),
        plain=plain,
        empty="it is not waiting for anything",
    )
