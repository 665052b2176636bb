"""``farmctl service list | describe | endpoints``."""

from __future__ import annotations

import click

from farmd.cli import noun_tables
from farmd.cli.invocation import Invocation
from farmd.cli.names import objects, target
from farmd.cli.options import command
from farmd.cli.output import ago, document, emit, pairs, show
from farmd.cli.tables import Column, Table
from farmd.services import commands
from farmd.services.endpoints import Endpoint, serving
from store.audit import AuditReader, Filter
from store.services import KIND, NOUN
from store.times import plain, rfc3339

HISTORY = 8


@command("list", lists=True)
async def list_(invocation: Invocation) -> None:
    """All services, and whose pods serve."""

    async def read() -> Table:
        rows, broken = await commands.rows(invocation.call)
        now = invocation.call.clock.now()
        columns = (
            Column("NAME", lambda row: row.record.name),
            Column("ID", lambda row: row.record.id, wide=True),
            Column("PORT", lambda row: row.record.port),
            Column("ACTIVE", _active),
            Column("AGE", lambda row: ago(now, row.record.created), wide=True),
        )
        return Table(
            kind="Service",
            rows=rows,
            columns=columns,
            name=lambda row: f"{NOUN}/{row.record.name}",
            plain=lambda row: plain(row.record) | {"serving": row.serving, "gone": row.gone},
            broken=broken,
            empty="no services",
        )

    await show(invocation, read)


@command("describe")
@target(NOUN, objects(KIND))
async def describe(invocation: Invocation, name: str) -> None:
    """One service: its owners, its endpoints and what happened to it last."""
    call = invocation.call
    row = await commands.row(call, name)
    record = row.record
    _, sightings = await commands.Watch(call, record.id).look()
    found = serving(sightings, ())
    history = await AuditReader(call.client, call.keys).read(Filter(kind=KIND, item=record.id), HISTORY)
    if invocation.settings.output in {"json", "yaml"}:
        told = {"serving": row.serving, "gone": row.gone, "endpoints": plain(found)}
        emit(invocation, document("Service", {**plain(record), **told, "history": plain(history)}))
    elif invocation.settings.output == "name":
        click.echo(f"{NOUN}/{record.name}")
    else:
        facts = [
            ("Name", record.name),
            ("Id", record.id),
            ("Port", record.port),
            ("Active", _active(row)),
            ("Labels", pairs(record.labels)),
            ("Age", f"{ago(call.clock.now(), record.created)}, created {rfc3339(record.created)}"),
            ("Endpoints", f"{len(found)} of {len(sightings)} pods"),
            *(("Endpoint", f"{_where(each)}  {each.node}/{each.instance}") for each in found),
        ]
        noun_tables.describe(invocation, facts, None, history)


@command("endpoints", lists=True)
@target(NOUN, objects(KIND))
async def endpoints(invocation: Invocation, name: str) -> None:
    """Address and port of each available pod of a service."""
    watch = commands.Watch(invocation.call, name)
    last: tuple[Endpoint, ...] = ()

    async def read() -> Table:
        nonlocal last
        service, sightings = await watch.look()
        last = serving(sightings, last)
        return Table(
            kind="Endpoint",
            rows=last,
            columns=(
                Column("ENDPOINT", _where),
                Column("POD", lambda row: f"{row.node}/{row.instance}"),
                Column("OWNER", lambda row: row.owner, wide=True),
            ),
            name=_where,
            plain=plain,
            empty=f"no pod of {NOUN} {service.name} is available",
        )

    await show(invocation, read)


def _active(row: commands.ServiceRow) -> str:
    return ", ".join([*row.serving, *(f"{ref} (gone)" for ref in row.gone)]) or "-"


def _where(endpoint: Endpoint) -> str:
    return (
        f"[{endpoint.address}]:{endpoint.port}"
        if ":" in endpoint.address
        else f"{endpoint.address}:{endpoint.port}"
    )
