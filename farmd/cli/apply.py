"""``farmctl apply | diff``: bring an app to what a bundle of files says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from farmd.cli.apply_cluster import login
from farmd.cli.asking import on_terminal
from farmd.cli.cluster import Place, a_namespace, access_options
from farmd.cli.invocation import Invocation
from farmd.cli.options import Duration, command

if TYPE_CHECKING:
    from farmd.apps.commands import Application

SUPERSEDE = click.option(
    "--supersede",
    is_flag=True,
    help="Replace a version that is still coming with this one; asked on a terminal.",
)
F = TypeVar("F", bound=Callable[..., Any])


def bundle_options(function: F) -> F:
    """The options that name a bundle and say how it is applied."""
    options = (
        click.option(
            "-f",
            "--file",
            "paths",
            required=True,
            multiple=True,
            metavar="FILE|DIR|-",
            help="Files of the bundle; a folder stands for all its YAML and JSON files; - reads stdin.",
        ),
        click.option("-R", "--recursive", is_flag=True, help="Also read subfolders."),
        click.option("--app", default="", metavar="NAME", help="The app; default: the one in the files."),
        click.option(
            "-n",
            "--namespace",
            metavar="NAME",
            callback=a_namespace,
            help="The namespace of Kubernetes objects that name none.",
        ),
        click.option(
            "--cluster",
            default="",
            metavar="NAME",
            help="The name by which farms know the Kubernetes cluster.",
        ),
        click.option(
            "--prune", is_flag=True, default=None, help="Remove objects that are no longer in the files."
        ),
        click.option(
            "--adopt",
            multiple=True,
            metavar="REF|all",
            help="Adopt an object that differs, or that another app drops, such as rc/web.",
        ),
        click.option(
            "--force-conflicts",
            is_flag=True,
            help="Also take over fields of adopted objects that others manage.",
        ),
        click.option(
            "--mass-removal",
            is_flag=True,
            help="Allow the plan to remove all, or more than half, of the objects.",
        ),
        SUPERSEDE,
    )
    for option in reversed(options):
        function = option(function)
    return access_options(function)


@command("apply", mutates=True, waits=True, signs=True)
@bundle_options
@click.option("--atomic", is_flag=True, default=None, help="Write everything in one transaction, or nothing.")
@click.option(
    "--on-failure",
    type=click.Choice(("stop", "rollback")),
    help="When a wave fails: stop there, or roll back to the last revision that was reached.",
)
@click.option("--detailed-exitcode", is_flag=True, help="With --dry-run: exit with 3 if changes are due.")
@click.option(
    "--dcs",
    default="",
    metavar="A,B,…",
    help="These datacenters, one after the other; it stops at the first that fails.",
)
@click.option(
    "--bake",
    type=Duration(),
    default=0.0,
    help="With --dcs: how long the app must stay ready in a datacenter before the next one.",
)
async def apply(invocation: Invocation, detailed_exitcode: bool, dcs: str, bake: float, **said: Any) -> None:
    """Apply a bundle of files as an app: farmd's own objects, and those of Kubernetes.

    Shows the plan, asks, records the revision, and waits until a farm has reached it; the farm goes on when
    this command ends. Objects no longer in the files stay, and are listed, until --prune.
    """
    from farmd.cli.apply_flow import carry_out

    read = cache(_text_of)  # stdin has a text once

    async def one(there: Invocation) -> str:
        async with _preparing(there, read, **said) as make:
            return await carry_out(there, make, detailed=detailed_exitcode)

    if not (dcs or bake):
        await one(invocation)
        return
    from farmd.cli.apply_datacenters import in_turn

    await in_turn(invocation, dcs, bake, one)


def _text_of(path: str) -> str:
    from farmd.cli.noun_edit import text_of

    return text_of(path)


@command("diff")
@bundle_options
async def diff(invocation: Invocation, **said: Any) -> None:
    """What apply would change; exits with 3 if there are changes."""
    from farmd.cli.apply_flow import rehearse

    async with _preparing(invocation, _text_of, **said) as make:
        rehearse(invocation, await make(), detailed=True)


@asynccontextmanager
async def _preparing(
    invocation: Invocation,
    read: Callable[[str], str],
    *,
    paths: tuple[str, ...],
    recursive: bool,
    app: str,
    adopt: tuple[str, ...],
    mass_removal: bool,
    supersede: bool,
    force_conflicts: bool,
    kubeconfig: str,
    context: str,
    cluster: str,
    **said: Any,
) -> AsyncIterator[Callable[[], Awaitable[Application]]]:
    """What prepares the next revision of a bundle's app, again and again if need be."""
    from farmd.apps import commands
    from farmd.apps.bundle import AppSpec, foreign_kinds, located, parse, texts
    from farmd.apps.scene import has_outside
    from farmd.commands.resolving import resolver

    files = texts(paths, read, recursive=recursive)
    resolve = await resolver(invocation.call, files)
    settings = AppSpec(name=app.removeprefix("app/"), **said)
    make = partial(
        commands.apply,
        invocation.call,
        adopt=adopt,
        mass=mass_removal,
        supersede=supersede,
        asks=on_terminal() and not invocation.settings.yes,
        force=force_conflicts,
        cluster=cluster,
    )
    found = located(files)
    if not (kinds := foreign_kinds(found)):
        bundle = parse(files, settings, resolve=resolve, found=found)
        if not await has_outside(invocation.call, bundle.app.name):
            yield partial(make, bundle)
            return
    async with login(invocation, Place(kubeconfig, context)) as person:
        bundle = parse(files, settings, await person.scopes(kinds), resolve, found)

        async def checked() -> Application:
            made = await make(bundle, outside=person.objects(bundle.app.name))
            await person.check(made.app.needs)
            return made

        yield checked
