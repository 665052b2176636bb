"""``farmctl deploy``: what a compose file would change, machine by machine. It writes nothing."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import click

from farmd.cli.invocation import Invocation
from farmd.cli.noun_edit import text_of
from farmd.cli.options import command
from farmd.cli.output import document, emit
from store.errors import Conflict, InputInvalid
from store.mistakes import nearest

if TYPE_CHECKING:
    from farmd.compose.project import Project
    from farmd.deploy.model import ServiceSpec
    from farmd.deploy.project import ProjectPlan, Wanted
    from farmd.deploy.reader import Standing

CHANGES_ARE_DUE = 3


@command("deploy")
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
@click.option("--dry-run", is_flag=True, help="Show the plan, write nothing.")
@click.option("--detailed-exitcode", is_flag=True, help="Exit 3 where changes are due.")
async def deploy(
    invocation: Invocation,
    services: tuple[str, ...],
    paths: tuple[str, ...],
    project_name: str,
    profiles: tuple[str, ...],
    recreate: bool,
    dry_run: bool,
    detailed_exitcode: bool,
) -> None:
    """Show what a compose file would change, service by service and machine by machine.

    Images are pinned to the digests that their registries serve now. Without -f the files are found as
    compose finds them. The plan is made from the machines as they are now; --dry-run is needed, because this
    version plans alone.
    """
    if not dry_run:
        raise InputInvalid("deploy: found no --dry-run, expected it: this version plans and changes nothing")
    project = _project(services, paths, project_name, profiles)
    for warning in project.warnings:
        invocation.say(f"warning: {warning}")
    from farmd.deploy.reader import standing

    stands = await standing(invocation.client, invocation.keys, project.services)
    if taken := sorted(stands.taken & project.services.keys()):
        raise Conflict(
            f"services.{taken[0]}: service/{taken[0]} serves for other owners; rename this one, or set"
            " x-farmd.prefix at the top of the file",
            field=f"services.{taken[0]}",
        )
    specs, warnings = await _pinned(project, stands)
    wanted, plan = _planned(project, specs, stands, recreate)
    for warning in warnings:
        invocation.say(f"warning: {warning}")
    _told(invocation, project.name, wanted, plan, stands)
    if detailed_exitcode and not plan.empty:
        raise click.exceptions.Exit(CHANGES_ARE_DUE)


def _project(
    services: tuple[str, ...], paths: tuple[str, ...], name: str, profiles: tuple[str, ...]
) -> Project:
    from farmd.compose.disk import Disk, found, variables
    from farmd.compose.project import Project, read
    from farmd.deploy.spec_files import services_of

    files = found(paths, os.environ, Path())
    text = cache(text_of)  # stdin can be read once
    if (own := services_of([(text(path), path) for path in files])) is not None:
        if unknown := sorted(set(services) - own.keys()):
            raise InputInvalid(f"deploy: found no service {unknown[0]!r}{nearest(unknown[0], sorted(own))}")
        return Project(name="", services={name: own[name] for name in services or own})
    env = variables(os.environ, Path(files[0]).parent, text)
    chosen = profiles or tuple(filter(None, env.get("COMPOSE_PROFILES", "").split(",")))
    return read(files, Disk(text), env, name=name, profiles=chosen, services=services)


async def _pinned(project: Project, stands: Standing) -> tuple[dict[str, ServiceSpec], list[str]]:
    from farmd.deploy.images import pinned
    from farmd.deploy.registry import registries

    async with registries(os.environ) as client:
        return await pinned(project.services, client, stands.services)


def _planned(
    project: Project, specs: Mapping[str, ServiceSpec], stands: Standing, recreate: bool
) -> tuple[Wanted, ProjectPlan]:
    from farmd.deploy.project import Wanted, plan_project
    from farmd.deploy.resolver import ServiceSpecResolver
    from farmd.deploy.strategy import RollingStrategy
    from scheduler.cluster import ClusterState
    from scheduler.errors import SchedulerError

    resolver = ServiceSpecResolver(secrets.SystemRandom())
    wanted = Wanted(
        services={name: resolver.resolve(spec) for name, spec in specs.items()},
        after=project.after,
        external=project.external,
        together=project.name if project.together else "",
    )
    state = ClusterState(stands.view, stands.volumes)
    try:
        return wanted, plan_project(state, wanted, stands.services, RollingStrategy(force_recreate=recreate))
    except SchedulerError as error:
        raise Conflict(error.message, **error.fields) from error


def _told(invocation: Invocation, name: str, wanted: Wanted, plan: ProjectPlan, stands: Standing) -> None:
    from farmd.deploy import preview

    if invocation.settings.output in {"json", "yaml"}:
        content = {"project": name, **preview.document(plan, wanted)}
        emit(invocation, document("DeploymentPlan", content))
        return
    for line in preview.lines(f"project {name}" if name else "files", plan, wanted, len(stands.view)):
        click.echo(line)
