"""Several datacenters of one Consul federation, asked side by side from wherever farmctl runs.

Each has a cluster of its own under the same prefix. A datacenter that does not answer holds up no other one:
each has the same limit, and those without an answer are named.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import click

from farmd.cli.failures import UNAVAILABLE, exit_code
from farmd.cli.invocation import Invocation, connected
from farmd.cli.output import presented
from farmd.runtime.errors import FarmdError
from farmd.tables.model import Column, Table, clean
from store.errors import (
    AccessDenied,
    InputInvalid,
    NotRegistered,
    OutcomeUnknown,
    StoreError,
    StoreUnavailable,
    UnexpectedAnswer,
)
from store.words import listed as in_words

T = TypeVar("T")
LIMIT = 5.0
"""How long one of several datacenters may take to answer, in seconds."""
_SILENT = (StoreUnavailable, OutcomeUnknown, UnexpectedAnswer)


@dataclass(frozen=True, slots=True)
class Answers(Generic[T]):
    """What each datacenter answered, and the errors of the others; those without a cluster are in neither."""

    found: Mapping[str, T]
    failed: Mapping[str, Exception]

    @property
    def plain(self) -> list[dict[str, str]]:
        """For programs: the datacenters that failed."""
        return [{"dc": name, "error": _reason(error)} for name, error in self.failed.items()]

    @property
    def told(self) -> list[str]:
        """For people: one line for each datacenter that failed."""
        return [f"datacenter {name}: {_reason(error)}" for name, error in self.failed.items()]

    def end(self) -> None:
        """Name those that failed on stderr.

        Raises:
            Exit: there are some; 7 where one of them did not answer.
        """
        for line in self.told:
            click.echo(f"farmctl: {line}", err=True)
        codes = {exit_code(error) or UNAVAILABLE for error in self.failed.values()}
        if codes:
            raise click.exceptions.Exit(UNAVAILABLE if UNAVAILABLE in codes else min(codes))


def _reason(error: Exception) -> str:
    """Why a datacenter has nothing to show. Consul has several texts for one that is dead."""
    message = clean(str(getattr(error, "message", error)))
    return f"did not answer: {message}" if isinstance(error, _SILENT) else message


async def known(invocation: Invocation) -> list[str]:
    """All datacenters that Consul knows here."""
    return sorted(await invocation.client.datacenters())


async def refuse_unknown(invocation: Invocation, names: list[str]) -> None:
    """Refuse names that no datacenter has.

    Raises:
        InputInvalid: it names those that are known.
    """
    there = await known(invocation)
    for name in names:
        if name not in there:
            expected = f"one of {in_words(there, 20)}"
            raise InputInvalid(f"datacenter: found {name!r}, expected {expected}", field="dc")


def elsewhere(function: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """A command for another datacenter than that of Consul here, or for all of them."""

    async def run(invocation: Invocation, **params: Any) -> None:
        if invocation.settings.all_dcs:
            await listed(invocation, function, params)
            return
        try:
            await function(invocation, **params)
        except StoreError as error:
            told = await explained(invocation, error)
            if told is error:
                raise
            raise told from error

    return run


async def explained(invocation: Invocation, error: StoreError) -> StoreError:
    """The error of a command that asked a datacenter by name, with that name."""
    name = invocation.datacenter
    if isinstance(error, NotRegistered):
        return NotRegistered(f"datacenter {name}: {error.message}", **error.fields)
    if isinstance(error, AccessDenied):
        hint = "a local token counts in its own datacenter alone: use a global one, with rights there"
        return AccessDenied(f"datacenter {name}: {error.message}", **error.fields | {"hint": hint})
    if not isinstance(error, StoreUnavailable | UnexpectedAnswer):
        return error
    try:
        await refuse_unknown(invocation, [name])
    except InputInvalid as unknown:
        return unknown
    except StoreError:  # no Consul answers here, which the error says already
        return error
    hint = "Consul here cannot reach it: farmctl works there, and in every other datacenter, as before"
    fields = error.fields | {"hint": hint}
    return StoreUnavailable(f"datacenter {name} did not answer: {error.message}", **fields)


class Datacenters:
    """Connections to all datacenters, as a context manager; they are kept from look to look."""

    def __init__(self, invocation: Invocation) -> None:
        self._invocation = invocation
        self._open = AsyncExitStack()
        self._made: dict[str, Invocation] = {}

    async def __aenter__(self) -> Datacenters:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    async def at(self, name: str) -> Invocation:
        """An invocation that asks one datacenter."""
        if name not in self._made:
            settings = replace(self._invocation.settings, dc=name, all_dcs=False)
            self._made[name] = await self._open.enter_async_context(connected(settings))
        return self._made[name]

    async def ask(self, look: Callable[[Invocation], Awaitable[T]]) -> Answers[T]:
        """What ``look`` finds in each datacenter.

        Raises:
            InputInvalid: the command itself is wrong. StoreError: Consul does not answer here.
            NotRegistered: no datacenter has a cluster.
        """
        names = await known(self._invocation)
        invocations = [await self.at(name) for name in names]
        results = await asyncio.gather(*(_limited(look(each)) for each in invocations))
        found, failed, without = dict[str, T](), dict[str, Exception](), list[Exception]()
        for name, (answer, error) in zip(names, results, strict=True):
            if isinstance(error, InputInvalid):
                raise error
            if isinstance(error, NotRegistered):
                without.append(error)
            elif error is not None:
                failed[name] = error
            else:
                assert answer is not None
                found[name] = answer
        if without and not (found or failed):
            raise without[0]
        return Answers(found, failed)


async def _limited(look: Awaitable[T]) -> tuple[T | None, Exception | None]:
    """What a look finds within the limit, or its error."""
    try:
        async with asyncio.timeout(LIMIT):
            return await look, None
    except TimeoutError:
        return None, StoreUnavailable(f"nothing within {LIMIT:g} s")
    except (StoreError, FarmdError) as error:
        return None, error


async def listed(
    invocation: Invocation, function: Callable[..., Awaitable[None]], params: Mapping[str, Any]
) -> None:
    """Show what a list shows in each datacenter, as one table with a column for the datacenter.

    Raises:
        Exit: some datacenters failed.
    """
    if invocation.settings.dc:
        raise InputInvalid("--all-dcs: found with --dc, expected one of them", field="all-dcs")
    if any(params.get(option) for option in ("kubeconfig", "context", "namespace", "everywhere")):
        expected = "none, because a cluster of Kubernetes is part of no datacenter"
        raise InputInvalid(
            f"--all-dcs: found with an option of a cluster, expected {expected}", field="all-dcs"
        )

    async def tables(there: Invocation) -> list[Table]:
        there = replace(there, shown=[], settings=replace(there.settings, watch=False))
        await function(there, **params)
        return [each for each in there.shown or () if isinstance(each, Table)]

    answers: Answers[list[Table]] = Answers({}, {})
    async with Datacenters(invocation) as all_of_them:

        async def read() -> Table:
            nonlocal answers
            answers = await all_of_them.ask(tables)
            for line in answers.told if invocation.settings.watch else ():
                invocation.call.note(f"farmctl: {line}")
            return together(answers)

        await presented(invocation, read)
    answers.end()


def together(answers: Answers[list[Table]]) -> Table:
    """The tables of all datacenters as one; each row knows its own."""
    parts = [(name, table) for name, tables in answers.found.items() for table in tables]
    more = {"unanswered": answers.plain}
    if not parts:
        return Table("Object", (), (), str, dict, more=more)
    first = parts[0][1]
    return first._replace(
        rows=[(name, table, row) for name, table in parts for row in table.rows],
        columns=[
            Column("DC", lambda row: row[0]),
            *(_column(place, column) for place, column in enumerate(first.columns)),
        ],
        name=lambda row: f"{row[0]}/{row[1].name(row[2])}",
        plain=lambda row: {"dc": row[0], **row[1].plain(row[2])},
        broken=[f"{name}: {line}" for name, table in parts for line in table.broken],
        notes=[f"{name}: {line}" for name, table in parts for line in table.notes],
        more=more,
    )


def _column(place: int, column: Column) -> Column:
    """A column of rows that know their table, since a text may depend on the rest of its table."""
    order = column.order
    return column._replace(
        text=lambda row: row[1].columns[place].text(row[2]),
        order=None if order is None else lambda row: order(row[2]),
    )
