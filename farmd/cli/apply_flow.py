"""From a prepared revision of an app to its end: show it, ask, write it, wait."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import click

from farmd.apps import commands
from farmd.apps.commands import Application
from farmd.apps.scene import AppState
from farmd.cli.apply_lines import lines, plain
from farmd.cli.asking import ask
from farmd.cli.changes import CHANGES_DUE, replanned
from farmd.cli.invocation import Invocation
from farmd.cli.noun_edit import going_on
from farmd.cli.output import document, emit
from farmd.cli.progress import progress
from farmd.cli.signing import settled
from farmd.commands.mutation import commit
from farmd.tables.model import clean


async def carry_out(
    invocation: Invocation, make: Callable[[], Awaitable[Application]], *, detailed: bool = False
) -> None:
    """Show a revision, ask, write it, and wait until it is reached; where the app changed meanwhile it is
    prepared anew, thrice at most. ``detailed``: exit 3 where a dry run finds changes.

    Raises:
        Conflict: objects that the app may not take. Unconfirmed, Declined: nobody agreed.
        EndedOtherwise: the revision failed. WaitTimeout: it is not reached in time.
    """

    async def prepare() -> Application | None:
        found = await make()
        if invocation.settings.dry_run:
            rehearse(invocation, found, detailed=detailed)
            return None
        for line in lines(found):
            invocation.say(clean(line))
        found.refuse()
        if not found.mutation.needed:
            _result(invocation, found, "unchanged")
            return None
        ask(invocation, "Apply?", "to apply a revision changes what runs")
        await settled(invocation, list(found.changes.values()))
        return found

    written = await replanned(invocation, prepare, lambda found: commit(invocation.call, found.mutation))
    if written is not None:
        await _follow(invocation, written)


def rehearse(invocation: Invocation, found: Application, *, detailed: bool) -> None:
    """Show what a revision would do.

    Raises:
        Conflict: objects that the app may not take.
    """
    if invocation.settings.output in {"json", "yaml"}:
        emit(invocation, document("AppPlan", plain(found)))
    elif invocation.settings.output == "name":
        for ref in dict.fromkeys(str(act.ref) for _, act in found.preview.acts):
            click.echo(ref)
    else:
        for line in lines(found):
            click.echo(clean(line))
    found.refuse()
    if detailed and found.due:
        raise click.exceptions.Exit(CHANGES_DUE)


async def _follow(invocation: Invocation, found: Application) -> None:
    """Wait for the end of what was written."""
    name, settings, clock = found.now.name, invocation.settings, invocation.call.clock
    if found.app.paused:
        _result(
            invocation, found, f"revision {found.app.revision} recorded; paused: farmctl app resume {name}"
        )
        return
    if settings.wait is False:
        _result(invocation, found, f"revision {found.app.revision} recorded")
        return
    began = clock.mono()
    with going_on(invocation, [found.mutation]), progress(invocation) as report:
        now = await commands.reached(invocation.call, name, found.app.revision, settings.end_timeout, report)
    _result(invocation, found, _reached(now, clock.mono() - began))


def _reached(now: AppState, seconds: float) -> str:
    status = now.status
    newest = status is not None and status.reached == now.state.reached  # it may be of a moment before
    count = f": {status.ready} of {status.objects} objects ready" if status is not None and newest else ""
    return f"reached revision {now.state.reached} in {seconds:.0f} s{count}"


def _result(invocation: Invocation, found: Application, outcome: str) -> None:
    output, name = invocation.settings.output, found.now.name
    if output in {"json", "yaml"}:
        emit(invocation, document("AppApply", {"outcome": outcome, **plain(found)}))
    elif output == "name":
        click.echo(f"app/{name}")
    elif not invocation.settings.quiet:
        click.echo(f"app/{name} {outcome}")
