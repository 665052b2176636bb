"""``farmctl daemonset list | get | describe | pods``."""

from __future__ import annotations

import click

from farmd import overview
from farmd.cli import owners
from farmd.cli.invocation import Invocation
from farmd.cli.names import daemonsets
from farmd.cli.options import command
from farmd.cli.output import Table, as_yaml, document, emit, pairs, plain, show
from farmd.cli.pod_table import pod_table
from farmd.daemonset.spec import as_file
from farmd.overview import DaemonSetRow
from store import manifests, selectors
from store.audit import AuditReader, Filter
from store.daemonsets import KIND

_TARGET = click.argument("name", shell_complete=daemonsets)


@command("list", lists=True)
@click.option("-l", "--selector", default="", help="Only daemon sets whose own labels match.")
async def list_(invocation: Invocation, selector: str) -> None:
    """All daemon sets, with what their owners last reported."""
    wanted = selectors.parse(selector)

    async def read() -> Table:
        found = await overview.daemonsets(invocation.client, invocation.keys)
        rows = [row for row in found.rows if wanted.matches(row.record.labels)]
        return _table(rows, found.broken)

    await show(invocation, read)


@command("get", lists=True)
@_TARGET
@click.option(
    "--file", "as_spec", is_flag=True, help="As a file that daemonset create and daemonset update accept."
)
async def get(invocation: Invocation, name: str, as_spec: bool) -> None:
    """One daemon set by name, id or beginning of an id."""

    async def row() -> DaemonSetRow:
        return await overview.daemonset(invocation.client, invocation.keys, name)

    async def read() -> Table:
        return _table([await row()], [])

    if as_spec:
        record = (await row()).record
        manifest = await manifests.read(invocation.client, invocation.keys, record.manifest)
        click.echo(as_yaml(as_file(record, manifest)), nl=False)
    elif invocation.settings.output in {"json", "yaml"} and not invocation.settings.watch:
        emit(invocation, document("DaemonSet", owners.plain_row(await row())))
    else:
        await show(invocation, read)


@command("pods", lists=True)
@_TARGET
async def pods(invocation: Invocation, name: str) -> None:
    """The pods of a daemon set, with what their nodes say of them."""

    async def read() -> Table:
        row = await overview.daemonset(invocation.client, invocation.keys, name)
        found = await overview.pods(invocation.client, invocation.keys, row.record)
        return pod_table(found.rows, found.broken, invocation.call.clock.now())

    await show(invocation, read)


@command("describe")
@_TARGET
async def describe(invocation: Invocation, name: str) -> None:
    """One daemon set: its record, owner, status, pods and what happened to it last."""
    client, keys = invocation.client, invocation.keys
    row = await overview.daemonset(client, keys, name)
    found = await overview.pods(client, keys, row.record)
    history = await AuditReader(client, keys).read(Filter(kind=KIND, item=row.record.id), owners.HISTORY)
    if invocation.settings.output in {"json", "yaml"}:
        content = {"pods": plain(found.rows), "history": plain(history), "broken": found.broken}
        emit(invocation, document("DaemonSet", owners.plain_row(row) | content))
        return
    owners.describe(invocation, _facts(row), found, history)


def _facts(row: DaemonSetRow) -> list[tuple[str, str]]:
    record, status = row.record, row.status
    counts = "not known yet"
    if status is not None:
        counts = (
            f"{status.desired} desired, {status.placed} placed, {status.healthy} healthy,"
            f" {status.outdated} outdated"
        )
    reason = f": {status.reason}" if status is not None and status.reason and row.reported else ""
    floor = "all but one" if record.min_health is None else str(record.min_health)
    rate = f"at most {record.rate} nodes a minute" if record.rate else "no limit a minute"
    return [
        ("Name", record.name),
        ("Id", record.id),
        ("State", row.state + reason),
        ("Nodes", counts),
        ("Owner", f"farm {row.owner}" if row.owner else "none (no farm has claimed it)"),
        ("Manifest", record.manifest),
        ("Pod id", record.pod_id),
        ("Node selector", record.node_selector or "(every node)"),
        ("Labels", pairs(record.labels)),
        ("Pod labels", pairs(record.pod_labels)),
        ("Stay healthy", floor),
        ("Pace", f"{rate}, at most {record.max_in_progress} nodes at a time"),
    ]


def _table(rows: list[DaemonSetRow], broken: list[str]) -> Table:
    return owners.table("DaemonSet", "daemonset", "daemon sets", rows, broken, owners.count("desired"))
