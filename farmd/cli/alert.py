"""``farmctl alert`` and ``farmctl failsafe``: open incidents, a test of a sink, and frozen removals."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import aiohttp
import click

from alerting.alert import Alert
from alerting.errors import AlertingError
from farmd.cli.changes import apply
from farmd.cli.groups import LazyGroup
from farmd.cli.invocation import Invocation
from farmd.cli.names import evidence as known_evidence
from farmd.cli.names import freezes
from farmd.cli.options import Duration, command
from farmd.cli.output import show
from farmd.commands.failsafe import clear as acknowledge
from farmd.config.alerts import SinkSection, named
from farmd.config.fields import this_host
from farmd.config.sources import ConfigInvalid, load
from farmd.overview import incidents
from farmd.overview.incidents import Incident
from farmd.process.alerts import sink_of
from farmd.runtime.clock import SystemClock, system_rng
from farmd.runtime.errors import EndedOtherwise
from farmd.tables.model import Column, Table, ago
from store.errors import InputInvalid, NotFound
from store.failsafe import Failsafe, FailsafeStore, frozen
from store.times import plain, rfc3339

# ``farmctl alert`` and ``farmctl failsafe``: open incidents, a test of a sink, and frozen removals.

# The table of open incidents.


def table(rows: Sequence[Incident], now: float) -> Table:
    """One line for each incident; ``now`` in seconds since the epoch."""
    columns = (
        Column("INCIDENT", lambda row: row.key),
        Column("KIND", lambda row: row.kind),
        Column("ABOUT", lambda row: row.name),
        Column("STATE", lambda row: row.state),
        Column("FOR", lambda row: ago(now, row.since) if row.since else "-"),
        Column("FARM", lambda row: row.farm, wide=True),
        Column("REASON", lambda row: row.reason),
    )
    return Table(
        "Incident", rows, columns, name=lambda row: f"incident/{row.key}", plain=plain, empty="no open alerts"
    )


# ``farmctl alert``: the incidents that are open, and a test of a sink.


@click.group("alert", cls=LazyGroup)
def alert() -> None:
    """Alerts: what farms have reported, and whether their sinks work."""


@command("list", lists=True)
async def list_(invocation: Invocation) -> None:
    """Open incidents, with their objects."""

    async def read() -> Table:
        rows = await incidents.incidents(invocation.client, invocation.keys)
        return table(rows, invocation.call.clock.now())

    await show(invocation, read)


def _sinks(config: str) -> dict[str, SinkSection]:
    """The sinks of a configuration, by name.

    Raises:
        InputInvalid: it cannot be used.
    """
    try:
        return named(load(Path(config) if config else None, os.environ).config.alerts.sinks)
    except ConfigInvalid as error:
        raise InputInvalid(error.lines[0], field="config") from error


def _names(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    with suppress(InputInvalid):
        known = _sinks(str(ctx.params.get("config") or ""))
        return [name for name, sink in known.items() if sink.type != "log" and name.startswith(incomplete)]
    return []


@command("test")
@click.argument("sink", shell_complete=_names)
@click.option(
    "--config",
    default="",
    metavar="FILE",
    help="A farm's configuration; default: FARMD_CONFIG, then /etc/farmd/farmd.toml.",
)
async def test(invocation: Invocation, sink: str, config: str) -> None:
    """Send a test incident and its resolution from this machine, through a sink of its configuration."""
    known = _sinks(config)
    if sink not in known:
        raise NotFound(
            f"sink {sink!r} is not configured", hint=f"known: {', '.join(known)}", kind="sinks", id=sink
        )
    section, host = known[sink], this_host()
    if section.type == "log":
        raise InputInvalid("sink: found a log sink, expected one that notifies somebody", field="sink")
    message = Alert(
        summary=f"test of the sink {sink} from {host}: nothing is wrong",
        incident_key=f"farmd_test_{host}",
        urgency="high" if section.urgencies == ["high"] else "low",
        labels={"kind": "test"},
    )
    clock, rng = SystemClock(), system_rng()
    async with aiohttp.ClientSession() as http:
        made = sink_of(section, http, clock, rng, source=host, environ=os.environ, attempts=1)
        for each in (message, message.resolved()):
            try:
                await made.deliver(each)
            except AlertingError as error:
                text = f"sink {sink!r} did not accept {each.incident_key} ({each.state}): {error.message}"
                raise EndedOtherwise(text) from error
            if not invocation.settings.quiet:
                click.echo(f"incident/{each.incident_key} {each.state} at {sink}")


for each in (list_, test):
    alert.add_command(each)


# ``farmctl failsafe status | clear``.


@click.group("failsafe", cls=LazyGroup)
def failsafe() -> None:
    """Freezes of removals: show them, or acknowledge their evidence."""


@command("status", lists=True)
async def status(invocation: Invocation) -> None:
    """Frozen kinds of work, with the evidence and the time."""

    async def read() -> Table:
        now = invocation.call.clock.now()
        found = await FailsafeStore(invocation.client, invocation.keys).list()
        return Table(
            kind="Failsafe",
            rows=[(kind, stored.record) for kind, stored in sorted(found.items())],
            columns=_columns(now),
            name=lambda row: f"failsafe/{row[0]}",
            plain=lambda row: {"kind": row[0], "frozen": frozen(row[1], now), **plain(row[1])},
            empty="nothing is frozen",
        )

    await show(invocation, read)


@command("clear", mutates=True)
@click.argument(
    "kind", shell_complete=freezes, callback=lambda _ctx, _param, value: value.removeprefix("failsafe/")
)
@click.option(
    "--evidence",
    required=True,
    shell_complete=known_evidence,
    help="The evidence, exactly as status shows it.",
)
@click.option(
    "--for",
    "seconds",
    required=True,
    type=Duration(),
    help="How long the acknowledgement lasts, at most 24h.",
)
async def clear(invocation: Invocation, kind: str, evidence: str, seconds: float) -> None:
    """Allow removals again despite the evidence. Needs --reason."""
    await apply(invocation, [await acknowledge(invocation.call, kind, evidence, seconds)])


failsafe.add_command(status)
failsafe.add_command(clear)


def _columns(now: float) -> tuple[Column, ...]:
    """The columns of rows of a kind and its freeze."""

    def word(row: tuple[str, Failsafe]) -> str:
        given = row[1].acknowledgement
        return f"{given.by} until {rfc3339(given.until)}" if given else ""

    return (
        Column("KIND", lambda row: row[0]),
        Column("STATE", lambda row: "frozen" if frozen(row[1], now) else "cleared"),
        Column("SINCE", lambda row: ago(now, row[1].since)),
        Column("BY", lambda row: row[1].by),
        Column("EVIDENCE", lambda row: row[1].evidence),
        Column("CLEARED BY", word),
        Column("DETAIL", lambda row: row[1].detail),
    )
