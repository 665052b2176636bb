"""``farmctl service run | scale | rollback``: deployments of one service."""

from __future__ import annotations

import os
import secrets

import click

from farmd.cli.deploy_flow import carry_out
from farmd.cli.invocation import Invocation
from farmd.cli.names import objects, target
from farmd.cli.options import Whole, command
from farmd.deploy import commands
from farmd.deploy import spec as deploy_spec
from farmd.deploy.commands import Deployment
from farmd.deploy.project import ResolvedServices
from farmd.deploy.resolver import ServiceSpecResolver
from farmd.deploy.spec import ContainerSpec, Placement, ServiceSpec, VolumeMount, VolumeSpec
from store.errors import refuse
from store.mistakes import shown
from store.services import KIND, NOUN


@command("run", mutates=True, waits=True, trailing=True, signs=True)
@click.option("-n", "--name", default="", help="Its name; else one is made of the image's.")
@click.option("--replicas", type=Whole(0), default=1, show_default=True, help="How many pods.")
@click.option("--global", "everywhere", is_flag=True, help="One pod on each machine, in place of a number.")
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
    """Deploy one service from an image. What stands behind the image is its command."""
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


@command("scale", mutates=True, waits=True, signs=True, negative_numbers=True)
@target(NOUN, objects(KIND))
@click.argument("replicas", type=int)
async def scale(invocation: Invocation, name: str, replicas: int) -> None:
    """Change how many pods a service has."""
    await carry_out(
        invocation.reviewing(), lambda: commands.scaled(invocation.call, name, replicas), f"{NOUN} {name}"
    )


@command("rollback", mutates=True, waits=True, signs=True)
@target(NOUN, objects(KIND))
@click.option("--to", "revision", type=int, help="The revision; else the last good one before the present.")
async def rollback(invocation: Invocation, name: str, revision: int | None) -> None:
    """Make a service what it was at a revision; farmctl service history shows them."""
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
