"""Writes the node's reality: one record for each instance, on change only, by one writer (R22).

Every write is a compare-and-set on the record that this writer wrote or read last, and fenced by the
node's presence. After a rejection or an unknown outcome the records are read again before the next
write (R12). They are also read from time to time, because somebody else may have changed them.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec
import structlog

from farmd.agent.link import Link
from farmd.observe.progress import Progress
from farmd.runtime.wake import wait
from store import codec, families, operations
from store.consul.client import ConsulClient
from store.errors import RecordInvalid, StoreError
from store.keys import Keys
from store.ports import Clock, Rng
from store.reality import Phase, Reality
from store.transaction import Group, pack, submit

log = structlog.get_logger()

GATHER_SECONDS = 0.02
TEXT = 200
"""What is left of why a sidecar ended in a record that would be too large."""
LOOK_AGAIN = 50.0
BACKOFF_START = 0.25
BACKOFF_LIMIT = 5.0


async def read(client: ConsulClient, keys: Keys, node: str) -> dict[str, tuple[Reality | None, int]]:
    """What the store holds of a node: the record of each instance, None if it does not decode, and its
    ModifyIndex.
    """
    page = await client.list(keys.realities(node), mode="consistent")
    found: dict[str, tuple[Reality | None, int]] = {}
    for raw in page.items:
        if not families.well_formed(keys, "reality", raw.key):
            continue
        _, instance = keys.reality_parts(raw.key)
        try:
            record = codec.decode(Reality, raw.decoded(), raw.key)
        except (RecordInvalid, ValueError) as error:
            log.warning("reality.invalid", instance=instance, error=str(error))
            record = None
        found[instance] = (record, raw.modify_index)
    return found


def bounded(instance: str, record: Reality) -> Reality:
    """A record that farms take: one that a workload made too large loses its texts, and says so."""
    if (size := len(codec.encode(record))) <= Reality.LARGEST:
        return record
    log.warning("reality.too_large", instance=instance, bytes=size, most=Reality.LARGEST)
    note = f"reality: found {size} bytes, expected at most {Reality.LARGEST}: its texts are omitted"
    exits = [msgspec.structs.replace(end, message="") for end in record.exits]
    health = msgspec.structs.replace(record.health, reason="")
    beside = {
        name: msgspec.structs.replace(each, reason=each.reason[:TEXT])
        for name, each in record.sidecars.items()
    }
    fields = {"exits": exits, "health": health, "sidecars": beside, "reason": note, "preparing": ""}
    return msgspec.structs.replace(record, **fields)


@dataclass(eq=False)
class RealityWriter:
    """Makes ``reality/<shard>/<node>/`` equal to the records that it got last.

    Until a proven answer was ``obeyed`` it deletes none: a pod without a record may be one whose record is
    lost, and what was told of it last is all that is left (R29).
    """

    node: str
    client: ConsulClient
    keys: Keys
    link: Link
    clock: Clock
    rng: Rng
    progress: Progress
    obeyed: Callable[[], bool]
    _wanted: dict[str, Reality] | None = field(default=None, init=False)
    _kept: bool = field(default=False, init=False)
    _written: dict[str, tuple[Reality | None, int]] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._looked = self.clock.mono()
        self._changed = asyncio.Event()
        self._stored = asyncio.Event()

    def tell(self, wanted: Mapping[str, Reality]) -> None:
        """Set the records that the store shall have from now on."""
        if wanted != self._wanted or (self._kept and self.obeyed()):
            self._wanted = dict(wanted)
            self._changed.set()

    async def told(self, instance: str, phase: Phase) -> None:
        """Return once the store has been told that an instance is in this phase."""
        while self._phase(instance) != phase:
            self._stored.clear()
            await self._stored.wait()

    def _phase(self, instance: str) -> Phase | None:
        record, _ = (self._written or {}).get(instance, (None, 0))
        return None if record is None else record.phase

    def doubt(self) -> None:
        """Read the records again, because the store may not have what was written last."""
        self._looked = -math.inf
        self._changed.set()

    async def run(self) -> None:
        """Write changes for ever, while this agent holds the node's presence."""
        backoff = BACKOFF_START
        with self.progress.loop("reality", LOOK_AGAIN * 4) as loop:
            while True:
                loop.beat()
                if not await wait(self.link.present, self.clock, LOOK_AGAIN):
                    continue
                self._changed.clear()
                try:
                    done = await self._write()
                except StoreError as error:
                    self._written = None
                    log.warning("reality.not_written", code=error.code, error=error.message)
                    done = False
                if done:
                    backoff = BACKOFF_START
                    await wait(self._changed, self.clock, LOOK_AGAIN)
                    await self.clock.sleep(GATHER_SECONDS)
                else:
                    await self.clock.sleep(backoff * self.rng.uniform(0.5, 1.5))
                    backoff = min(backoff * 2, BACKOFF_LIMIT)

    async def _write(self) -> bool:
        """Write the records that differ; False if the caller must try again."""
        if self._wanted is None:
            return True
        if self._written is None or self.clock.mono() >= self._looked + LOOK_AGAIN:
            self._looked = self.clock.mono()
            self._written = await read(self.client, self.keys, self.node)
        groups = self._difference(self._wanted, self._written)
        fence = [operations.check_session(self.keys.agent(self.node), self.link.session)]
        for result in await submit(self.client, pack(groups, fence=fence), clock=self.clock, in_flight=1):
            if result.rejected is not None or result.error is not None:
                self._written = None
                if result.rejected is not None and result.rejected.refused(fence):
                    self.link.doubt()
                trouble = result.rejected or result.error
                log.info("reality.rejected", error=str(trouble))
                return False
            indexes = {entry.key: entry.modify_index for entry in result.entries}
            for group in result.batch.groups:
                instance, record = group.subject
                if record is None:
                    self._written.pop(instance, None)
                else:
                    self._written[instance] = (record, indexes[self.keys.reality(self.node, instance)])
            self._stored.set()
        return True

    def _difference(
        self, wanted: Mapping[str, Reality], written: Mapping[str, tuple[Reality | None, int]]
    ) -> list[Group[tuple[str, Reality | None]]]:
        groups: list[Group[tuple[str, Reality | None]]] = []
        for instance, record in wanted.items():
            before, index = written.get(instance, (None, 0))
            if before != record and before != (record := bounded(instance, record)):
                key = self.keys.reality(self.node, instance)
                groups.append(Group((operations.cas(key, codec.encode(record), index),), (instance, record)))
        self._kept = not self.obeyed() and not wanted.keys() >= written.keys()
        for instance, (_, index) in written.items():
            if instance not in wanted and not self._kept:
                key = self.keys.reality(self.node, instance)
                groups.append(Group((operations.delete_cas(key, index),), (instance, None)))
        return groups
