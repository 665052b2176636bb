"""``farmctl service create | run | edit | scale | rollback | catalog | delete``."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from typing import Any

import click

from farmd.cli.changes import apply
from farmd.cli.deploy_flow import carry_out
from farmd.cli.invocation import Invocation
from farmd.cli.names import all_checked, items, objects, target, targets
from farmd.cli.noun_editor import edits
from farmd.cli.options import Whole, command
from farmd.cli.output import as_yaml
from farmd.commands import documents
from farmd.commands.bundled import Wish
from farmd.commands.mutation import Mutation
from farmd.commands.parts import refuse_part
from farmd.commands.resolving import referring
from farmd.deploy import commands
from farmd.deploy import spec as deploy_spec
from farmd.deploy.commands import Deployment
from farmd.deploy.project import ResolvedServices
from farmd.deploy.references import filled
from farmd.deploy.resolver import ServiceSpecResolver, resolved, services_of
from farmd.deploy.spec import ContainerSpec, Placement, ServiceSpec, VolumeMount, VolumeSpec
from farmd.services import commands as services_commands
from farmd.services import document
from store.canonical import builtins
from store.entry import Stored
from store.errors import refuse
from store.mistakes import shown
from store.services import KIND, NOUN, Catalog, Service, ServiceStore

# ``farmctl service run | edit | scale | rollback``: deployments of one service.


@command("run", mutates=True, waits=True, trailing=True, signs=True)
@click.option("-n", "--name", default="", help="Its name; default: made from the image's name.")
@click.option("--replicas", type=Whole(0), default=1, show_default=True, help="Number of pods.")
@click.option("--global", "everywhere", is_flag=True, help="One pod on each machine, instead of a number.")
@click.option("-p", "--publish", "ports", multiple=True, metavar="PORT", help="80:8080@host, or 8080.")
@click.option("-e", "--env", "variables", multiple=True, metavar="NAME=VALUE", help="A variable.")
@click.option("--volume", "volumes", multiple=True, metavar="NAME:PATH[:ro]", help="A named volume.")
@click.option("-m", "--machine", "machines", multiple=True, help="Only on this machine, or these.")
@click.option("--project", default="", help="The project that it belongs to.")
@click.argument("image")
@click.argument("words", nargs=-1, metavar="[CMD]...")
async def run(
    invocation: Invocation,
    name: str,
    replicas: int,
    everywhere: bool,
    ports: tuple[str, ...],
    variables: tuple[str, ...],
    volumes: tuple[str, ...],
    machines: tuple[str, ...],
    project: str,
    image: str,
    words: tuple[str, ...],
) -> None:
    """Deploy one service from an image. The words after the image are its command."""
    from farmd.deploy.registry import registries

    mounts = [_volume(text) for text in volumes]
    spec = ServiceSpec(
        name=name,
        mode="global" if everywhere else "replicated",
        replicas=replicas,
        container=ContainerSpec(
            image=image,
            command=list(words),
            env=dict(_variable(text) for text in variables),
            mounts=mounts,
        ),
        volumes=[VolumeSpec(name=mount.volume) for mount in mounts],
        ports=[deploy_spec.parse(text) for text in ports],
        placement=Placement(machines=list(machines)),
    )
    spec = ServiceSpecResolver(secrets.SystemRandom()).resolve(spec)
    await commands.unused(invocation.call, spec.name)
    async with registries(os.environ) as images:

        async def make() -> Deployment:
            made = Deployment(
                call=invocation.call,
                wanted=ResolvedServices(services={spec.name: spec}),
                project=project,
                images=images,
            )
            await made.plan()
            return made

        await carry_out(invocation, make, f"{NOUN} {spec.name}")


@command("edit", mutates=True, waits=True, signs=True)
@target(NOUN, objects(KIND))
async def edit(invocation: Invocation, name: str) -> None:
    """Change a service in $VISUAL or $EDITOR, and deploy it again; one that only names pods changes at once.

    An invalid document opens the editor again, with the error as a comment. Saving it unchanged does nothing.
    A service that somebody else changed meanwhile is refused.
    """
    from farmd.deploy.registry import registries

    call = invocation.call
    plain = await ServiceStore(call.client, call.keys).find(name)
    if not plain.record.mode:
        await _edit_name(invocation, plain)
        return
    stored = await commands.deployed(call, plain.record.id, "edited", "edit NAME")
    await refuse_part(call, KIND, stored.record)
    title = f"{NOUN}/{stored.record.name}"

    async def take(text: str) -> ServiceSpec:
        found = services_of([(f"kind: {NOUN}\n{text}", "edit")]) or {}
        if list(found) != [stored.record.name]:
            refuse("name", shown(", ".join(found)), repr(stored.record.name))
        return resolved((await filled(call, found))[stored.record.name])

    text = as_yaml(referring(builtins(await commands.spec_now(call, stored.record))))
    async with edits(invocation, title, text, take) as spec, registries(os.environ) as images:
        if spec is not None:
            await carry_out(
                invocation.reviewing(), lambda: commands.edited(call, stored, spec, images), title
            )


async def _edit_name(invocation: Invocation, stored: Stored[Service]) -> None:
    """Change a service that only names pods."""
    call, record = invocation.call, stored.record
    await refuse_part(call, KIND, record)

    async def take(text: str) -> Mutation:
        ((where, found), *_) = documents.parse(text, "edit")
        spec = document.parse(found, where)
        if spec.name != record.name:
            refuse("name", shown(spec.name), repr(record.name))
        return await document.update(call, stored, Wish(record.name, spec, frozenset(spec.__struct_fields__)))

    text = as_yaml(await document.document(call, record))
    async with edits(invocation, f"{NOUN}/{record.name}", text, take) as mutation:
        if mutation is not None:
            await apply(invocation.reviewing(), [mutation])


@command("scale", mutates=True, waits=True, signs=True, negative_numbers=True)
@target(NOUN, objects(KIND))
@click.argument("replicas", type=Whole(0))
async def scale(invocation: Invocation, name: str, replicas: int) -> None:
    """Change how many pods a service has."""
    await carry_out(
        invocation.reviewing(), lambda: commands.scaled(invocation.call, name, replicas), f"{NOUN} {name}"
    )


@command("rollback", mutates=True, waits=True, signs=True)
@target(NOUN, objects(KIND))
@click.option(
    "--to", "revision", type=Whole(1), help="The revision; default: the last good one before the current one."
)
async def rollback(invocation: Invocation, name: str, revision: int | None) -> None:
    """Roll a service back to a revision; farmctl service history lists them."""
    await carry_out(
        invocation.reviewing(),
        lambda: commands.rolled_back(invocation.call, name, revision),
        f"{NOUN} {name}",
    )


def _variable(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not (found and name):
        refuse("--env", shown(text), "NAME=VALUE")
    return name, value


def _volume(text: str) -> VolumeMount:
    name, _, rest = text.partition(":")
    path, _, mode = rest.partition(":")
    if not (name and path.startswith("/")) or mode not in {"", "ro", "rw"}:
        refuse("--volume", shown(text), "NAME:/PATH or NAME:/PATH:ro")
    return VolumeMount(volume=name, path=path, read_only=mode == "ro")


# ``farmctl service create | catalog | delete``.


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
        click.option("--as", "registered", default="", metavar="NAME", help="Its name there, if it differs."),
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
@click.option(
    "--off", is_flag=True, help="Remove it, and keep it out also where farms register every service."
)
@_published
async def catalog(invocation: Invocation, name: str, off: bool, **given: Any) -> None:
    """Publish the pods of a service in Consul's own catalogue and DNS, or stop it.

    The options replace all earlier ones: give all tags and meta each time.
    """
    if off and any(given.values()):
        raise click.UsageError("found --off with other options, expected --off alone")
    given["name"] = given.pop("registered")
    wanted = None if off else _catalog(**given)
    await apply(invocation, [await services_commands.publish(invocation.call, name, wanted)])


@command("create", mutates=True)
@click.argument("name", callback=lambda _ctx, _param, value: value.removeprefix(f"{NOUN}/"))
@click.option("--port", required=True, help="The name of a port in the pods' manifest.")
@click.option("--catalog", "published", is_flag=True, help="Publish the pods in Consul's catalogue and DNS.")
@_published
@click.argument("owners", nargs=-1, metavar="[RC]...", callback=all_checked, shell_complete=items)
async def create(
    invocation: Invocation, name: str, port: str, published: bool, owners: tuple[str, ...], **given: Any
) -> None:
    """Create a name for the pods of the given owners, such as web or rc/web.

    Rollouts keep the service up to date. Creating an equal one again changes nothing. farmctl service
    catalog changes how Consul's catalogue finds it.
    """
    if not published and any(given.values()):
        raise click.UsageError(
            "found an option of an entry in Consul's catalogue, expected --catalog with it"
        )
    given["name"] = given.pop("registered")
    found = _catalog(**given) if published else None
    await apply(invocation, [await services_commands.create(invocation.call, name, port, owners, found)])


@command("delete", mutates=True, waits=True)
@targets(NOUN, objects(KIND))
async def delete(invocation: Invocation, names: tuple[str, ...]) -> None:
    """Delete services. The pods of a deployed service are removed. Those of a service that only names pods
    stay, but routers no longer find them.
    """
    store = ServiceStore(invocation.client, invocation.keys)
    # A name and an id may mean the same service.
    found = {stored.record.id: stored.record for stored in [await store.find(name) for name in names]}
    projects: dict[str, list[Service]] = {}
    for record in found.values():
        if services_commands.stands(record):
            projects.setdefault(record.project, []).append(record)
    plain = [each for each in found.values() if not services_commands.stands(each)]
    if plain:
        await apply(invocation, [await services_commands.delete(invocation.call, each.id) for each in plain])
        if not invocation.settings.dry_run and any(each.catalog is not None for each in plain):
            invocation.say("a farm removes the entries in Consul's catalogue; farmctl doctor shows the rest")
    for project, services in projects.items():
        await _deleted(invocation, project, services)


async def _deleted(invocation: Invocation, project: str, services: Sequence[Service]) -> None:
    from farmd.cli.deploy_flow import carry_out
    from farmd.deploy.commands import removed

    title = f"project {project}" if project else "delete"
    await carry_out(invocation, lambda: removed(invocation.call, services), title)
