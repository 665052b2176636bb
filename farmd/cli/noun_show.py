"""``list | get | describe`` of every noun, ``explain | pods`` of owners of pods."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import click

from farmd import overview
from farmd.cli.invocation import Invocation
from farmd.cli.names import objects, target
from farmd.cli.options import command
from farmd.cli.output import as_json, as_yaml, document, emit, say_facts, say_folded, show, text_table
from farmd.commands.noun import Noun
from farmd.kinds import KINDS
from farmd.overview import Row
from farmd.tables import changes
from farmd.tables import nouns as noun_tables
from farmd.tables.items import Records
from farmd.tables.model import Described, Explained, Table, ago, clean
from store import selectors
from store.audit import AuditReader, Filter
from store.times import plain

_HISTORY = 8


def listing(noun: Noun[Any, Any]) -> click.Command:
    """``list``."""

    async def run(invocation: Invocation, selector: str) -> None:
        await list_all(invocation, noun, selector)

    run.__doc__ = f"All {noun.words.many}, with what their owners last reported."
    help_ = f"Only {noun.words.many} whose own labels match."
    return command("list", lists=True)(click.option("-l", "--selector", default="", help=help_)(run))


async def _none() -> Sequence[Row[Any]]:
    return ()


async def list_all(
    invocation: Invocation,
    noun: Noun[Any, Any],
    selector: str,
    outside: Callable[[], Awaitable[Sequence[Row[Any]]]] = _none,
) -> None:
    """Show the items whose labels match; ``outside`` returns those that are not in Consul."""
    wanted, client, keys = selectors.parse(selector), invocation.client, invocation.keys

    async def read() -> Table:
        found = await overview.rows(client, keys, noun.records(client, keys))
        rows = [*found.rows, *await outside()]
        chosen = [row for row in rows if wanted.matches(getattr(row.record, "labels", {}))]
        return noun_tables.table(noun, chosen, invocation.call.clock.now(), found.broken)

    await show(invocation, read)


def getting(noun: Noun[Any, Any], accepts: str = "") -> click.Command:
    """``get`` of what people create from files; ``accepts`` are the commands that do it."""
    word = noun.words.noun
    help_ = f"Print a file that {accepts or f'{word} create and {word} update accept'}."
    option = click.option("--file", "as_file", is_flag=True, help=help_)

    async def run(invocation: Invocation, name: str, as_file: bool) -> None:
        file = as_file or (invocation.settings.output == "yaml" and not invocation.settings.watch)
        await get(invocation, Records(invocation.call, noun), name, as_file=file)

    return _get(noun, option(run))


def seeing(noun: Noun[Any, Any]) -> click.Command:
    """``get`` of what no file makes as it is."""

    async def run(invocation: Invocation, name: str) -> None:
        await get(invocation, Records(invocation.call, noun), name)

    return _get(noun, run)


def _get(noun: Noun[Any, Any], run: Callable[..., Awaitable[None]]) -> click.Command:
    run.__doc__ = f"One {noun.words.one} by name, id or a prefix of its id."
    return command("get", lists=True)(target(noun.words.noun, objects(noun.kind))(run))


async def get(invocation: Invocation, items: Records, name: str, *, as_file: bool = False) -> None:
    """Show one item, or the file that makes it."""
    settings = invocation.settings
    if as_file:
        emit_file(invocation, await items.as_file(name))
    elif settings.output in {"json", "yaml"} and not settings.watch:
        emit(invocation, document(items.noun.document, noun_tables.plain_row(await items.row(name))))
    else:

        async def read() -> Table:
            return noun_tables.table(items.noun, [await items.row(name)], invocation.call.clock.now())

        await show(invocation, read)


def emit_file(invocation: Invocation, spec: Any) -> None:
    """Show an item as the file that makes it."""
    output = invocation.settings.output
    click.echo(as_json(spec) if output == "json" else as_yaml(spec), nl=output == "json")


def pods(noun: Noun[Any, Any]) -> click.Command:
    """``pods``."""

    async def run(invocation: Invocation, name: str) -> None:
        await show(invocation, partial(Records(invocation.call, noun).pods, name))

    run.__doc__ = f"The pods of a {noun.words.one}, with what their nodes report."
    if way := KINDS.get(noun.words.gradual):
        run.__doc__ += f" During a {way.one}, the pods of both versions."
    return command("pods", lists=True)(target(noun.words.noun, objects(noun.kind))(run))


def describing(noun: Noun[Any, Any], text: str = "") -> click.Command:
    """``describe``; ``text`` is its help, where that tells more."""

    async def run(invocation: Invocation, name: str) -> None:
        found = await Records(invocation.call, noun).described(name)
        if noun.pods is not None and found.pods is not None and invocation.settings.output != "name":
            found = await with_usage(invocation, found, found.pods.rows)
        await describe(invocation, noun.document, noun.words.noun, found)

    status = "status, pods" if noun.pods is not None else "status"
    own = f"One {noun.words.one}: its record, owner, {status} and what happened to it last."
    run.__doc__ = text or own
    return command("describe")(target(noun.words.noun, objects(noun.kind))(run))


async def with_usage(invocation: Invocation, found: Described, rows: Sequence[Any]) -> Described:
    """The same with what the pods ask for and use, if their agents tell."""
    if not any(row.pid for row in rows):
        return found
    from farmd.cli.usage import of_owner  # what asks agents is imported only for that

    used, answers = await of_owner(invocation, rows)
    told = [*([used.text] if used is not None else []), *answers.notes()]
    facts = [*found.facts, *zip(["Uses", *[""] * len(told)], told, strict=False)]
    return found._replace(facts=facts, document={**found.document, "usage": plain(used)})


async def describe(invocation: Invocation, kind: str, noun: str, found: Described) -> None:
    """Show the facts of an item, its pods and other tables, and its latest changes; ``kind`` is for JSON."""
    now, reader = invocation.call.clock.now(), AuditReader(invocation.client, invocation.keys)
    history = await reader.read(Filter(kind=found.audited, item=found.id), _HISTORY)
    if not describe_item(invocation, kind, noun, found, history=plain(history)):
        return
    if history or not found.tables:
        click.echo("\nHistory (newest first)")
    for record in history:
        say_folded(f"{ago(now, record.at):>6}  ", clean(changes.line(record)))
    for broken in () if found.pods is None else found.pods.broken:
        click.echo(f"farmctl: broken record left out: {clean(broken)}", err=True)


def describe_item(
    invocation: Invocation, kind: str, noun: str, found: Described, room: int = 15, **more: Any
) -> bool:
    """Show an item without its changes; returns whether it was shown to people.

    ``room`` is the width of the facts' titles. ``more`` are further fields for programs.
    """
    output = invocation.settings.output
    if output in {"json", "yaml"}:
        content = {**found.document, **more, "broken": list(found.broken)}
        emit(invocation, document(kind, content))
    elif output == "name":
        click.echo(f"{noun}/{found.name}")
    else:
        tell(invocation, found, room)
    return output not in {"json", "yaml", "name"}


def tell(invocation: Invocation, found: Described, room: int = 15) -> None:
    """Show the facts of an item, and its tables by title."""
    say_facts(found.facts, room)
    for title, table in found.shown.items():
        click.echo(f"\n{title}")
        empty = "none" if table is found.pods or table.kind == "Pod" else table.empty
        for line in text_table(invocation, table, indent=2) if table.rows else [empty]:
            click.echo(f"  {line}")


def explaining(noun: Noun[Any, Any], text: str = "") -> click.Command:
    """``explain``; ``text`` begins its help, where that tells more."""

    async def run(invocation: Invocation, name: str) -> None:
        explain(invocation, await Records(invocation.call, noun).explained(name))

    own = f"Why each node does or does not get one more pod of a {noun.words.one}."
    run.__doc__ = f"{text or own}\n\n-o name prints the nodes that can take one, the best one first."
    return command("explain")(target(noun.words.noun, objects(noun.kind))(run))


def explain(invocation: Invocation, found: Explained, kind: str = "Explanation") -> None:
    """Show why an item's pods are where they are; ``kind`` is for JSON."""
    output = invocation.settings.output
    if output in {"json", "yaml"}:
        emit(invocation, document(kind, dict(found.document)))
    else:
        for line in found.names if output == "name" else found.lines:
            click.echo(clean(line))
