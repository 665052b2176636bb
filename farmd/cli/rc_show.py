"""``farmctl rc list | get | describe | pods``."""

from __future__ import annotations

import click

from farmd import overview
from farmd.cli import owners
from farmd.cli.invocation import Invocation
from farmd.cli.names import controllers
from farmd.cli.options import command
from farmd.cli.output import (
    Table,
    as_yaml,
    document,
    emit,
    pairs,
    plain,
    show,
)
from farmd.cli.pod_table import pod_table
from farmd.overview import ControllerRow
from farmd.replication.spec import as_file
from store import manifests, selectors
from store.audit import AuditReader, Filter
from store.rcs import KIND

_TARGET = click.argument("name", shell_complete=controllers)


@command("list", lists=True)
@click.option("-l", "--selector", default="", help="Only controllers whose own labels match.")
async def list_(invocation: Invocation, selector: str) -> None:
    """All controllers, with what their owners last reported."""
    wanted = selectors.parse(selector)

    async def read() -> Table:
        found = await overview.controllers(invocation.client, invocation.keys)
        rows = [row for row in found.rows if wanted.matches(row.record.labels)]
        return _table(rows, found.broken)

    await show(invocation, read)


@command("get", lists=True)
@_TARGET
@click.option("--file", "as_spec", is_flag=True, help="As a file that rc create and rc update accept.")
async def get(invocation: Invocation, name: str, as_spec: bool) -> None:
    """One controller by name, id or beginning of an id."""
    if as_spec:
        row = await overview.controller(invocation.client, invocation.keys, name)
        manifest = await manifests.read(invocation.client, invocation.keys, row.record.manifest)
        click.echo(as_yaml(as_file(row.record, manifest)), nl=False)
        return
    if invocation.settings.output in {"json", "yaml"} and not invocation.settings.watch:
        row = await overview.controller(invocation.client, invocation.keys, name)
        emit(invocation, document("ReplicationController", owners.plain_row(row)))
        return

    async def read() -> Table:
        return _table([await overview.controller(invocation.client, invocation.keys, name)], [])

    await show(invocation, read)


@command("pods", lists=True)
@_TARGET
async def pods(invocation: Invocation, name: str) -> None:
    """The pods of a controller, with what their nodes say of them."""

    async def read() -> Table:
        row = await overview.controller(invocation.client, invocation.keys, name)
        found = await overview.pods(invocation.client, invocation.keys, row.record)
        return pod_table(found.rows, found.broken, invocation.call.clock.now())

    await show(invocation, read)


@command("describe")
@_TARGET
async def describe(invocation: Invocation, name: str) -> None:
    """One controller: its record, owner, status, pods and what happened to it last."""
    client, keys = invocation.client, invocation.keys
    row = await overview.controller(client, keys, name)
    found = await overview.pods(client, keys, row.record)
    log = AuditReader(client, keys)
    history = await log.read(Filter(kind=KIND, item=row.record.id), owners.HISTORY)
    if invocation.settings.output in {"json", "yaml"}:
        content = {"pods": plain(found.rows), "history": plain(history), "broken": found.broken}
        emit(invocation, document("ReplicationController", owners.plain_row(row) | content))
        return
    owners.describe(invocation, _facts(row), found, history)


def _facts(row: ControllerRow) -> list[tuple[str, str]]:
    rc, status = row.record, row.status
    counts = f"{rc.replicas_desired} desired"
    if status is not None:
        counts += f", {status.placed} placed, {status.healthy} healthy, {status.outdated} outdated"
    return [
        ("Name", rc.name),
        ("Id", rc.id),
        ("State", row.state + (f": {status.reason}" if status is not None and status.reason else "")),
        ("Replicas", counts),
        ("Owner", f"farm {row.owner}" if row.owner else "none (no farm has claimed it)"),
        ("Manifest", rc.manifest),
        ("Pod id", rc.pod_id),
        ("Node selector", rc.node_selector or "(every node)"),
        ("Labels", pairs(rc.labels)),
        ("Pod labels", pairs(rc.pod_labels)),
        ("A node", f"at most {rc.replicas_per_node}"),
        ("Unavailable", f"at most {rc.max_unavailable}"),
        ("Strategy", f"{rc.strategy}, on a lost node: {rc.on_lost}"),
        ("Managed by", rc.managed_by or "nobody"),
    ]


def _table(rows: list[ControllerRow], broken: list[str]) -> Table:
    return owners.table(
        "ReplicationController",
        "rc",
        "controllers",
        rows,
        broken,
        lambda row: str(row.record.replicas_desired),
    )
