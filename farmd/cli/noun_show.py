"""``list | get | describe`` of every noun, ``explain | pods`` of owners of pods."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import click

from farmd import overview
from farmd.cli.invocation import Invocation
from farmd.cli.names import objects, target
from farmd.cli.options import command
from farmd.cli.output import as_json, as_yaml, document, emit, say_facts, say_folded, show, text_table
from farmd.commands import versions
from farmd.commands.heads import headed
from farmd.commands.noun import Noun, explain
from farmd.commands.resolving import referring
from farmd.kinds import KINDS
from farmd.overview import Pods, Row
from farmd.tables import changes
from farmd.tables import manifests as manifest_facts
from farmd.tables import nouns as noun_tables
from farmd.tables.model import Table, ago, clean
from farmd.tables.pods import pod_table, same_owner
from scheduler import explain as words
from store import selectors
from store.audit import Audit, AuditReader, Filter
from store.times import plain

# Shows what ``describe`` tells of one item: facts, pods and its latest changes.


def describe(
    invocation: Invocation,
    told: Sequence[tuple[str, str]],
    found: Pods | None,
    history: Sequence[Audit],
    more: Mapping[str, Table] = MappingProxyType({}),
) -> None:
    """Show the facts, the pods of an owner, ``more`` by title, and the latest changes."""
    now = invocation.call.clock.now()
    say_facts(told, 15)
    if found is not None:
        click.echo(f"\nPods ({len(found.rows)})")
        shown = pod_table(found.rows, found.broken, now, same=same_owner(found.rows))
        for line in text_table(invocation, shown, indent=2) if found.rows else ["none"]:
            click.echo(f"  {line}")
    for title, table in more.items():
        click.echo(f"\n{title}")
        for line in text_table(invocation, table, indent=2) if table.rows else [table.empty]:
            click.echo(f"  {line}")
    if history or not more:
        click.echo("\nHistory (newest first)")
    for record in history:
        say_folded(f"{ago(now, record.at):>6}  ", clean(changes.line(record)))
    for broken in found.broken if found is not None else ():
        click.echo(f"farmctl: broken record left out: {clean(broken)}", err=True)


_HISTORY = 8


def listing(noun: Noun[Any, Any]) -> click.Command:
    """``list``."""

    async def run(invocation: Invocation, selector: str) -> None:
        wanted, client, keys = selectors.parse(selector), invocation.client, invocation.keys

        async def read() -> Table:
            found = await overview.rows(client, keys, noun.records(client, keys))
            chosen = [row for row in found.rows if wanted.matches(getattr(row.record, "labels", {}))]
            return noun_tables.table(noun, chosen, invocation.call.clock.now(), found.broken)

        await show(invocation, read)

    run.__doc__ = f"All {noun.words.many}, with what their owners last reported."
    help_ = f"Only {noun.words.many} whose own labels match."
    return command("list", lists=True)(click.option("-l", "--selector", default="", help=help_)(run))


def getting(noun: Noun[Any, Any]) -> click.Command:
    """``get`` of what people create from files."""
    word = noun.words.noun
    help_ = f"Print a file that {word} create and {word} update accept."
    return _get(noun, click.option("--file", "as_file", is_flag=True, help=help_))


def seeing(noun: Noun[Any, Any]) -> click.Command:
    """``get`` of what no file makes as it is."""
    return _get(noun, _unchanged)


def _unchanged(run: Any) -> Any:
    """No option."""
    return run


def _get(noun: Noun[Any, Any], option: Callable[[Any], Any]) -> click.Command:
    async def run(invocation: Invocation, name: str, as_file: bool = False) -> None:
        row = partial(noun.row, invocation.call, name)
        settings = invocation.settings
        if as_file or (option is not _unchanged and settings.output == "yaml" and not settings.watch):
            spec = referring(await noun.as_file(invocation.call, (await row()).record))
            emit_file(invocation, headed(noun.words.noun, spec))
        else:
            await show_one(invocation, noun, row)

    run.__doc__ = f"One {noun.words.one} by name, id or a prefix of its id."
    return command("get", lists=True)(target(noun.words.noun, objects(noun.kind))(option(run)))


async def show_one(
    invocation: Invocation, noun: Noun[Any, Any], row: Callable[[], Awaitable[Row[Any]]]
) -> None:
    """Show the one item that ``row`` reads."""

    async def read() -> Table:
        return noun_tables.table(noun, [await row()], invocation.call.clock.now())

    if invocation.settings.output in {"json", "yaml"} and not invocation.settings.watch:
        emit(invocation, document(noun.document, noun_tables.plain_row(await row())))
    else:
        await show(invocation, read)


def emit_file(invocation: Invocation, spec: Any) -> None:
    """Show an item as the file that makes it."""
    output = invocation.settings.output
    click.echo(as_json(spec) if output == "json" else as_yaml(spec), nl=output == "json")


def pods(noun: Noun[Any, Any]) -> click.Command:
    """``pods``."""

    async def run(invocation: Invocation, name: str) -> None:
        async def read() -> Table:
            row = await noun.row(invocation.call, name)
            found = await versions.pods(invocation.call, noun, row.record)
            return pod_table(
                found.rows, found.broken, invocation.call.clock.now(), same=same_owner(found.rows)
            )

        await show(invocation, read)

    run.__doc__ = f"The pods of a {noun.words.one}, with what their nodes report."
    if way := KINDS.get(noun.words.gradual):
        run.__doc__ += f" During a {way.one}, the pods of both versions."
    return command("pods", lists=True)(target(noun.words.noun, objects(noun.kind))(run))


def describing(noun: Noun[Any, Any]) -> click.Command:
    """``describe``."""

    async def run(invocation: Invocation, name: str) -> None:
        client, keys, output = invocation.client, invocation.keys, invocation.settings.output
        row = await noun.row(invocation.call, name)
        found = None if noun.pods is None else await versions.pods(invocation.call, noun, row.record)
        wanted = Filter(kind=noun.kind, item=row.record.id)
        history = await AuditReader(client, keys).read(wanted, _HISTORY)
        sha = "" if noun.pods is None else row.record.manifest
        manifest, runs = await manifest_facts.read(invocation.call, sha)
        if output in {"json", "yaml"}:
            of_pods = {} if found is None else {"runs": plain(manifest), "pods": plain(found.rows)}
            broken = [] if found is None else found.broken
            content = {**of_pods, "history": plain(history), "broken": broken}
            emit(invocation, document(noun.document, noun_tables.plain_row(row) | content))
        elif output == "name":
            click.echo(f"{noun.words.noun}/{row.record.name}")
        else:
            told, tables = noun_tables.facts(noun, row, invocation.call.clock.now(), runs), dict[str, Table]()
            if besides := noun.words.besides:
                more, tables = await besides()(invocation.call, row.record)
                told += more
            describe(invocation, told, found, history, tables)

    status = "status, pods" if noun.pods is not None else "status"
    run.__doc__ = f"One {noun.words.one}: its record, owner, {status} and what happened to it last."
    return command("describe")(target(noun.words.noun, objects(noun.kind))(run))


def explaining(noun: Noun[Any, Any]) -> click.Command:
    """``explain``."""

    async def run(invocation: Invocation, name: str) -> None:
        row = await noun.row(invocation.call, name)
        if row.state == "blocked" and invocation.settings.output in {"table", "wide"}:
            click.echo(clean(f"{row.record.name} is blocked: {row.reason}"))
        await explained(invocation, noun, row.record)

    run.__doc__ = (
        f"Why each node does or does not get one more pod of a {noun.words.one}.\n\n"
        "-o name prints the nodes that can take one, the best one first."
    )
    return command("explain")(target(noun.words.noun, objects(noun.kind))(run))


async def explained(invocation: Invocation, noun: Noun[Any, Any], record: Any) -> None:
    """Show why each node does or does not get one more pod of an owner."""
    verdicts = await explain(invocation.client, invocation.keys, noun, record)
    if invocation.settings.output in {"json", "yaml"}:
        content = {"name": record.name, "id": record.id, **words.document(verdicts)}
        emit(invocation, document("Explanation", content))
    elif invocation.settings.output == "name":
        for node in verdicts.ranking:
            click.echo(f"node/{node}")
    else:
        for line in words.text(verdicts):
            click.echo(clean(line))
