"""Notes in the store what became of keys for commands in pods, which farms move to the audit log (R42).

A note is created in the transaction that uses the key up, so a command without one never began, and is
completed at the end. The next agent of the node completes what an agent that was killed left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec
import structlog

from store import access, codec, operations
from store.access import AccessRecord, Exec, OneTime
from store.consul.client import ConsulClient
from store.errors import AccessDenied, RecordInvalid, StoreError
from store.keys import Keys
from store.operations import Operation
from store.ports import Clock

log = structlog.get_logger()

AGAIN_SECONDS = 5.0
LEFT = "the agent ended"


class AccessRecords:
    """The notes of one node. ``present`` is set while this agent holds the node's name."""

    def __init__(
        self, client: ConsulClient, keys: Keys, node: str, clock: Clock, present: asyncio.Event
    ) -> None:
        self._client = client
        self._keys = keys
        self._node = node
        self._clock = clock
        self._present = present
        self._open = set[str]()
        """The notes of this process that are not completed, by the hash of the key."""
        self._over: dict[str, tuple[float, Mapping[str, int | str]]] = {}
        """What is to be completed: when it ended, and how."""
        self._wake = asyncio.Event()

    def begin(self, ident: str, record: OneTime) -> Operation:
        """The operation that notes the use of a key."""
        self._open.add(ident)
        note = AccessRecord(
            instance=record.instance, exec=record.exec or Exec(), by=record.by, reason=record.reason
        )
        return operations.create(self._key(ident), codec.encode(note))

    def denied(self, ident: str) -> None:
        """Consul did not permit the note: the agent's token has the rules of an earlier version."""
        self._open.discard(ident)
        log.warning("access.not_noted", reason="acl/agent.hcl: no right to write access/ends/ of this node")

    def noted(self, ident: str) -> bool:
        """Whether the end will be noted, too."""
        return ident in self._open

    def end(self, ident: str, how: Mapping[str, int | str]) -> None:
        """Complete a note, as soon as the store answers."""
        if ident in self._open:
            self._over[ident] = (self._clock.now(), how)
            self._wake.set()

    async def run(self) -> None:
        """Complete what an earlier agent left, and then what ends."""
        await self._present.wait()
        adopted = False
        while True:
            self._wake.clear()
            try:
                if not adopted:
                    await self._adopt()
                    adopted = True
                for ident, (at, how) in list(self._over.items()):
                    await self._complete(ident, at, how)
                    del self._over[ident]
                    self._open.discard(ident)
            except AccessDenied as error:
                adopted = True
                log.warning("access.not_noted", reason=error.message)
                self._open -= self._over.keys()
                self._over.clear()
            except StoreError as error:
                log.info("access.not_noted_yet", reason=error.message)
                await self._clock.sleep(AGAIN_SECONDS)
                continue
            await self._wake.wait()

    async def _adopt(self) -> None:
        prefix = self._keys.accesses(access.ENDS, self._node)
        page = await self._client.keys(prefix, mode="consistent")
        for ident in {key.removeprefix(prefix) for key in page.items} - self._open:
            await self._complete(ident, self._clock.now(), {"error": LEFT})

    async def _complete(self, ident: str, at: float, how: Mapping[str, int | str]) -> None:
        entry = await self._client.read(self._key(ident), mode="consistent")
        if entry is None:
            return
        try:
            note = codec.decode(AccessRecord, entry.value, entry.key)
        except RecordInvalid as error:
            log.warning("access.note_unreadable", reason=error.message)
            return
        if not note.ended:
            done = codec.encode(msgspec.structs.replace(note, ended=at, how=dict(how)))
            await self._client.transaction([operations.cas(entry.key, done, entry.modify_index)])

    def _key(self, ident: str) -> str:
        return self._keys.access(access.ENDS, self._node, ident)
