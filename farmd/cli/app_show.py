"""``farmctl app list | get | describe | explain | history``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import click

from farmd.apps.bundle import render_all
from farmd.apps.facts import Live, owner_of
from farmd.apps.revision import found
from farmd.apps.scene import AppState, Kept, lives, naming, standing, standings
from farmd.cli import noun_show
from farmd.cli.apply_cluster import looking
from farmd.cli.invocation import Invocation
from farmd.cli.names import checked, objects, target
from farmd.cli.noun_show import describe_item
from farmd.cli.options import Whole, command
from farmd.cli.output import as_yaml, document, emit, show
from farmd.commands.resolving import referring
from farmd.tables.apps import AppItems, AppObject, object_lines, object_state, plain_object
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


@command("describe")
@APP
async def describe(invocation: Invocation, name: str) -> None:
    """One app: its settings, its progress, and the state of each object."""
    found = await _items(invocation).described(name)
    describe_item(invocation, "App", "app", found, room=12)


def _items(invocation: Invocation) -> AppItems:
    return AppItems(invocation.call, partial(_objects, invocation))


async def _objects(invocation: Invocation, now: AppState, known: Kept) -> list[AppObject]:
    """The objects of the wanted revision, then those no longer in the files, each with its live state."""
    entries = known.entries
    live, asked = await _seen(invocation, now, entries)
    shown = [
        AppObject(entry, live.get(ref), object_state(now, entry, live.get(ref), asked=asked))
        for ref, entry in entries.items()
    ]
    return sorted(
        (row for row in shown if row.live is not None or not row.entry.left),
        key=lambda row: (row.entry.left, row.entry.wave, str(row.entry.ref)),
    )


async def _seen(
    invocation: Invocation, now: AppState, entries: Mapping[str, Entry]
) -> tuple[Mapping[str, Live], bool]:
    """The live objects, and whether Kubernetes was asked. While the API server does not answer, the other
    objects are still shown.
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
        noun_show.explain(invocation, await _items(invocation).explained(name), "AppExplanation")


async def _explain_object(invocation: Invocation, ref: str) -> None:
    shown, unread = await naming(invocation.call, ref)
    for name, revision, entry in shown:
        now = await standing(invocation.call, name)
        found_live, asked = await _seen(invocation, now, {ref: entry})
        live = found_live.get(ref)
        row = AppObject(entry, live, object_state(now, entry, live, asked=asked))
        if invocation.settings.output in {"json", "yaml"}:
            emit(invocation, document("AppObject", {"app": name, **plain_object(row)}))
            continue
        for line in object_lines(row, f" in app/{name}, revision {revision}"):
            click.echo(clean(line))
    for text in unread:
        invocation.say(text)
    if not shown:
        files = "no app that could be read" if unread else "no app"
        raise NotFound(f"{ref!r} is in {files}", id=ref, hint="farmctl app list")
