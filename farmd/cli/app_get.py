"""``farmctl app get | history``: the revisions of an app and their documents."""

from __future__ import annotations

import click

from farmd.apps.bundle import render_all
from farmd.apps.revision import found
from farmd.cli.invocation import Invocation
from farmd.cli.names import objects, target
from farmd.cli.options import Whole, command
from farmd.cli.output import as_yaml, document, emit, show
from farmd.tables.model import Column, Table, ago
from store.apps import KIND, AppStore, ResourceTracker
from store.errors import NotFound, RecordInvalid
from store.times import moment, plain

APP = target("app", objects(KIND))


@command("get")
@click.option("--revision", type=Whole(min=1), metavar="N", help="Another revision than the wanted.")
@APP
async def get(invocation: Invocation, name: str, revision: int | None) -> None:
    """The documents of an app's revision, as files that apply accepts."""
    now = await found(invocation.call, name)
    assert now.stored is not None
    number = revision or now.stored.record.revision
    entries = await AppStore(invocation.client, invocation.keys).entries(name, number)
    documents = render_all(name, now.stored.record, entries)
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
            invocation.say(f"left, in no file: {', '.join(left)}")


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
