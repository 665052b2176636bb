"""From a plan to the end of its deployment, for all commands that deploy: show it, ask, submit, wait."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from farmd.cli.asking import ask
from farmd.cli.changes import CHANGES_DUE, replanned, settle
from farmd.cli.invocation import Invocation
from farmd.cli.logs import LogChoice, stream
from farmd.cli.noun_edit import going_on, text_of
from farmd.cli.output import document, emit, width_of
from farmd.cli.progress import progress
from farmd.commands.waiting import alike, fitting
from farmd.deploy import owners, preview
from farmd.deploy.commands import Deployment
from farmd.deploy.goals import bodies, planned, settings_of, starting
from farmd.deploy.scene import taken_over, takes_over, told
from farmd.runtime.errors import EndedOtherwise, FarmdError, Stale
from farmd.tables.model import clean
from store.errors import Conflict, InputInvalid, StoreError
from store.mistakes import nearest

if TYPE_CHECKING:
    from farmd.compose.project import Project

# The services that a person's files describe: compose files, or files of the house.


def project_of(
    services: tuple[str, ...],
    paths: tuple[str, ...],
    name: str,
    profiles: tuple[str, ...],
    *,
    with_files: bool = False,
) -> tuple[Project, Callable[[], frozenset[str]]]:
    """The project, and a function for the names of all services in its files, those of other profiles
    included.

    Raises:
        InputInvalid: naming the file and the field.
    """
    from farmd.compose.disk import Disk, found, variables
    from farmd.compose.load import valid_project
    from farmd.compose.project import Project, read
    from farmd.deploy.resolver import services_of

    files = found(paths, os.environ, Path())
    text = cache(text_of)  # stdin can be read once
    if (own := services_of([(text(path), path) for path in files])) is not None:
        if unknown := sorted(set(services) - own.keys()):
            raise InputInvalid(f"deploy: found no service {unknown[0]!r}{nearest(unknown[0], sorted(own))}")
        if name:
            valid_project(name, "project's name")
        chosen = {each: own[each] for each in services or own}
        return Project(name=name, services=chosen), lambda: frozenset(own)
    unset = list[str]()
    env = variables(os.environ, Path(files[0]).parent, text, unset.extend)
    active = profiles or tuple(filter(None, env.get("COMPOSE_PROFILES", "").split(",")))
    loaded = partial(read, files, Disk(text), env, name=name, with_files=with_files)
    project = loaded(profiles=active, services=services)
    if services:  # who deploys one of them moves it to no other machine
        whole = loaded(profiles=active)
        project = replace(project, together=project.together or whole.together)
    project = replace(project, warnings=(*unset, *project.warnings))
    return project, lambda: frozenset(loaded(profiles=("*",)).services)


LOGS, LINES = 3, 10
"""Of how many failed pods the last lines are shown, and how many lines."""


async def carry_out(
    invocation: Invocation,
    make: Callable[[], Awaitable[Deployment]],
    title: str,
    *,
    detailed: bool = False,
) -> None:
    """Plan, show and carry out; if the state changed meanwhile it is planned again, three times at most.

    ``make`` plans. ``detailed``: exit 3 where a dry run finds changes.

    Raises:
        Unconfirmed, Declined: nobody agreed.
        EndedOtherwise: it failed and was rolled back.
    """
    settings = invocation.settings

    async def prepare() -> Deployment | None:
        deployment = await make()
        for warning in alike(deployment.warnings):
            invocation.say(f"warning: {clean(warning)}")
        if settings.dry_run:
            _rehearse(invocation, deployment, title)
            if detailed and deployment.aims:
                raise click.exceptions.Exit(CHANGES_DUE)
            return None
        deployment.refuse_held()
        for line in fitting(_lines(deployment, title), width_of(sys.stderr)):
            invocation.say(line)
        if not deployment.aims:
            _result(invocation, deployment, "", "unchanged")
            return None
        _refuse_endless(invocation, deployment)
        ask(invocation, f"{_promise(deployment)} Deploy?", "a deployment changes what runs")
        aims = deployment.aims
        starts = planned(aims) if settings.sign else starting(aims, deployment.made)
        await settle(invocation, starts, [body for aim in aims for body in bodies(invocation.keys, aim)])
        return deployment

    await replanned(invocation, prepare, partial(_run, invocation))


def _refuse_endless(invocation: Invocation, deployment: Deployment) -> None:
    """Refuse to wait without a limit for pods that find no machine if nobody confirmed it.

    Raises:
        Conflict: there are some.
    """
    settings = invocation.settings
    short = {plan.service_name: plan.short for plan in deployment.made.services if plan.short}
    if not (settings.yes and settings.wait is not False and settings.given_timeout is None and short):
        return
    told = "; ".join(f"service {name}: {', '.join(why)}" for name, why in sorted(short.items()))
    hint = "free capacity, or deploy with --no-wait or --timeout: pods then start once a machine has room"
    raise Conflict(f"{told}; nothing was written", hint=hint)


async def _run(invocation: Invocation, deployment: Deployment) -> None:
    mutation, settings = await deployment.submit(), invocation.settings
    name = mutation.change.name
    pauses = f"farmctl deployment pause|rollback {name}"
    invocation.say(f"deployment {name} continues without this terminal; {pauses}")
    if why := await deployment.idle():
        invocation.say(f"{why}, so nothing is done yet; farmctl farm list")
    if settings.wait is False:
        _result(invocation, deployment, name, "submitted")
        return
    try:
        with going_on(invocation, [mutation]), progress(invocation) as report:
            await deployment.run(settings.end_timeout, report)
    except Stale:
        raise
    except EndedOtherwise as error:
        _result(invocation, deployment, name, "failed")
        await _last_lines(invocation, error.fields.get("failed", ())[:LOGS])
        raise
    _result(invocation, deployment, name, "done")


async def _last_lines(invocation: Invocation, failed: Sequence[tuple[str, str]]) -> None:
    """The last output of the pods that failed. A pod that still exists was reverted in place and has
    started since.
    """
    if invocation.settings.quiet:
        return
    for node, instance in failed:
        stands = await invocation.client.read(invocation.keys.intent(node, instance)) is not None
        wanted = LogChoice(follow=False, lines=LINES, previous=stands, since=None, timestamps=False)
        try:
            await stream(invocation, node, instance, wanted, prefix=f"{node}/{instance}: ", write=_to_stderr)
        except (FarmdError, StoreError) as error:
            invocation.say(f"{node}/{instance}: {clean(str(error))}")


def _to_stderr(text: bytes) -> None:
    for line in text.splitlines():
        click.echo(clean(line.decode(errors="replace")), err=True)


def _rehearse(invocation: Invocation, deployment: Deployment, title: str) -> None:
    if invocation.settings.output in {"json", "yaml"}:
        content = {"project": deployment.project, **_document(deployment)}
        emit(invocation, document("DeploymentPlan", content))
        return
    if invocation.settings.output == "name":
        for aim in deployment.aims:
            click.echo(f"service/{aim.goal.name}")
        return
    for line in fitting(_lines(deployment, title), width_of(sys.stdout)):
        click.echo(line)


def _lines(deployment: Deployment, title: str) -> list[str]:
    scene, plan = deployment.scene, deployment.made
    settings = settings_of(deployment.aims)
    shown = preview.lines(title, plan, deployment.wanted, len(scene.view), settings)
    held = taken_over(scene, [aim.goal.name for aim in deployment.aims])
    over = []
    for name, holder in held.items():
        verb = f"takes {name} over from" if takes_over(deployment.call, holder) else f"{name} is changed by"
        over.append(f"! {verb} {told(holder)}")
    over += [
        owners.told(scene.records[aim.goal.name]) for aim in deployment.aims if scene.lost(aim.goal.name)
    ]
    return [clean(line) for line in [*shown[:-1], *over, *deployment.remarks, shown[-1]]]


def _document(deployment: Deployment) -> dict[str, object]:
    return preview.document(deployment.made, settings_of(deployment.aims))


def _promise(deployment: Deployment) -> str:
    """What happens at a failure."""
    pauses = [
        aim.goal.name
        for aim in deployment.aims
        if aim.goal.wanted is not None and aim.goal.wanted.update.on_failure == "pause"
    ]
    if deployment.atomic:
        return "A failure rolls back all services."
    return "A failure pauses it." if pauses else "A failure rolls back its service."


def _result(invocation: Invocation, deployment: Deployment, name: str, outcome: str) -> None:
    output = invocation.settings.output
    if output in {"json", "yaml"}:
        content = {
            "project": deployment.project,
            "name": name,
            "outcome": outcome,
            "plan": _document(deployment),
        }
        emit(invocation, document("Deployment", content))
    elif output == "name":
        click.echo(f"deployment/{name}" if name else "", nl=bool(name))
    elif not invocation.settings.quiet and outcome != "failed":
        click.echo(f"deployment/{name} {outcome}" if name else "unchanged")
