"""The end of a record that owns pods: its worker takes it away once nothing of it is left.

A person only marks the record (``deleting``); any farm that claims it goes on from there. What must never
break: the record stays until no pod of it is recorded and no node runs one (a node that is given up is not
waited for, R21), and it goes under the claim's fence, at the version that was planned from, while nobody
holds its mutation lock (R12, R13).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from farmd.cache.caches import Caches
from farmd.cache.fleet import FleetIndex
from farmd.commands.mutation import Call, audited
from farmd.commands.noun import Noun, S
from farmd.commands.placing import T
from farmd.commands.remains import pods_left
from farmd.farm.writer import Writer
from farmd.work.model import Outcome
from store.entry import Stored
from store.errors import Locked

# Whoever holds the mutation lock wakes nobody as it lets go.
LOOK_AGAIN_SECONDS = 5.0
REASON = "it was marked for deletion, and nothing of it is left"


async def finish(
    stored: Stored[T],
    call: Call,
    noun: Noun[S, T],
    writer: Writer,
    caches: Caches,
    fleet: FleetIndex,
    block: Callable[[str], Awaitable[float | None]],
) -> Outcome:
    """Delete a record whose plan says so, after a look at what only the store knows for certain.

    Raises:
        ClaimLost: the lock is no longer this claim's.
        StoreError: nothing was deleted, or nobody knows; it is planned again after a pause.
    """
    item = stored.record.id
    # The copy of what nodes run rests between answers: a process may have begun that it does not show yet.
    await caches.reality.barrier()
    if fleet.processes.of(item) or await pods_left(call, item):
        await caches.pods.barrier([call.keys.pods(item)])
        return Outcome("after", 0.0, "something of it is left")
    try:
        held = await noun.guard(call, stored.record)
        removal = await noun.removal(call, stored, held)
        await writer.commit(*removal.operations, audited(call, removal.change))
    except Locked as error:
        await block(str(error))
        return Outcome("blocked", LOOK_AGAIN_SECONDS, error.code)
    return Outcome("done")
