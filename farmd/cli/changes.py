"""From a prepared mutation to a written one: show it, ask if it destroys, commit, say what was done."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import click

from farmd.cli.invocation import Invocation
from farmd.cli.output import clean, differences, document, emit
from farmd.errors import Declined, Unconfirmed
from farmd.mutation import Change, Mutation, commit

_NOUNS = {"rcs": "rc", "daemonsets": "daemonset", "nodes": "node"}
_DONE = {
    "create": "created",
    "set-replicas": "scaled",
    "update": "updated",
    "enable": "enabled",
    "disable": "disabled",
    "delete": "deleted",
    "mark-deleted": "marked for deletion",
    "label": "labelled",
    "cordon": "cordoned",
    "uncordon": "uncordoned",
    "drain": "draining",
    "undrain": "undrained",
    "clear": "cleared",
    "remove": "removed",
}


def title(change: Change) -> str:
    """``rc/hello``."""
    return f"{_NOUNS.get(change.kind, change.kind)}/{change.name}"


def _verb(change: Change) -> str:
    return change.action.partition(".")[2]


async def apply(
    invocation: Invocation,
    mutations: Sequence[Mutation],
    write: Callable[[Mutation], Awaitable[Any]] | None = None,
) -> bool:
    """Show all mutations, ask once, then commit one after the other; whether anything may have changed.

    Raises:
        Unconfirmed: something is destructive, nobody can be asked, and ``-y`` is missing.
        Declined: a person said no.
    """
    for mutation in mutations:
        _show(invocation, mutation)
    if invocation.settings.dry_run:
        invocation.say("dry run: nothing was written")
        _results(invocation, mutations, written=False)
        return False
    confirm(invocation, [m.change for m in mutations if m.needed and m.change.destructive])
    for mutation in mutations:
        if not mutation.needed:
            continue
        if write is None:
            await commit(invocation.call, mutation)
        else:
            await write(mutation)
    _results(invocation, mutations, written=True)
    return any(mutation.needed for mutation in mutations)


def confirm(invocation: Invocation, destructive: Sequence[Change]) -> None:
    """Ask before something is destroyed, on a terminal; elsewhere ``-y`` must say it."""
    if not destructive or invocation.settings.yes:
        return
    names = ", ".join(title(change) for change in destructive)
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Unconfirmed(
            f"{destructive[0].action} {names} is destructive, and nobody can be asked here",
            hint="pass -y to go on, or --dry-run to look",
        )
    if not click.confirm(f"Change {names}?", err=True):
        raise Declined("declined; nothing was written")


def _show(invocation: Invocation, mutation: Mutation) -> None:
    change = mutation.change
    if not mutation.needed:
        invocation.say(f"{title(change)}: nothing to change")
        return
    fields = differences(change.before, change.after)
    invocation.say(f"{title(change)}: {_verb(change)}{': ' if fields else ''}{', '.join(fields)}")
    for line in change.details:
        invocation.say(f"  {clean(line)}")


def _results(invocation: Invocation, mutations: Sequence[Mutation], *, written: bool) -> None:
    output = invocation.settings.output
    if output in {"json", "yaml"}:
        items = [_item(mutation, written) for mutation in mutations]
        emit(invocation, document("ChangeList", {"items": items}))
        return
    for mutation in mutations:
        if output == "name":
            click.echo(title(mutation.change))
        elif written and not invocation.settings.quiet:
            done = _DONE.get(_verb(mutation.change), "changed") if mutation.needed else "unchanged"
            click.echo(f"{title(mutation.change)} {done}{_id(mutation.change)}")


def _id(change: Change) -> str:
    return f" ({change.id})" if change.id != change.name else ""


def _item(mutation: Mutation, written: bool) -> dict[str, Any]:
    change = mutation.change
    return {
        "object": title(change),
        "id": change.id,
        "name": change.name,
        "action": change.action,
        "needed": mutation.needed,
        "written": written and mutation.needed,
        "before": change.before,
        "after": change.after,
        "details": list(change.details),
    }
