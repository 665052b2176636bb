"""``farmctl deploy``, and ``farmctl deployment status | pause | resume | rollback``."""

from __future__ import annotations

import os
import secrets
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from farmd.cli.asking import on_terminal
from farmd.cli.invocation import Invocation
from farmd.cli.names import objects, target
from farmd.cli.noun_edit import saying
from farmd.cli.options import command
from farmd.cli.output import document, emit, width_of
from farmd.commands.waiting import fitting
from farmd.deploy import commands, view
from farmd.deploy.noun import DEPLOYMENT
from farmd.deploy.view import Pulls
from farmd.overview import Row
from farmd.tables.model import clean
from store.deployments import KIND
from store.deployments import Deployment as DeploymentRecord
from store.errors import InputInvalid
from store.times import plain

if TYPE_CHECKING:
    from farmd.compose.project import Project
    from farmd.deploy.commands import Deployment
    from farmd.deploy.project import ResolvedServices
    from farmd.deploy.protocols import DNSClient
    from farmd.deploy.resolver import ServiceSpecResolver

# ``farmctl deploy``: bring services to what compose files, or files of the house, say of them.


@command("deploy", mutates=True, waits=True, signs=True)
@click.argument("services", nargs=-1, metavar="[SERVICE]...")
@click.option(
    "-f",
    "--file",
    "paths",
    multiple=True,
    metavar="FILE",
    help="Compose file (later ones override earlier ones), or a file with kind: service.",
)
@click.option(
    "-p",
    "--project-name",
    default="",
    metavar="NAME",
    help="Project; default: the name in the file, or the folder's.",
)
@click.option(
    "--profile", "profiles", multiple=True, metavar="NAME", help="Also deploy the services of this profile."
)
@click.option("--recreate", is_flag=True, help="Also replace pods that already match the files.")
@click.option("--prune", is_flag=True, help="Remove services of the project that are no longer in the files.")
@click.option(
    "--supersede",
    is_flag=True,
    help="Take services over from a deployment that is under way; asked on a terminal.",
)
@click.option("--atomic", is_flag=True, help="A failure rolls back all services.")
@click.option(
    "--with-files",
    is_flag=True,
    help="Copy the secrets and files that the compose files mount from this machine into Consul.",
)
@click.option("--detailed-exitcode", is_flag=True, help="With --dry-run: exit with 3 if changes are due.")
async def deploy(
    invocation: Invocation,
    services: tuple[str, ...],
    paths: tuple[str, ...],
    project_name: str,
    profiles: tuple[str, ...],
    recreate: bool,
    prune: bool,
    supersede: bool,
    atomic: bool,
    with_files: bool,
    detailed_exitcode: bool,
) -> None:
    """Deploy the services of compose files.

    Shows the plan, asks, and waits until a farm has carried it out; the farm goes on when this command ends.
    Images are pinned to the digests that their registries serve now. Without -f the files are found as
    compose finds them.
    """
    from farmd.cli.deploy_flow import carry_out, project_of
    from farmd.deploy.commands import Deployment
    from farmd.deploy.references import filled, mistaken
    from farmd.deploy.registry import registries

    if prune and services:
        raise InputInvalid("deploy: found --prune with names of services, expected one or the other")
    project, named = project_of(services, paths, project_name, profiles, with_files=with_files)
    for warning in (*project.warnings, *await mistaken(invocation.call, project.services)):
        invocation.say(f"warning: {warning}")
    project = replace(project, services=await filled(invocation.call, project.services))
    resolver = await _resolver(project, invocation.client)
    wanted = _wanted(project, resolver)
    title = f"project {project.name}" if project.name else "files"
    asks = on_terminal() and not invocation.settings.yes  # the plan shows what is taken over
    call = replace(invocation.call, supersede=supersede or asks)
    async with registries(os.environ) as images:

        async def make() -> Deployment:
            made = Deployment(
                call=call,
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
            for name, spec in wanted.services.items():
                record = made.scene.records.get(name)
                if (found := resolver.dns_name(spec)) and (record is None or record.record.catalog is None):
                    made.remarks.append(f"{name}: in Consul's DNS as {found}")
            return made

        await carry_out(invocation, make, title, detailed=detailed_exitcode)


async def _resolver(project: Project, dns: DNSClient) -> ServiceSpecResolver:
    """The domain is read only if a service has a name in it."""
    from farmd.deploy.resolver import ServiceSpecResolver

    named = any(spec.catalog is not None for spec in project.services.values())
    return ServiceSpecResolver(secrets.SystemRandom(), await dns.domain() if named else "")


def _wanted(project: Project, resolver: ServiceSpecResolver) -> ResolvedServices:
    from farmd.deploy.project import ResolvedServices

    return ResolvedServices(
        services={name: resolver.resolve(spec) for name, spec in project.services.items()},
        after=project.after,
        external=project.external,
        together=project.name if project.together else "",
    )


# ``farmctl deployment status | pause | resume | rollback``.


@command("status")
@target("deployment", objects(KIND))
async def status(invocation: Invocation, name: str) -> None:
    """The progress of a deployment, service by service, and what it is waiting for."""
    row: Row[DeploymentRecord] = await DEPLOYMENT.row(invocation.call, name)
    output = invocation.settings.output
    if output in {"json", "yaml"}:
        told = {"owner": row.owner, "state": row.state, "reason": row.reason, "status": plain(row.status)}
        emit(invocation, document("Deployment", {**plain(row.record), **told}))
    elif output == "name":
        click.echo(f"deployment/{row.record.name}")
    else:
        width = width_of(sys.stdout)
        doing = await Pulls(invocation.call).of(row.record, row.status)
        for line in fitting(view.lines(row.record, row.status, row.state, row.reason, doing), width):
            click.echo(clean(line))


pause = saying(DEPLOYMENT, "pause", commands.pause)
resume = saying(DEPLOYMENT, "resume", commands.resume)
rollback = saying(DEPLOYMENT, "rollback", commands.rollback)
