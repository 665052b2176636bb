"""``farmctl failsafe status | clear``."""

from __future__ import annotations

import click

from farmd.cli.changes import apply
from farmd.cli.invocation import Invocation
from farmd.cli.lazy import LazyGroup
from farmd.cli.names import evidence as known_evidence
from farmd.cli.names import freezes
from farmd.cli.options import Duration, command
from farmd.cli.output import show
from farmd.commands.failsafe import clear as acknowledge
from farmd.tables.model import Column, Table, ago
from store.failsafe import Failsafe, FailsafeStore, frozen
from store.times import plain, rfc3339


@click.group("failsafe", cls=LazyGroup)
def failsafe() -> None:
    """Freezes of removals: show them, or acknowledge their evidence."""


@command("status", lists=True)
async def status(invocation: Invocation) -> None:
    """What is frozen, on what evidence, since when."""

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
    help="The evidence exactly as status has it.",
)
@click.option(
    "--for", "seconds", required=True, type=Duration(), help="How long the word holds, at most 24h."
)
async def clear(invocation: Invocation, kind: str, evidence: str, seconds: float) -> None:
    """Let removals go on although the evidence stands. Needs --reason."""
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
