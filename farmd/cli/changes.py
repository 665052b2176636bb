"""Takes a prepared mutation to its commit: show it, ask if it is destructive, sign, commit, report."""

from __future__ import annotations

import sys
from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from farmd.cli.asking import ask, ask_person
from farmd.cli.invocation import Invocation
from farmd.cli.output import as_yaml, document, emit, hanging
from farmd.commands import signing
from farmd.commands.fleet import read
from farmd.commands.mutation import Change, Mutation, commit, title
from farmd.commands.outlook import Outlook
from farmd.commands.signing import Signer, Start
from farmd.runtime.errors import Stale
from farmd.tables.model import clean, differences
from store.errors import Conflict, Locked
from store.manifests import digest
from store.operations import Operation
from store.words import listed

# The options ``--sign`` and ``--sign-for``: signatures before a change, or its refusal.


async def settle(invocation: Invocation, starts: Sequence[Start], writes: Sequence[Operation] = ()) -> None:
    """Sign what a change lets start, where a key was given; else refuse what nodes would refuse.

    ``writes`` are the change's: a manifest among them is stored with its signature, because the two are
    collected together.

    Raises:
        Conflict: nobody signed it, and a node enforces signatures.
        CredentialInvalid, InputInvalid: the key cannot be used, or the library is missing.
        Unconfirmed, Declined: what is signed comes from the store, and nobody agreed.
    """
    settings, wanted = invocation.settings, list(dict.fromkeys(starts))
    if not settings.sign:
        await signing.refuse_unsigned(invocation.call, wanted)
        return
    signer = await signer_of(invocation, settings.sign, settings.sign_for)
    if settings.reviews:
        await reviewed(invocation, signer, wanted, signing.bodies(invocation.keys, writes))
    stored = {write.key: write for write in writes}
    for start in wanted:
        body = stored.get(invocation.keys.manifest(start.digest))
        mutation = signer.signed(start, () if body is None else (body,))
        await commit(invocation.call, mutation)
        told(invocation, mutation)


async def signer_of(invocation: Invocation, path: str, seconds: float) -> Signer:
    """A signer with the key in a file. It warns if the signatures cannot name a cluster yet.

    Raises:
        CredentialInvalid, InputInvalid: the key cannot be used, or the library is missing.
    """
    from farmd.signing.keys import load

    signer = await signing.signer(invocation.call, load(Path(path)), seconds)
    if signer.older:
        nodes = listed(signer.older, 3)
        invocation.say(
            f"warning: the agents of {nodes} are older than signatures that name the cluster:"
            " this one names none and counts in every cluster; sign again once they are upgraded"
        )
    return signer


async def reviewed(
    invocation: Invocation, signer: Signer, starts: Sequence[Start], bodies: Sequence[bytes] = ()
) -> None:
    """Show what is signed for the first time, and ask, even with ``-y``. ``bodies`` are not stored yet.

    Raises:
        Unconfirmed, Declined: nobody agreed. NotFound, RecordInvalid: a manifest cannot be shown.
    """
    from farmd.commands.reviewing import review
    from farmd.signing.keys import public_of

    public, new = public_of(signer.key), {digest(body): body for body in bodies}
    for start in starts:
        found = await review(invocation.call, public, start, signer.revoked, new, as_yaml)
        if found.known:
            invocation.say(found.head)
            continue
        for line in (found.head, *(f"  {line}" for line in found.lines)):
            click.echo(clean(line), err=True)
        if not invocation.settings.dry_run:
            why = f"manifest {start.digest[:12]} comes from the store and was not reviewed"
            hint = f"sign a file (farmctl manifest sign NOUN -f FILE), or name it: --digest {start.digest}"
            ask_person(f"Sign it for {start.owner}?", why, hint)


def told(invocation: Invocation, mutation: Mutation) -> None:
    """Show what was signed."""
    after = mutation.change.after
    invocation.say(f"signed manifest {mutation.change.name} for {after['owner']} until {after['until']}")


async def settled(invocation: Invocation, mutations: Sequence[Mutation]) -> None:
    """Call ``settle`` for prepared mutations; an update that keeps the manifest is not refused."""
    needed = [each for each in mutations if each.needed and (invocation.settings.sign or not _keeps(each))]
    starts = [start for each in needed for start in signing.starts(invocation.keys, each)]
    if starts:
        await settle(invocation, starts, [write for each in needed for write in each.operations])


def _keeps(mutation: Mutation) -> bool:
    """Whether a mutation updates a record that keeps its manifest."""
    return mutation.change.action.endswith(".update") and not mutation.change.manifest


# Takes a prepared mutation to its commit: show it, ask if it is destructive, commit, report.

CHANGES_DUE = 3
"""The exit code where something would change, of commands that were asked to tell that so."""
TRIES = 3
P = TypeVar("P")
_DONE = {
    "create": "created",
    "set": "set",
    "set-replicas": "scaled",
    "update": "updated",
    "restart": "restarting",
    "enable": "enabled",
    "disable": "disabled",
    "delete": "deleted",
    "mark-deleted": "marked for deletion",
    "label": "labelled",
    "taint": "tainted",
    "untaint": "untainted",
    "cordon": "cordoned",
    "uncordon": "uncordoned",
    "drain": "draining",
    "undrain": "undrained",
    "forget": "forgotten",
    "clear": "cleared",
    "remove": "removed",
    "restore": "restored",
    "free": "freed",
    "register": "registered",
    "pause": "paused",
    "resume": "resumed",
    "approve": "approved",
    "revert": "turning back",
    "abort": "ending",
    "promote": "promoted",
    "retry": "tried again",
    "scale": "scaled",
    "supersede": "superseded",
    "rollback": "rolling back",
    "stop": "stopping",
    "accept": "accepted",
    "sign": "signed",
    "revoke": "revoked",
}


