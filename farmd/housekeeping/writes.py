"""Deletes stored values in two steps: condemned first, and deleted later at the very index of that (R24).

A value is condemned by compare-and-set of its flags. Whoever writes it again meanwhile moves its index, and
the deletion fails. A farm remembers from when it saw a value condemned at an index, also while another farm
has the chore: a chore that changes hands often would otherwise never delete anything. After a restore of the
store that memory proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection as Collected

import structlog

from farmd.farm.writer import Writer
from farmd.housekeeping.facts import Body, Collection, Seen, Sighting
from farmd.work.context import Context
from store import operations
from store.audit import Audit
from store.operations import Operation

log = structlog.get_logger()


class Condemning:
    """The condemnations that one chore has seen, and its writes. ``key`` is where a value of that name lies,
    ``kind`` and ``reason`` are for the audit.
    """

    def __init__(
        self,
        context: Context,
        writer: Writer,
        seen: Seen,
        *,
        key: Callable[[str], str],
        kind: str,
        reason: str,
    ) -> None:
        self.seen = seen
        self._context, self._writer = context, writer
        self._key, self._kind, self._reason = key, kind, reason

    def keep(self, names: Collected[str]) -> None:
        """Forget the condemnations of all other values."""
        for name in self.seen.keys() - set(names):
            del self.seen[name]

    def sighted(self, name: str, index: int) -> None:
        """The value was seen condemned at this index."""
        known = self.seen.get(name)
        if known is None or known.index != index:
            self.seen[name] = Sighting(index, self._context.clock.mono())

    async def carry_out(
        self, collection: Collection, beside: Callable[[str], tuple[Operation, ...]] = lambda _: ()
    ) -> None:
        """Condemn, absolve and delete; ``beside`` happens with the deletion of a value, or both do not."""
        context, now = self._context, int(self._context.clock.now())
        for body in collection.condemn:
            index = await self._flag(body, now)
            if index is not None:
                self.sighted(body.name, index)
                context.recorder.count("farmd_housekeeping_total", what="condemned")
        for body in collection.absolve:
            if await self._flag(body, 0) is not None:
                context.recorder.count("farmd_housekeeping_total", what="absolved")
        for body in collection.collect:
            await self._collect(body, beside(body.name))

    async def _flag(self, body: Body, flags: int) -> int | None:
        key = self._key(body.name)
        return await self._writer.attempt(operations.cas(key, body.value, body.index, flags=flags))

    async def _collect(self, body: Body, beside: tuple[Operation, ...]) -> None:
        context = self._context
        record = Audit(
            at=context.audit.now(),
            actor=context.actor,
            action=f"{self._kind.removesuffix('s')}.collect",
            kind=self._kind,
            id=body.name,
            reason=self._reason,
            before={"exists": True},
            after={"exists": False},
        )
        deletion = operations.delete_cas(self._key(body.name), body.index)
        if await self._writer.attempt(*beside, deletion, context.audit.operation(record)) is not None:
            self.seen.pop(body.name, None)
            context.recorder.count("farmd_housekeeping_total", what="collected")
            log.info("housekeeping.collected", kind=self._kind, name=body.name)
