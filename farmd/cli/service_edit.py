"""``farmctl service create | catalog | delete``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from farmd.cli.changes import apply
from farmd.cli.invocation import Invocation
from farmd.cli.names import all_checked, items, objects, target, targets
from farmd.cli.options import command
from farmd.services import commands
from store.errors import refuse
from store.mistakes import shown
from store.services import KIND, NOUN, Catalog, Service, ServiceStore


def _published(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say how a service is found in Consul's catalogue."""
    for option in (
        click.option(
            "--canary-tag",
            "canary_tags",
            multiple=True,
            help="A tag of a new version's pods while both serve.",
        ),
        click.option("--meta", multiple=True, metavar="KEY=VALUE", help="Meta of each entry."),
        click.option("--tag", "tags", multiple=True, help="A tag of each entry."),
        click.option(
            "--as", "registered", default="", metavar="NAME", help="Its name there, if it is another one."
        ),
    ):
        function = option(function)
    return function


def _catalog(name: str, tags: Sequence[str], meta: Sequence[str], canary_tags: Sequence[str]) -> Catalog:
    pairs = [text.partition("=") for text in meta]
    for key, found, _ in pairs:
        if not (key and found):
            refuse("--meta", shown(key), "KEY=VALUE")
    given = {key: value for key, _, value in pairs}
    return Catalog(name=name, tags=list(tags), meta=given, canary_tags=list(canary_tags))


@command("catalog", mutates=True)
@target(NOUN, objects(KIND))
@click.option("--off", is_flag=True, help="Take it out of the catalogue.")
@_published
async def catalog(invocation: Invocation, name: str, off: bool, **given: Any) -> None:
    """Let Consul's own catalogue and DNS find the pods of a service, or no more.

    What is said replaces all that was said before: give all tags and meta each time.
    """
    if off and any(given.values()):
        raise click.UsageError("found --off with other options, expected --off alone")
    given["name"] = given.pop("registered")
    wanted = None if off else _catalog(**given)
    await apply(invocation, [await commands.publish(invocation.call, name, wanted)])


@command("create", mutates=True)
@click.argument("name", callback=lambda _ctx, _param, value: value.removeprefix(f"{NOUN}/"))
@click.option("--port", required=True, help="The name of a port in the pods' manifest.")
@click.option("--catalog", "published", is_flag=True, help="Let Consul's catalogue and DNS find the pods.")
@click.argument("owners", nargs=-1, metavar="[RC]...", callback=all_checked, shell_complete=items)
async def create(
    invocation: Invocation, name: str, port: str, published: bool, owners: tuple[str, ...]
) -> None:
    """Name the pods that serve: those of the given owners, such as web or rc/web.

    Rollouts keep the service up to date. Creating an equal one again changes nothing. Tags and more of an
    entry in the catalogue are what farmctl service catalog says.
    """
    found = Catalog() if published else None
    await apply(invocation, [await commands.create(invocation.call, name, port, owners, found)])


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
    from farmd.deploy.commands import removed

    title = f"project {project}" if project else "delete"
    await carry_out(invocation, lambda: removed(invocation.call, services), title)
