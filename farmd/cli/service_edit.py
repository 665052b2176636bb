"""``farmctl service create | delete``."""

from __future__ import annotations

from collections.abc import Sequence

import click

from farmd.cli.changes import apply
from farmd.cli.invocation import Invocation
from farmd.cli.names import all_checked, items, objects, targets
from farmd.cli.options import command
from farmd.services import commands
from store.services import KIND, NOUN, Service, ServiceStore


@command("create", mutates=True)
@click.argument("name", callback=lambda _ctx, _param, value: value.removeprefix(f"{NOUN}/"))
@click.option("--port", required=True, help="The name of a port in the pods' manifest.")
@click.argument("owners", nargs=-1, metavar="[RC]...", callback=all_checked, shell_complete=items)
async def create(invocation: Invocation, name: str, port: str, owners: tuple[str, ...]) -> None:
    """Name the pods that serve: those of the given owners, such as web or rc/web.

    Rollouts keep the service up to date. Creating an equal one again changes nothing.
    """
    await apply(invocation, [await commands.create(invocation.call, name, port, owners)])


@command("delete", mutates=True, waits=True)
@targets(NOUN, objects(KIND))
async def delete(invocation: Invocation, names: tuple[str, ...]) -> None:
    """Delete services. One that was deployed goes with its pods; of others the pods stay, but routers do not
    find them any more.
    """
    store = ServiceStore(invocation.client, invocation.keys)
    # A name and an id may mean the same service.
    found = {stored.record.id: stored.record for stored in [await store.find(name) for name in names]}
    projects: dict[str, list[Service]] = {}
    for record in found.values():
        if commands.stands(record):
            projects.setdefault(record.project, []).append(record)
    plain = [each for each in found.values() if not commands.stands(each)]
    if plain:
        await apply(invocation, [await commands.delete(invocation.call, each.id) for each in plain])
    for project, services in projects.items():
        await _deleted(invocation, project, services)


async def _deleted(invocation: Invocation, project: str, services: Sequence[Service]) -> None:
    from farmd.cli.deploy_flow import carry_out
    from farmd.deploy.services import removed

    title = f"project {project}" if project else "delete"
    await carry_out(invocation, lambda: removed(invocation.call, services), title)
