"""``farmctl pod restart``."""

from __future__ import annotations

import click

from farmd.cli.changes import apply
from farmd.cli.invocation import Invocation
from farmd.cli.names import pods
from farmd.cli.noun_edit import going_on
from farmd.cli.options import command
from farmd.cli.pod_show import locate
from farmd.cli.progress import ProgressLine, shown
from farmd.commands import restarting
from farmd.overview import PodRow


@command("restart", mutates=True, waits=True)
@click.argument("names", metavar="NODE/INSTANCE...", nargs=-1, required=True, shell_complete=pods)
async def restart(invocation: Invocation, names: tuple[str, ...]) -> None:
    """Restart pods where they are, at once and without their owners' pace.

    The node may be left out where only one node has that instance. "farmctl rc restart" restarts all pods of
    a controller, a few at a time. --wait waits until the pods are available again.
    """
    places = dict.fromkeys([await locate(invocation, name) for name in names])
    asked = [await restarting.restart(invocation.call, *place) for place in places]
    await apply(invocation, [one.mutation for one in asked])
    settings = invocation.settings
    if settings.wait is not True or settings.dry_run:
        return
    for done, one in enumerate(asked):

        def step(row: PodRow, pod: str = one.pod) -> ProgressLine:
            return ProgressLine(f"pod/{pod}", restarting.described(row), 0 if row.healthy else 1, 1)

        with (
            going_on(invocation, [each.mutation for each in asked[done:]]),
            shown(invocation, step) as report,
        ):
            await restarting.restarted(invocation.call, one, settings.timeout, report)
