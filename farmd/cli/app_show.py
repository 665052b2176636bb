"""``farmctl app list | get | describe | explain | history``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import click

from farmd.apps.bundle import render_all
from farmd.apps.commands import told
from farmd.apps.facts import Live, owner_of
from farmd.apps.revision import found
from farmd.apps.scene import AppState, Kept, kept, lives, naming, owned, standing, standings
from farmd.cli.apply_cluster import looking
from farmd.cli.invocation import Invocation
from farmd.cli.names import checked, objects, target
from farmd.cli.options import Whole, command
from farmd.cli.output import as_yaml, document, emit, say_facts, show, text_table
from farmd.commands.resolving import referring
from farmd.tables.apps import facts, plain_row
from farmd.tables.apps import table as apps_table
from farmd.tables.model import Column, Table, ago, clean
from store import selectors
from store.apps import KIND, AppStore, Entry, ResourceTracker
from store.errors import InputInvalid, NotFound, RecordInvalid, StoreError
from store.times import moment, plain

# ``farmctl app get | history``: the revisions of an app and their documents.

APP = target("app", objects(KIND))


@command("get")
@click.option("--revision", type=Whole(min=1), metavar="N", help="A revision other than the requested one.")
@APP
async def get(invocation: Invocation, name: str, revision: int | None) -> None:
    """The documents of an app's revision, as files that apply accepts."""
    now = await found(invocation.call, name)
    assert now.stored is not None
    number = revision or now.stored.record.revision
    entries = await AppStore(invocation.client, invocation.keys).entries(name, number)
    documents = list(map(referring, render_all(name, now.stored.record, entries)))
    left = [str(entry.ref) for entry in entries if entry.left]
    if invocation.settings.output == "json":
        content = {"name": name, "revision": number, "items": documents, "left": left}
        emit(invocation, document("AppRevision", content), values=True)
    elif invocation.settings.output == "name":
        for entry in entries:
            click.echo(str(entry.ref))
    else:
        click.echo("---\n".join(as_yaml(each) for each in documents), nl=False)
        if left:
            invocation.say(f"no longer in the files: {', '.join(left)}")


@command("history", lists=True)
@APP
async def history(invocation: Invocation, name: str) -> None:
    """The revisions of an app that are kept, newest first."""

    async def read() -> Table:
        now = await found(invocation.call, name)
        assert now.stored is not None
        store, broken = AppStore(invocation.client, invocation.keys), []
        rows: list[tuple[ResourceTracker, str]] = []
        for number in reversed(await store.revisions(name)):
            try:
                tracker = await store.tracker(name, number)
            except NotFound:
                continue
            except RecordInvalid as error:
                broken.append(error.message)
                continue
            rows.append((tracker, _state(number, now.stored.record.revision, now.state)))
        return _table(name, rows, broken, invocation.call.clock.now())

    await show(invocation, read)


def _state(number: int, wanted: int, state: object) -> str:
    marks = {
        "wanted": wanted,
        "reached": getattr(state, "reached", 0),
        "failed": getattr(state, "refused", 0),
    }
    return ",".join(word for word, at in marks.items() if at == number)


def _table(name: str, rows: list[tuple[ResourceTracker, str]], broken: list[str], now: float) -> Table:
    return Table(
        kind="AppRevision",
        rows=rows,
        columns=(
            Column("REVISION", lambda row: str(row[0].revision)),
            Column("STATE", lambda row: row[1]),
            Column("OBJECTS", lambda row: str(row[0].count)),
            Column("OF", lambda row: str(row[0].of or "")),
            Column("AGE", lambda row: ago(now, row[0].at)),
            Column("BY", lambda row: row[0].by),
            Column("REASON", lambda row: row[0].reason),
        ),
        name=lambda row: f"app/{name}@{row[0].revision}",
        plain=lambda row: _plain(*row),
        broken=broken,
        empty="no revisions",
    )


def _plain(tracker: ResourceTracker, state: str) -> dict[str, object]:
    fields = plain(tracker)
    fields.pop("packed", None)
    return {**fields, "at": moment(tracker.at), "state": state}


# ``farmctl app list | describe | explain``.


@command("list", lists=True)
@click.option("-l", "--selector", default="", help="Only apps whose labels match.")
async def list_(invocation: Invocation, selector: str) -> None:
    """All apps: revision, state, how many objects are ready or left."""
    wanted = selectors.parse(selector)

    async def read() -> Table:
        rows, broken = await standings(invocation.call)
        return apps_table(
            [row for row in rows if row.stored and wanted.matches(row.stored.record.labels)], broken
        )

    await show(invocation, read)


class _Object(NamedTuple):
    """One object of an app: its entry, and how it stands; None: it is not there."""

    entry: Entry
    live: Live | None
    state: str


@command("describe")
@APP
async def describe(invocation: Invocation, name: str) -> None:
    """One app: its settings, its progress, and the state of each object."""
    now = await owned(invocation.call, await found(invocation.call, name))
    known = await kept(invocation.call, now)
    rows = await _objects(invocation, now, known)
    if invocation.settings.output in {"json", "yaml"}:
        items = [_plain_object(row) for row in rows]
        emit(
            invocation,
            document("App", {**plain_row(now), "objects": items, "broken": list(known.broken.values())}),
        )
        return
    if invocation.settings.output == "name":
        click.echo(f"app/{name}")
        return
    say_facts(facts(now, known, invocation.call.clock.now()), 12)
    click.echo(f"\nObjects ({len(rows)})")
    for line in text_table(invocation, _objects_table(rows), indent=2):
        click.echo(f"  {line}")


