"""What a manager waits for after it took owners of pods, before it plans their pods (R14, R15)."""

from __future__ import annotations

from collections.abc import Sequence

from farmd.work.context import Context


async def moving(context: Context, family: str, owners: Sequence[str]) -> str:
    """The move that an owner's own worker has to end first, as text; if empty, the owners' pods and intents
    were read after it was known that there is none.
    """
    caches, keys = context.caches, context.keys
    await caches.work.barrier()
    for owner in owners:
        work = caches.work.get(keys.work(family, owner))
        if work is not None and work.record.transfer is not None:
            return f"waiting until a move of {'/'.join(work.record.transfer.old)} is ended"
    await context.read_pods(owners)
    return ""
