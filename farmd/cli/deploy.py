"""``farmctl deploy``: bring services to what compose files, or files of the house, say of them."""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING

import click

from farmd.cli.invocation import Invocation
from farmd.cli.options import command
from store.errors import InputInvalid

if TYPE_CHECKING:
    from farmd.compose.project import Project
    from farmd.deploy.commands import Deployment
    from farmd.deploy.project import ResolvedServices


@command("deploy", mutates=True, waits=True, signs=True)
@click.argument("services", nargs=-1, metavar="[SERVICE]...")
@click.option(
    "-f",
    "--file",
    "paths",
    multiple=True,
    metavar="FILE",
    help="Compose file, over which later ones lie, or a file with kind: service.",
)
@click.option(
    "-p", "--project-name", default="", metavar="NAME", help="Project; else the file's, or the folder's."
)
@click.option("--profile", "profiles", multiple=True, metavar="NAME", help="Also the services of a profile.")
@click.option("--recreate", is_flag=True, help="Replace also the pods that are as the files say.")
@click.option("--prune", is_flag=True, help="Remove services of the project that left the files.")
@click.option("--atomic", is_flag=True, help="One failure rolls all services back.")
@click.option(
    "--with-files",
    is_flag=True,
    help="Copy secrets and files of this machine that the compose files mount into Consul.",
)
@click.option("--detailed-exitcode", is_flag=True, help="With --dry-run: exit 3 where changes are due.")
async def deploy(
    invocation: Invocation,
    services: tuple[str, ...],
    paths: tuple[str, ...],
    project_name: str,
    profiles: tuple[str, ...],
    recreate: bool,
    prune: bool,
    atomic: bool,
    with_files: bool,
    detailed_exitcode: bool,
) -> None:
    """Bring services to what compose files say of them.

    Shows the plan, asks, and waits until a farm has carried it out; the farm goes on when this command ends.
    Images are pinned to the digests that their registries serve now. Without -f the files are found as
    compose finds them.
    """
    from farmd.cli.deploy_files import project_of
    from farmd.cli.deploy_flow import carry_out
    from farmd.deploy.commands import Deployment
    from farmd.deploy.registry import registries

    if prune and services:
        raise InputInvalid("deploy: found --prune with names of services, expected one or the other")
    project, named = project_of(services, paths, project_name, profiles, with_files=with_files)
    for warning in project.warnings:
        invocation.say(f"warning: {warning}")
    wanted = _wanted(project)
    title = f"project {project.name}" if project.name else "files"
    async with registries(os.environ) as images:

        async def make() -> Deployment:
            made = Deployment(
                call=invocation.call,
                wanted=wanted,
                project=project.name,
                recreate=recreate,
                atomic=atomic,
                images=images,
            )
            await made.plan()
            if made.left and not services and (gone := sorted(set(made.left) - named())):
                if prune:
                    made.remove(gone)
                else:
                    made.remarks.append(f"! not in the files: {', '.join(gone)}; --prune removes them")
            return made

        await carry_out(invocation, make, title, detailed=detailed_exitcode)


def _wanted(project: Project) -> ResolvedServices:
    from farmd.deploy.project import ResolvedServices
    from farmd.deploy.resolver import ServiceSpecResolver

    resolver = ServiceSpecResolver(secrets.SystemRandom())
    return ResolvedServices(
        services={name: resolver.resolve(spec) for name, spec in project.services.items()},
        after=project.after,
        external=project.external,
        together=project.name if project.together else "",
    )