async def _objects(invocation: Invocation, now: AppState, known: Kept) -> list[_Object]:
    """The objects of the wanted revision, then what is left, each as it stands."""
    entries = known.entries
    live, asked = await _seen(invocation, now, entries)
    shown = [
        _Object(entry, live.get(ref), _of(now, entry, live.get(ref), asked=asked))
        for ref, entry in entries.items()
    ]
    return sorted(
        (row for row in shown if row.live is not None or not row.entry.left),
        key=lambda row: (row.entry.left, row.entry.wave, str(row.entry.ref)),
    )


async def _seen(
    invocation: Invocation, now: AppState, entries: Mapping[str, Entry]
) -> tuple[Mapping[str, Live], bool]:
    """How objects stand, and whether those in Kubernetes were asked for. While the API server is away, the
    other objects are still shown.
    """
    call = _asking(invocation, now)
    try:
        async with looking(invocation, now, only=True) as outside:
            return await lives(call, entries, outside, judged=True), outside is not None
    except StoreError as error:
        if all(entry.ref.own for entry in entries.values()) or isinstance(error, InputInvalid):
            raise
        live = await lives(call, entries, judged=True)  # raises where it is Consul that does not answer
        invocation.say(f"Kubernetes does not answer: {error.message}")
        return live, False


def _asking(invocation: Invocation, now: AppState) -> Any:
    from dataclasses import replace

    return replace(invocation.call, part_of=owner_of(now.name))


def _of(now: AppState, entry: Entry, live: Live | None, *, asked: bool) -> str:
    """One word for an object: what keeps it from being as its file says, else its verdict. ``asked``: its
    cluster was, if it lies in one.
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


def _objects_table(rows: Sequence[_Object]) -> Table:
    return Table(
        kind="AppObject",
        rows=rows,
        columns=(
            Column("OBJECT", lambda row: str(row.entry.ref)),
            Column("STATE", lambda row: row.state),
            Column("WAVE", lambda row: str(row.entry.wave)),
            Column("REASON", _reason),
        ),
        name=lambda row: str(row.entry.ref),
        plain=_plain_object,
        empty="none",
    )


def _reason(row: _Object) -> str:
    if row.live is None:
        return ""
    if row.state == "differs":
        return ", ".join(row.live.differs)
    return row.live.busy or (row.live.owner if row.state == "foreign" else row.live.why)


def _plain_object(row: _Object) -> dict[str, Any]:
    live: Mapping[str, Any] = {}
    if row.live is not None:
        live = {name: getattr(row.live, name) for name in ("owner", "differs", "verdict", "why", "busy")}
    return {"object": str(row.entry.ref), "state": row.state, "wave": row.entry.wave, **live}


@command("explain")
@click.argument("target", metavar="NAME|REF", callback=checked, shell_complete=objects(KIND))
async def explain(invocation: Invocation, target: str) -> None:
    """Why an app does not match its files; or, for an object such as rc/web, its app, its state and what its
    app's files say about it.
    """
    name = target.removeprefix("app/")
    if "/" in name:
        await _explain_object(invocation, target)
    else:
        await _explain_app(invocation, name)


async def _explain_app(invocation: Invocation, name: str) -> None:
    """How far an app is, and all of its objects that are not as they should be."""
    now = await owned(invocation.call, await found(invocation.call, name))
    known = await kept(invocation.call, now)
    rows = [row for row in await _objects(invocation, now, known) if row.state not in ("ready", "left")]
    if invocation.settings.output in {"json", "yaml"}:
        items = [_plain_object(row) for row in rows]
        content = {
            "app": name,
            "progress": told(now),
            "objects": items,
            "broken": list(known.broken.values()),
        }
        emit(invocation, document("AppExplanation", content))
        return
    click.echo(clean(f"app/{name}: {told(now)}"))
    for text in known.broken.values():
        click.echo(clean(text))
    for row in rows:
        _tell(row)


def _tell(row: _Object, where: str = "") -> None:
    click.echo(clean(f"{row.entry.ref}: {row.state}{where}"))
    for line in _said(row):
        click.echo(f"  {clean(line)}")


async def _explain_object(invocation: Invocation, ref: str) -> None:
    shown, unread = await naming(invocation.call, ref)
    for name, revision, entry in shown:
        now = await standing(invocation.call, name)
        found_live, asked = await _seen(invocation, now, {ref: entry})
        live = found_live.get(ref)
        row = _Object(entry, live, _of(now, entry, live, asked=asked))
        if invocation.settings.output in {"json", "yaml"}:
            emit(invocation, document("AppObject", {"app": name, **_plain_object(row)}))
            continue
        _tell(row, f" in app/{name}, revision {revision}")
    for text in unread:
        invocation.say(text)
    if not shown:
        files = "no app that could be read" if unread else "no app"
        raise NotFound(f"{ref!r} is in {files}", id=ref, hint="farmctl app list")


def _said(row: _Object) -> list[str]:
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
