"""Reading everything that owns pods: ``list | get | pods | describe | explain``, one way for all of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import click

from farmd import overview
from farmd.cli import owners
from farmd.cli.invocation import Invocation
from farmd.cli.names import target
from farmd.cli.options import command
from farmd.cli.output import as_json, as_yaml, document, emit, plain, show
from farmd.cli.pod_table import pod_table
from farmd.cli.tables import Table, clean
from farmd.overview import ControllerRow, DaemonSetRow
from scheduler import explain as words
from scheduler.model import Explanation
from store import manifests, selectors
from store.audit import AuditReader, Filter
from store.manifests import Manifest

if TYPE_CHECKING:
    from store.consul.client import ConsulClient
    from store.keys import Keys

R = TypeVar("R", ControllerRow, DaemonSetRow)


class Rows(Protocol[R]):
    """All of a family, as ``overview`` reads them."""

    @property
    def rows(self) -> list[R]:
        """Those that decode."""

    @property
    def broken(self) -> list[str]:
        """One line for each of the others."""


@dataclass(frozen=True, slots=True)
class Family(Generic[R]):
    """One family of such records in people's words: ``noun`` as typed, ``one`` and ``many`` as told.

    ``desired`` says how many pods there should be, ``facts`` what ``describe`` tells of a record.
    """

    kind: str
    document: str
    noun: str
    one: str
    many: str
    complete: Callable[[click.Context, click.Parameter, str], list[str]]
    rows: Callable[[ConsulClient, Keys], Awaitable[Rows[R]]]
    row: Callable[[ConsulClient, Keys, str], Awaitable[R]]
    desired: Callable[[R], str]
    facts: Callable[[R], list[tuple[str, str]]]
    as_file: Callable[[Any, Manifest], Mapping[str, Any]]
    explain: Callable[[ConsulClient, Keys, Any], Awaitable[Explanation]]

    def table(self, rows: Sequence[R], broken: Sequence[str] = ()) -> Table:
        """One line each."""
        return owners.table(self.document, self.noun, self.many, rows, broken, self.desired)


def listing(family: Family[R]) -> click.Command:
    """``list``."""

    async def run(invocation: Invocation, selector: str) -> None:
        wanted = selectors.parse(selector)

        async def read() -> Table:
            found = await family.rows(invocation.client, invocation.keys)
            return family.table(
                [row for row in found.rows if wanted.matches(row.record.labels)], found.broken
            )

        await show(invocation, read)

    run.__doc__ = f"All {family.many}, with what their owners last reported."
    help_ = f"Only {family.many} whose own labels match."
    return command("list", lists=True)(click.option("-l", "--selector", default="", help=help_)(run))


def getting(family: Family[R]) -> click.Command:
    """``get``."""

    async def run(invocation: Invocation, name: str, as_spec: bool) -> None:
        client, keys, output = invocation.client, invocation.keys, invocation.settings.output

        async def read() -> Table:
            return family.table([await family.row(client, keys, name)])

        if as_spec:
            record = (await family.row(client, keys, name)).record
            spec = family.as_file(record, await manifests.read(client, keys, record.manifest))
            click.echo(as_json(spec) if output == "json" else as_yaml(spec), nl=output == "json")
        elif output in {"json", "yaml"} and not invocation.settings.watch:
            emit(
                invocation, document(family.document, owners.plain_row(await family.row(client, keys, name)))
            )
        else:
            await show(invocation, read)

    run.__doc__ = f"One {family.one} by name, id or beginning of an id."
    help_ = f"As a file that {family.noun} create and {family.noun} update accept."
    option = click.option("--file", "as_spec", is_flag=True, help=help_)
    return command("get", lists=True)(target(family.noun, family.complete)(option(run)))


def pods(family: Family[R]) -> click.Command:
    """``pods``."""

    async def run(invocation: Invocation, name: str) -> None:
        async def read() -> Table:
            row = await family.row(invocation.client, invocation.keys, name)
            found = await overview.pods(invocation.client, invocation.keys, row.record)
            return pod_table(found.rows, found.broken, invocation.call.clock.now())

        await show(invocation, read)

    run.__doc__ = f"The pods of a {family.one}, with what their nodes say of them."
    return command("pods", lists=True)(target(family.noun, family.complete)(run))


def describing(family: Family[R]) -> click.Command:
    """``describe``."""

    async def run(invocation: Invocation, name: str) -> None:
        client, keys = invocation.client, invocation.keys
        row = await family.row(client, keys, name)
        found = await overview.pods(client, keys, row.record)
        wanted = Filter(kind=family.kind, item=row.record.id)
        history = await AuditReader(client, keys).read(wanted, owners.HISTORY)
        if invocation.settings.output in {"json", "yaml"}:
            content = {"pods": plain(found.rows), "history": plain(history), "broken": found.broken}
            emit(invocation, document(family.document, owners.plain_row(row) | content))
        elif invocation.settings.output == "name":
            click.echo(f"{family.noun}/{row.record.name}")
        else:
            owners.describe(invocation, owners.facts(row, family.facts(row)), found, history)

    run.__doc__ = f"One {family.one}: its record, owner, status, pods and what happened to it last."
    return command("describe")(target(family.noun, family.complete)(run))


def explaining(family: Family[R]) -> click.Command:
    """``explain``."""

    async def run(invocation: Invocation, name: str) -> None:
        row = await family.row(invocation.client, invocation.keys, name)
        verdicts = await family.explain(invocation.client, invocation.keys, row.record)
        if invocation.settings.output in {"json", "yaml"}:
            content = {"name": row.record.name, "id": row.record.id, **words.document(verdicts)}
            emit(invocation, document("Explanation", content))
        elif invocation.settings.output == "name":
            for node in verdicts.ranking:
                click.echo(f"node/{node}")
        else:
            for line in words.text(verdicts):
                click.echo(clean(line))

    run.__doc__ = (
        f"Why each node does or does not get one more pod of a {family.one}.\n\n"
        "-o name prints the nodes that can take one, the best one first."
    )
    return command("explain")(target(family.noun, family.complete)(run))