def _verb(change: Change) -> str:
    return change.action.partition(".")[2]


async def apply(
    invocation: Invocation,
    mutations: Sequence[Mutation],
    write: Callable[[Mutation], Awaitable[Any]] | None = None,
) -> bool:
    """Show all mutations, ask once, then commit one after the other; whether anything may have changed.

    Raises:
        Unconfirmed: a change is destructive, there is no terminal to ask on, and ``-y`` is missing.
        Declined: a person said no.
    """
    if invocation.settings.dry_run:
        await _rehearse(invocation, mutations)
        return False
    for mutation in mutations:
        for line in _lines(mutation):
            invocation.say("\n".join(hanging(line, sys.stderr)))
    confirm(invocation, [m.change for m in mutations if m.needed and m.change.destructive])
    await settled(invocation, mutations)
    await _write(invocation, mutations, write)
    _results(invocation, mutations)
    return any(mutation.needed for mutation in mutations)


async def _rehearse(invocation: Invocation, mutations: Sequence[Mutation]) -> None:
    """Show what would change and what would become of pods: the result of a dry run."""
    looks = [m.outlook if m.needed else None for m in mutations]
    fleet = await read(invocation.client, invocation.keys) if any(looks) else None
    outlooks = [await look(fleet) if fleet is not None and look is not None else None for look in looks]
    output = invocation.settings.output
    if output in {"json", "yaml"}:
        items = [
            _item(mutation, written=False) | {"outlook": found.document() if found is not None else None}
            for mutation, found in zip(mutations, outlooks, strict=True)
        ]
        emit(invocation, document("ChangeList", {"items": items}))
    elif output == "name":
        for mutation in mutations:
            click.echo(title(mutation.change))
    else:
        for mutation, found in zip(mutations, outlooks, strict=True):
            for line in [*_lines(mutation), *(f"  {clean(line)}" for line in (found or Outlook()).lines())]:
                click.echo("\n".join(hanging(line, sys.stdout)))
    invocation.say("dry run: nothing was written")


async def _write(
    invocation: Invocation,
    mutations: Sequence[Mutation],
    write: Callable[[Mutation], Awaitable[Any]] | None,
) -> None:
    """Commit one after the other and report each at once; an interruption reports how far it came."""
    written, sent = 0, ""
    try:
        for mutation in mutations:
            if mutation.needed:
                sent = title(mutation.change)
                await (write(mutation) if write is not None else commit(invocation.call, mutation))
                written, sent = written + 1, ""
            _result(invocation, mutation)
    except BaseException as error:
        needed = sum(mutation.needed for mutation in mutations)
        told = [f"{written} of {needed} changes were written before this"] if needed > 1 else []
        told += [f"{sent} may or may not be written"] if sent and isinstance(error, CancelledError) else []
        if told:
            click.echo(f"farmctl: {', '.join(told)}:", err=True)
        raise


async def replanned(
    invocation: Invocation,
    prepare: Callable[[], Awaitable[P | None]],
    write: Callable[[P], Awaitable[Any]],
) -> P | None:
    """Write a plan. If the present state changed meanwhile, plan again, at most three times.

    ``prepare`` plans, shows, asks and signs; it returns None where there is nothing to write.
    """
    left = TRIES
    while (plan := await prepare()) is not None:
        try:
            await write(plan)
        except (Conflict, Stale) as error:
            left -= 1
            if not left or isinstance(error, Locked):
                raise
            invocation.say(f"{clean(error.message)}: planned again")
        else:
            break
    return plan


def confirm(invocation: Invocation, destructive: Sequence[Change]) -> None:
    """Ask before a destructive change, on a terminal; elsewhere ``-y`` is needed."""
    if destructive:
        names = listed(list(dict.fromkeys(title(change) for change in destructive)), 5)
        ask(invocation, f"Change {names}?", f"{destructive[0].action} {names} is destructive")


def _lines(mutation: Mutation) -> list[str]:
    """What a change is, for people."""
    change = mutation.change
    if not mutation.needed:
        return [f"{title(change)}: nothing to change"]
    return described(change)


def described(change: Change) -> list[str]:
    """What changes: the fields in one line, and a line for each detail."""
    fields = differences(change.before, change.after)
    head = f"{title(change)}: {_verb(change)}{': ' if fields else ''}{', '.join(fields)}"
    return [head, *(f"  {clean(line)}" for line in change.details)]


def _results(invocation: Invocation, mutations: Sequence[Mutation]) -> None:
    if invocation.settings.output in {"json", "yaml"}:
        items = [_item(mutation, written=True) for mutation in mutations]
        emit(invocation, document("ChangeList", {"items": items}))


def _result(invocation: Invocation, mutation: Mutation) -> None:
    """Report one change; as JSON and YAML all are shown together at the end."""
    output, name = invocation.settings.output, title(mutation.change)
    if output == "name":
        click.echo(name)
    elif output in {"table", "wide"} and not invocation.settings.quiet:
        done = _DONE.get(_verb(mutation.change), "changed") if mutation.needed else "unchanged"
        click.echo(f"{name} {done}{_id(mutation.change)}")


def _id(change: Change) -> str:
    return f" ({change.id})" if change.id != change.name and not change.object else ""


def _item(mutation: Mutation, *, written: bool) -> dict[str, Any]:
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
