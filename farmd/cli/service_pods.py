"""``farmctl service pods | logs | explain``: the pods behind a service, whoever owns them."""

from __future__ import annotations

from typing import Any

from farmd import overview
from farmd.cli import log_stream
from farmd.cli.invocation import Invocation
from farmd.cli.names import objects, target
from farmd.cli.noun_logs import stream_all
from farmd.cli.noun_show import explained
from farmd.cli.options import command
from farmd.cli.output import show
from farmd.commands.finding import look
from farmd.kinds import KINDS, load
from farmd.services import commands
from farmd.tables.model import Table
from farmd.tables.pods import pod_table
from store.errors import NotFound
from store.named import Owner
from store.services import KIND, NOUN, Service, ServiceStore


@command("pods", lists=True)
@target(NOUN, objects(KIND))
async def pods(invocation: Invocation, name: str) -> None:
    """The pods of a service, with what their nodes say of them."""

    async def read() -> Table:
        rows, broken = [], []
        for owner in (await _owners(invocation, name))[1].values():
            found = await overview.pods(invocation.client, invocation.keys, owner)
            rows += found.rows
            broken += found.broken
        return pod_table(rows, broken, invocation.call.clock.now())

    await show(invocation, read)


@command("logs")
@target(NOUN, objects(KIND))
@log_stream.options
async def logs(invocation: Invocation, name: str, **options: Any) -> None:
    """What the pods of a service wrote. Where there are several, each line begins with NODE/INSTANCE."""
    service, owners = await _owners(invocation, name)
    found = [await overview.pods(invocation.client, invocation.keys, owner) for owner in owners.values()]
    placed = [pod for each in found for pod in each.placed]
    await stream_all(invocation, f"{NOUN}/{service.name}", placed, log_stream.LogChoice(**options))


@command("explain")
@target(NOUN, objects(KIND))
async def explain(invocation: Invocation, name: str) -> None:
    """Why each node does or does not get one more pod of a service."""
    service, owners = await _owners(invocation, name)
    if not owners:
        raise NotFound(f"{NOUN} {service.name!r} has no owner of pods (yet)", kind=KIND, id=service.id)
    for ref, owner in owners.items():
        await explained(invocation, load(KINDS[ref.partition("/")[0]].asked), owner)


async def _owners(invocation: Invocation, name: str) -> tuple[Service, dict[str, Owner]]:
    """A service, and its owners of pods that exist."""
    service = (await look(invocation.call, ServiceStore(invocation.client, invocation.keys), name)).record
    return service, await commands.owners_of(invocation.call, service)
