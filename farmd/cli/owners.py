"""What the commands of everything that owns pods share: reading files, waiting, describing."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from farmd.cli.audit import summary
from farmd.cli.invocation import Invocation
from farmd.cli.output import ago, pairs, plain, text_table
from farmd.cli.pod_table import pod_table
from farmd.cli.progress import progress
from farmd.cli.tables import Column, Table, clean
from farmd.commands.mutation import Call, Mutation, holder_told
from farmd.commands.waiting import Report
from farmd.overview import Pods
from store.audit import Audit
from store.errors import InputInvalid
from store.locks import Holder

T = TypeVar("T")
Waiting = Callable[[Call, str, float, Report], Awaitable[object]]

HISTORY = 8


def specs(path: str, parse: Callable[[str, str], Sequence[tuple[str, T]]]) -> list[T]:
    """What a file or stdin describes.

    Raises:
        InputInvalid: it cannot be read, is no text, or something in it does not fit.
    """
    try:
        raw = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        text = raw.decode("utf-8")
    except OSError as error:
        raise InputInvalid(f"{path}: cannot be read: {error.strerror}", source=path) from error
    except UnicodeDecodeError as error:
        raise InputInvalid(f"{path}: found bytes that are no UTF-8, expected text", source=path) from error
    return [spec for _, spec in parse(text, "stdin" if path == "-" else path)]


async def converge(invocation: Invocation, mutations: Sequence[Mutation], wait: Waiting) -> None:
    """With ``--wait``: wait until each of them is what was asked for, with progress."""
    if invocation.settings.wait is not True or invocation.settings.dry_run:
        return
    with progress(invocation) as report:
        for mutation in mutations:
            # A creation that somebody else won has another id: the name tells which one it is.
            await wait(invocation.call, mutation.change.name, invocation.settings.timeout, report)


async def finish_deletions(
    invocation: Invocation, noun: str, mutations: Sequence[Mutation], wait: Waiting
) -> None:
    """Wait until the workers of those that were marked have taken them away."""
    if invocation.settings.dry_run:
        return
    marked = [mutation for mutation in mutations if mutation.change.action != f"{noun}.delete"]
    if invocation.settings.wait is False:
        for mutation in marked:
            invocation.say(f"{noun}/{mutation.change.name}: marked; a farm removes its pods, then itself")
        return
    with progress(invocation) as report:
        for mutation in marked:
            await wait(invocation.call, mutation.change.id, invocation.settings.timeout, report)
            if not invocation.settings.quiet and invocation.settings.output in {"table", "wide"}:
                click.echo(f"{noun}/{mutation.change.name} deleted ({mutation.change.id})")


def facts(row: Any, own: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """What ``describe`` tells of any of them; ``own``: what is particular to its family, counts first."""
    record = row.record
    told = [
        ("Name", record.name),
        ("Id", record.id),
        ("State", row.state + (f": {row.reason}" if row.reason else "")),
        own[0],
        ("Owner", f"farm {row.owner}" if row.owner else "none"),
    ]
    if row.locked:
        told.append(("Locked", f"by {holder_told(Holder.parse(row.locked.encode()))}"))
    return [
        *told,
        ("Manifest", record.manifest),
        ("Pod id", record.pod_id),
        ("Node selector", record.node_selector or "(every node)"),
        ("Labels", pairs(record.labels)),
        ("Pod labels", pairs(record.pod_labels)),
        *own[1:],
    ]


def describe(
    invocation: Invocation, told: Sequence[tuple[str, str]], found: Pods, history: Sequence[Audit]
) -> None:
    """Facts, pods and what happened last, for people."""
    now = invocation.call.clock.now()
    for title, text in told:
        click.echo(f"{title + ':':<15}{clean(text)}".rstrip())
    click.echo(f"\nPods ({len(found.rows)})")
    table = pod_table(found.rows, found.broken, now)
    for line in text_table(invocation, table, indent=2) if found.rows else ["none"]:
        click.echo(f"  {line}")
    click.echo("\nHistory (newest first)")
    for record in history:
        click.echo(f"  {clean(_line(record, now))}")
    for broken in found.broken:
        click.echo(f"farmctl: broken record left out: {clean(broken)}", err=True)


def table(
    kind: str,
    noun: str,
    words: str,
    rows: Sequence[Any],
    broken: Sequence[str],
    desired: Callable[[Any], str],
) -> Table:
    """One line each; ``words`` is what many are called, ``desired`` says how many pods there should be."""
    return Table(
        kind=kind,
        rows=rows,
        columns=(
            Column("NAME", lambda row: row.record.name),
            Column("ID", lambda row: row.record.id),
            Column("DESIRED", desired),
            Column("PLACED", count("placed")),
            Column("HEALTHY", count("healthy")),
            Column("OUTDATED", count("outdated"), wide=True),
            Column("STATE", lambda row: row.state),
            Column("OWNER", lambda row: row.owner or "-"),
            Column("MANIFEST", lambda row: row.record.manifest[:12], wide=True),
            Column("SELECTOR", lambda row: row.record.node_selector, wide=True),
            Column("REASON", lambda row: row.reason),
        ),
        name=lambda row: f"{noun}/{row.record.name}",
        plain=plain_row,
        broken=broken,
        empty=f"no {words}",
    )


def plain_row(row: Any) -> dict[str, Any]:
    """For JSON: the record's own fields, and what is known beside it."""
    return {
        **plain(row.record),
        "state": row.state,
        "owner": row.owner,
        "modify_index": row.index,
        "status": plain(row.status),
        "status_outdated": row.status is not None and not row.reported,
    }


def count(name: str) -> Callable[[Any], str]:
    """A column of the status: a number, or ``-`` while nobody reported."""
    return lambda row: "-" if row.status is None else str(getattr(row.status, name))


def availability(min_healthy_time: float) -> tuple[str, str]:
    """A fact of ``describe``: when a healthy pod counts."""
    return "Available", f"a pod that is healthy for {min_healthy_time:g} s without a break"


def _line(record: Audit, now: float) -> str:
    reason = f" ({record.reason})" if record.reason else ""
    return f"{ago(now, record.at):>4}  {record.action}  {record.actor}  {summary(record)}{reason}"
