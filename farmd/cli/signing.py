"""The options ``--sign`` and ``--sign-for``: signatures before a change, or its refusal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from farmd.cli.asking import ask_person
from farmd.cli.invocation import Invocation
from farmd.cli.output import as_yaml
from farmd.commands import signing
from farmd.commands.mutation import Mutation, commit
from farmd.commands.signing import Signer, Start
from farmd.tables.model import clean
from store.manifests import digest
from store.operations import Operation
from store.words import listed


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
    """Who signs with the key in a file; a warning where the signatures can name no cluster yet.

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
    """Show what is signed for the first time, and ask; ``-y`` is no answer. ``bodies`` are not stored yet.

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
    """Say what was signed."""
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
