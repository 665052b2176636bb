"""``farmctl rollout status | explain | history``."""

from __future__ import annotations

import click

from farmd import overview
from farmd.cli.invocation import Invocation
from farmd.cli.names import objects, target
from farmd.cli.options import command
from farmd.cli.output import ago, document, emit, show
from farmd.cli.tables import Column, Table, clean
from farmd.overview import Row
from farmd.rollout import commands, noun
from store.families import RCS
from store.rollouts import KIND, GateStatus, Rollout, RolloutStatus, SideStatus
from store.times import plain

BAR = 10


@command("status", lists=True)
@target("rollout", objects(KIND))
async def status(invocation: Invocation, name: str) -> None:
    """How far a rollout is, and what it waits for."""
    client, keys = invocation.client, invocation.keys
    await commands.live(invocation.call, name)
    row: Row[Rollout] = await overview.row(client, keys, noun.live(invocation.call), name)
    if invocation.settings.output in {"json", "yaml"}:
        emit(invocation, document("Rollout", {**plain(row.record), "status": plain(row.status)}))
    else:
        for line in lines(row, invocation.call.clock.now()):
            click.echo(clean(line))


def lines(row: Row[Rollout], now: float) -> list[str]:
    """The rollout for people: one line for itself, one a version, then what it waits for."""
    rollout, found = row.record, row.status
    if not isinstance(found, RolloutStatus):
        return [f"{rollout.name}  {row.state}", f"  {row.reason}"]
    stage = f"stage {found.stage} of {found.stages} (to {found.goal} of {rollout.replicas})"
    told = [f"{rollout.name}  {found.phase}  {stage}  for {ago(now, rollout.at)}  {row.owner or 'no farm'}"]
    for word, sha, side in (
        ("old", rollout.from_manifest, found.old),
        ("new", rollout.to_manifest, found.new),
    ):
        told.append(f"  {word}  {sha[:12]}  {_bar(side, rollout)}  {_counts(side)}")
    told.append(
        f"  floor {found.minimum}: {found.old.available} old and {found.new.available} new are available"
    )
    told += [f"  gate {_gate(gate, now)}" for gate in found.gates]
    if row.reason:
        told.append(f"  {row.reason}")
    return told


def _gate(gate: GateStatus, now: float) -> str:
    """``errors  0.12 <= 0.5, passed 3 of 3, 8s ago``."""
    count, word = (gate.failures, "failed") if gate.failures else (gate.passes, "passed")
    when = f", {ago(now, gate.at)} ago" if gate.at else ""
    return f"{gate.name}  {gate.text}, {word} {count} of {gate.wanted}{when}"


def _bar(side: SideStatus, rollout: Rollout) -> str:
    total = max(rollout.replicas, rollout.started_from, 1)
    full = round(BAR * min(side.available, total) / total)
    return "█" * full + "░" * (BAR - full)


def _counts(side: SideStatus) -> str:
    return f"{side.available} of {side.desired} available, {side.placed} placed"


@command("explain", lists=True)
@target("rollout", objects(KIND))
async def explain(invocation: Invocation, name: str) -> None:
    """The pods of both versions, and what their nodes say of them."""
    rows = await commands.explain(invocation.call, name)

    async def read() -> Table:
        return Table(
            kind="RolloutExplanation",
            rows=rows,
            columns=(
                Column("SIDE", lambda row: row.side),
                Column("POD", lambda row: row.pod),
                Column("STATE", lambda row: row.state),
                Column("REASON", lambda row: row.reason),
            ),
            name=lambda row: f"pod/{row.pod}",
            plain=plain,
            empty="no pods",
        )

    await show(invocation, read)


@command("history", lists=True)
@target("rc", objects(RCS.name))
async def history(invocation: Invocation, name: str) -> None:
    """The rollouts of a controller that are over, the newest first."""

    async def read() -> Table:
        now = invocation.call.clock.now()
        return Table(
            kind="RolloutHistory",
            rows=await commands.history(invocation.call, name),
            columns=(
                Column("ENDED", lambda ended: f"{ago(now, ended.ended)} ago"),
                Column("OUTCOME", lambda ended: ended.outcome),
                Column("FROM", lambda ended: ended.from_manifest[:12]),
                Column("TO", lambda ended: ended.to_manifest[:12]),
                Column("BY", lambda ended: ended.by),
                Column("REASON", lambda ended: ended.reason),
            ),
            name=lambda ended: f"rollout/{ended.id}",
            plain=plain,
            empty=f"no rollout of {name} is over",
        )

    await show(invocation, read)
