"""``farmctl app rollback | pause | resume | release | delete``."""

from __future__ import annotations

from functools import partial

import click

from farmd.apps import commands
from farmd.apps.scene import standing
from farmd.cli import apply_flow, changes
from farmd.cli.apply import SUPERSEDE
from farmd.cli.apply_cluster import looking
from farmd.cli.apply_flow import carry_out
from farmd.cli.asking import on_terminal
from farmd.cli.invocation import Invocation
from farmd.cli.names import all_checked, objects, target
from farmd.cli.noun_edit import going_on
from farmd.cli.options import Whole, command
from farmd.cli.progress import progress
from farmd.tables.model import clean
from store.apps import KIND

APP = target("app", objects(KIND))


@command("rollback", mutates=True, waits=True)
@click.option(
    "--to",
    "revision",
    type=Whole(min=1),
    metavar="N",
    help="The revision; default: the last one reached before.",
)
@click.option(
    "--cluster", default="", metavar="NAME", help="The name by which farms know the Kubernetes cluster."
)
@SUPERSEDE
@APP
async def rollback(
    invocation: Invocation, name: str, revision: int | None, cluster: str, supersede: bool
) -> None:
    """Go back to an earlier revision of an app, by a new revision with its documents."""
    asks = on_terminal() and not invocation.settings.yes
    back = partial(
        commands.rollback,
        invocation.call,
        name,
        revision,
        cluster=cluster,
        supersede=supersede,
        asks=asks,
    )
    now = await standing(invocation.call, name)
    needs = () if now.outside else (await back()).app.needs
    async with looking(invocation, now, needs=needs) as outside:
        await carry_out(invocation, partial(back, outside=outside))


@command("pause", mutates=True)
@APP
async def pause(invocation: Invocation, name: str) -> None:
    """Keep farms from changing an app's objects until it is resumed."""
    await changes.apply(invocation, [await commands.pause(invocation.call, name)])


@command("resume", mutates=True)
@APP
async def resume(invocation: Invocation, name: str) -> None:
    """Let farms continue with an app that is paused, or whose objects have marks unknown to Consul."""
    async with looking(invocation, await standing(invocation.call, name), only=True) as outside:
        mutation = await commands.resume(invocation.call, name, outside)
    await changes.apply(invocation, [mutation])


@command("release", mutates=True)
@APP
@click.argument("refs", nargs=-1, required=True, metavar="REF...", callback=all_checked)
async def release(invocation: Invocation, name: str, refs: tuple[str, ...]) -> None:
    """Keep objects that are no longer in the files, without an owner."""
    await changes.apply(invocation, [await commands.release(invocation.call, name, refs)])


@command("delete", mutates=True, waits=True)
@click.option("--keep-objects", is_flag=True, help="Delete only the app; its objects stay, without an owner.")
@APP
async def delete(invocation: Invocation, name: str, keep_objects: bool) -> None:
    """Delete an app with its objects; waits until a farm has done it, unless --no-wait."""
    async with looking(invocation, await standing(invocation.call, name)) as outside:
        mutation, preview = await commands.delete(invocation.call, name, keep=keep_objects, outside=outside)
    for line in apply_flow.acts(preview, {}):
        invocation.say(clean(line))
    await changes.apply(invocation, [mutation])
    settings = invocation.settings
    if settings.dry_run:
        return
    if settings.wait is False:
        invocation.say(f"app/{name}: marked for deletion; a farm removes its objects, then the app")
        return
    with going_on(invocation, [mutation]), progress(invocation) as report:
        await commands.gone(invocation.call, name, settings.timeout, report)
    if not settings.quiet and settings.output in {"table", "wide"}:
        click.echo(f"app/{name} deleted")
