"""``pod restart``: a person restarts one pod where it is, whatever its owner does meanwhile (R28).

Only the counter in the pod's intent changes. A wait for it ends when the new start is available (R22).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import msgspec

from farmd import overview
from farmd.commands.mutation import Call, Change, Mutation, guard
from farmd.commands.parts import refuse_managed
from farmd.commands.waiting import Spells, until
from farmd.kinds import KINDS, title
from farmd.runtime.errors import WaitTimeout
from store import codec, families, operations
from store.entry import Stored
from store.errors import Conflict, NotFound
from store.named import Owner
from store.reality import Intent, Reality

OLDER_AGENT = "its agent acted on the intent without a restart"


class Restart(msgspec.Struct, frozen=True):
    """A restart that is asked for: of which pod of which owner, and to which counter."""

    mutation: Mutation
    owner: Owner
    node: str
    instance: str
    counter: int

    @property
    def pod(self) -> str:
        """``n1/web``."""
        return f"{self.node}/{self.instance}"


async def restart(call: Call, node: str, instance: str) -> Restart:
    """Restart one pod. The owner's own restart of all its pods passes over it if it is under way (R28).

    Raises:
        NotFound: there is no such pod, or its owner does not exist. Conflict: it is a hook's.
        RecordInvalid: its intent does not decode.
        Locked: somebody holds the mutation lock of its owner (R13).
        Conflict: something else is the only writer of its pods now (R14).
    """
    pod, key = f"{node}/{instance}", call.keys.intent(node, instance)
    entry = await call.client.read(key)
    if entry is None:
        raise NotFound(f"pod {pod!r} does not exist", kind="pods", id=pod)
    stored = codec.stored(Intent, entry)
    kind, owner = await _owner(call, pod, stored.record.owner)
    if KINDS[kind].ended:
        text = f"pod {pod!r} runs to completion for {title(kind, owner.name)}, and is not restarted"
        raise Conflict(text, id=pod)
    held = await guard(call, kind, owner.id, title(kind, owner.name))
    if owner.taken:
        await refuse_managed(call, kind, owner, "pods now")
    before = stored.record.restart
    counter = max(before + 1, await _acted(call, node, instance) + 1, owner.restart)
    intent = msgspec.structs.replace(stored.record, restart=counter)
    change = Change(
        kind,
        owner.id,
        owner.name,
        "pod.restart",
        before={"restart": before, **held.before},
        after={"restart": counter, **held.after},
        destructive=bool(held.before),
        relabelled=(pod,),
        object=f"pod/{pod}",
    )
    write = operations.cas(key, codec.rewrite(intent, stored.raw), stored.index, flags=stored.flags)
    return Restart(Mutation(change, (*held.operations, write)), owner, node, instance, counter)


async def _owner(call: Call, pod: str, owner: str) -> tuple[str, Owner]:
    for family in families.owners():
        try:
            found: Stored[Owner] = await overview.records_of(call.client, call.keys, family).get(owner)
        except NotFound:
            continue
        return family.name, found.record
    for family in families.actors():
        with suppress(NotFound):
            whole = await overview.titled(call.client, call.keys, f"{family.name}/{owner}")
            raise Conflict(f"pod {pod!r} runs once for {whole}, and is not restarted", id=pod)
    hint = "farmctl doctor shows what can be done"
    raise NotFound(f"pod {pod!r}: its owner {owner} does not exist", kind="pods", id=pod, hint=hint)


async def _acted(call: Call, node: str, instance: str) -> int:
    """The counter that the pod's last start acted on; an intent that was restored may have a lower one."""
    entry = await call.client.read(call.keys.reality(node, instance))
    return 0 if entry is None else codec.decode(Reality, entry.value, entry.key).restart


async def restarted(
    call: Call, asked: Restart, timeout: float, report: Callable[[overview.PodRow], None]
) -> None:
    """Wait until the pod is available after its restart, at most ``timeout`` seconds.

    Raises:
        WaitTimeout: it is not; the message says how it is.
        NotFound: its owner removed it meanwhile.
        Conflict: its agent is older and ignores restarts.
    """
    spells = Spells(call.clock)

    async def look() -> overview.PodRow:
        rows = (await overview.pods(call.client, call.keys, asked.owner)).placed
        found = [row for row in rows if (row.node, row.instance) == (asked.node, asked.instance)]
        if not found:
            raise NotFound(f"pod {asked.pod!r} was removed in the meantime", kind="pods", id=asked.pod)
        return found[0]

    def done(row: overview.PodRow, _over: bool) -> bool:
        if row.healthy and row.restarted < asked.counter <= row.restart:
            hint = f"farmctl node describe {asked.node} shows its version: upgrade the agent"
            raise Conflict(f"pod {asked.pod!r} is not restarted: {OLDER_AGENT}", id=asked.pod, hint=hint)
        return any(lasted >= asked.owner.min_healthy_time for lasted in spells.lasted([row]))

    async def late(row: overview.PodRow) -> WaitTimeout:
        text = f"pod {asked.pod!r} is not available {timeout:g} s after its restart: {described(row)}"
        return WaitTimeout(text, hint=f"farmctl pod logs {asked.pod} shows what it wrote")

    await until(call, look, done, late, timeout, report, described)


def described(row: overview.PodRow) -> str:
    """``running, health passing``."""
    return f"{row.phase}, health {row.health}{f': {row.reason}' if row.reason else ''}"
