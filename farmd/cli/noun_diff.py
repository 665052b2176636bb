"""``farmctl rc diff`` and the like: what a file would change, and whether that is anything."""

from __future__ import annotations

from typing import Any

import click

from farmd.cli.changes import CHANGES_DUE, described
from farmd.cli.invocation import Invocation
from farmd.cli.noun_edit import FILES, specs_of
from farmd.cli.options import command
from farmd.cli.output import document, emit
from farmd.commands.mutation import Change, title
from farmd.commands.noun import Noun, compare


def comparing(noun: Noun[Any, Any]) -> click.Command:
    """``diff``."""

    async def run(invocation: Invocation, paths: tuple[str, ...], detailed_exitcode: bool) -> None:
        found = [await compare(invocation.call, noun, spec) for spec in specs_of(noun, paths)]
        due = [change for change in found if change.after]
        output = invocation.settings.output
        if output in {"json", "yaml"}:
            emit(invocation, document("DifferenceList", {"items": [_item(change) for change in found]}))
        elif output == "name":
            for change in due:
                click.echo(title(change))
        else:
            for change in due:
                click.echo("\n".join(described(change)))
            for change in found:
                if not change.after:
                    invocation.say(f"{title(change)}: nothing to change")
        if due and detailed_exitcode:
            raise click.exceptions.Exit(CHANGES_DUE)

    run.__doc__ = (
        f"What the files would change of {noun.words.many}; nothing is written.\n\n"
        "Values of the environment are not shown. -o name prints what would change."
    )
    help_ = f"Exit {CHANGES_DUE} where something would change."
    option = click.option("--detailed-exitcode", is_flag=True, help=help_)
    return command("diff")(FILES(option(run)))


def _item(change: Change) -> dict[str, Any]:
    return {
        "object": title(change),
        "id": change.id,
        "name": change.name,
        "action": change.action if change.after else "",
        "before": change.before,
        "after": change.after,
        "details": list(change.details),
    }
