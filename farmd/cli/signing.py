"""The options ``--sign`` and ``--sign-for``: signatures before a change, or its refusal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from farmd.cli.invocation import Invocation
from farmd.commands import signing
from farmd.commands.mutation import Mutation, commit
from farmd.commands.signing import Start
from store.operations import Operation


async def settle(invocation: Invocation, starts: Sequence[Start], writes: Sequence[Operation] = ()) -> None:
    """Sign what a change lets start, where a key was given; else refuse what nodes would refuse.

    ``writes`` are the change's: a manifest among them is stored with its signature, because the two are
    collected together.

    Raises:
        Conflict: nobody signed it, and a node enforces signatures.
        CredentialInvalid, InputInvalid: the key cannot be used, or the library is missing.
    """
    settings, wanted = invocation.settings, list(dict.fromkeys(starts))
    if not settings.sign:
        await signing.refuse_unsigned(invocation.call, wanted)
        return
    from farmd.signing.keys import load

    key, stored = load(Path(settings.sign)), {write.key: write for write in writes}
    for start in wanted:
        body = stored.get(invocation.keys.manifest(start.digest))
        beside = () if body is None else (body,)
        mutation = signing.signed(invocation.call, key, start, settings.sign_for, beside)
        await commit(invocation.call, mutation)
        told(invocation, mutation)


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
