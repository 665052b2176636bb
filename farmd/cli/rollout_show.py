"""``farmctl rollout status | explain | history``."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable

import click

from farmd import cli
from farmd.cli.invocation import Invocation
from farmd.cli.names import objects, target
from farmd.cli.options import command
from farmd.cli.output import (
    as_json,
    as_yaml,
    document,
    drawable,
    emit,
    live,
    looks,
    on_terminal,
    show,
    width_of,
)
from farmd.cli.rollout_ksvc import beside_ksvc
from farmd.rollout import commands, view
from farmd.rollout.noun import ROLLOUT
from farmd.tables import rollouts as rollout_tables
from farmd.tables.model import Column, Table, ago, clean
from store.errors import NotFound
from store.families import RCS
from store.rollouts import KIND
from store.times import plain


@command("status", lists=True)
@target("rollout", objects(KIND))
async def status(invocation: Invocation, name: str) -> None:
    """The progress of a rollout, and what it is waiting for."""
    settings = invocation.settings
    if not settings.watch:
        for line in await _status(invocation, name, width_of(sys.stdout)):
            click.echo(line)
        return
    # Another one of that name is another one.
    rollout = (await ROLLOUT.look(invocation.call, name)).record.id
    try:
        if on_terminal(invocation) and settings.output in {"table", "wide"}:
            await live(invocation, lambda: _status(invocation, rollout, width_of(sys.stdout)))
        else:
            await changes(invocation, lambda: _status(invocation, rollout, 0))
    except NotFound:
        over = next(
            (each for each in await commands.history(invocation.call, name) if each.id == rollout), None
        )
        invocation.say(
            f"rollout/{name} is over" + (f": {over.outcome}: {clean(over.reason)}" if over else "")
        )


async def changes(invocation: Invocation, told: Callable[[], Awaitable[list[str]]]) -> None:
    """Print the lines of a status again whenever they say something else, until what is told ends it."""
    last: list[str] = []
    async for now in looks(invocation, told):
        # Times run by themselves and are no change: they stand in the first line.
        if now[1:] != last[1:]:
            click.echo("\n".join(now))
            sys.stdout.flush()
            last = now


async def _status(invocation: Invocation, name: str, width: int) -> list[str]:
    row = await ROLLOUT.row(invocation.call, name)
    output = invocation.settings.output
    if output in {"json", "yaml"}:
        told = {"owner": row.owner, "state": row.state, "reason": row.reason, "status": plain(row.status)}
        found = document("Rollout", {**plain(row.record), **told})
        return (as_json(found) if output == "json" else as_yaml(found)).splitlines()
    if output == "name":
        return [f"rollout/{row.record.name}"]
    sight = await commands.sight(invocation.call, row)
    shown = view.lines(sight, invocation.call.clock.now(), width)
    return [drawable(clean(line), sys.stdout.encoding) for line in shown]


@command("explain", lists=True)
@target("rollout", objects(KIND))
async def explain(invocation: Invocation, name: str) -> None:
    """Why each pod stays or goes. Pods that leave in this stage come first, in their order.

    Pods leave in the order of their classes: lost, idle, must leave, serving, unknown. The last lines
    list pods for which no node with an old pod has room.
    """

    async def read() -> Table:
        return rollout_tables.explanation(await rollout_tables.explain(invocation.call, name))

    await show(invocation, read)


@command("diff")
@target("rollout", objects(KIND))
async def diff(invocation: Invocation, name: str) -> None:
    """What a rollout changes: the fields of the pod, the number of pods, and the policy that it follows.

    Values of the environment are not shown.
    """
    found = await commands.difference_of(invocation.call, name)
    if invocation.settings.output in {"json", "yaml"}:
        emit(invocation, document("RolloutDifference", plain(found)))
    elif invocation.settings.output == "name":
        click.echo(f"rollout/{found.name}")
    else:
        replicas = f", replicas {found.started_from} -> {found.replicas}"
        scaled = replicas if found.started_from != found.replicas else f", replicas {found.replicas}"
        click.echo(f"rollout/{found.name}: pod {found.before[:12]} -> {found.after[:12]}{scaled}")
        policy = as_yaml({"policy": found.policy}).splitlines()
        for line in [*found.pod, *policy]:
            click.echo(f"  {clean(line)}")


@command("history", lists=True)
@target("rc", objects(RCS.name))
async def history(invocation: Invocation, name: str) -> None:
    """Past rollouts of a controller, newest first.

    "rollout revert NAME --to N" goes back to what ran before rollout N.
    """

    async def read() -> Table:
        now = invocation.call.clock.now()
        over, broken = await commands.past(invocation.call, name)
        numbers = {ended.id: number for number, ended in enumerate(over, 1)}
        return Table(
            kind="RolloutHistory",
            rows=over,
            columns=(
                Column("N", lambda ended: str(numbers[ended.id])),
                Column("ENDED", lambda ended: f"{ago(now, ended.ended)} ago"),
                Column("OUTCOME", lambda ended: ended.outcome),
                Column("FROM", lambda ended: ended.from_manifest[:12]),
                Column("TO", lambda ended: ended.to_manifest[:12]),
                Column("BY", lambda ended: ended.by),
                Column("REASON", lambda ended: ended.reason),
            ),
            name=lambda ended: f"rollout/{ended.id}",
            plain=plain,
            broken=broken,
            empty=f"no rollout of {name} is over",
        )

    await show(invocation, read)


status = beside_ksvc(status, lambda: cli.rollout_knative.status)
explain = beside_ksvc(explain, lambda: cli.rollout_knative.explain)
