"""``farmctl apply | diff``: bring an app to what a bundle of files says."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from farmd.cli.invocation import Invocation
from farmd.cli.options import command

if TYPE_CHECKING:
    from farmd.dispatch.bundle import Bundle
    from farmd.dispatch.commands import Application

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
            help="Files of the bundle; of a folder all YAML and JSON files; - reads stdin.",
        ),
        click.option("-R", "--recursive", is_flag=True, help="Also the folders below."),
        click.option("--app", default="", metavar="NAME", help="The app; else that of the file's kind: app."),
        click.option("-n", "--namespace", metavar="NAME", help="For Kubernetes objects that name none."),
        click.option("--prune", is_flag=True, default=None, help="Remove what left the files."),
        click.option(
            "--adopt",
            multiple=True,
            metavar="REF|all",
            help="Take an object that differs, or that another app drops, such as rc/web.",
        ),
        click.option(
            "--mass-removal", is_flag=True, help="Also where all, or more than half of the objects, would go."
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


@command("apply", mutates=True, waits=True)
@bundle_options
@click.option("--atomic", is_flag=True, default=None, help="All in one transaction, or nothing.")
@click.option(
    "--on-failure",
    type=click.Choice(("stop", "rollback")),
    help="When a wave fails: stop there, or go back to the last revision that was reached.",
)
@click.option("--detailed-exitcode", is_flag=True, help="With --dry-run: exit 3 where changes are due.")
async def apply(
    invocation: Invocation,
    paths: tuple[str, ...],
    recursive: bool,
    adopt: tuple[str, ...],
    mass_removal: bool,
    detailed_exitcode: bool,
    **said: Any,
) -> None:
    """Bring an app to what a bundle of files says: farmd's own objects, and those of Kubernetes.

    Shows the plan, asks, records the revision, and waits until a farm has reached it; the farm goes on when
    this command ends. What left the files stays, and is listed, until --prune.
    """
    from farmd.cli.apply_flow import carry_out

    bundle = _bundle(paths, recursive, said)
    await carry_out(
        invocation, lambda: _prepared(invocation, bundle, adopt, mass_removal), detailed=detailed_exitcode
    )


@command("diff")
@bundle_options
async def diff(
    invocation: Invocation,
    paths: tuple[str, ...],
    recursive: bool,
    adopt: tuple[str, ...],
    mass_removal: bool,
    **said: Any,
) -> None:
    """What apply would change; exit 3 where that is anything."""
    from farmd.cli.apply_flow import rehearse

    bundle = _bundle(paths, recursive, said)
    rehearse(invocation, await _prepared(invocation, bundle, adopt, mass_removal), detailed=True)


def _bundle(paths: tuple[str, ...], recursive: bool, said: dict[str, Any]) -> Bundle:
    from farmd.cli.noun_edit import text_of
    from farmd.dispatch.bundle import AppSpec, parse
    from farmd.dispatch.bundle_files import texts

    settings = AppSpec(name=said.pop("app").removeprefix("app/"), **said)
    return parse(texts(paths, text_of, recursive=recursive), settings)


async def _prepared(
    invocation: Invocation, bundle: Bundle, adopt: tuple[str, ...], mass: bool
) -> Application:
    from farmd.dispatch import commands

    return await commands.apply(invocation.call, bundle, adopt=adopt, mass=mass)
