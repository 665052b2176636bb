"""Which cluster a name stands for: ``meta/kubernetes/<name>``, pinned at the first contact.

Farms that share the name share the cluster. An address may come to lead to another one; what a farm knows of
the first must never be taken for the second's, so another uid stops the work until a person accepts it.
"""

from __future__ import annotations

import math

import msgspec

from farmd.work.context import Context
from store import codec, operations
from store.entry import Stored
from store.errors import RecordInvalid
from store.farms import PinnedCluster

# A person may accept another cluster while this farm still reaches the first.
READ_AGAIN_SECONDS = 60.0


class Pin:
    """What is pinned under a cluster's name, as this farm read it last.

    ``settled``: the API server was compared with it. ``trouble``: why it is not the cluster that is meant.
    """

    def __init__(self, context: Context, name: str) -> None:
        self._context, self._name = context, name
        self._key = context.keys.other_cluster(name)
        self._stored: Stored[PinnedCluster] | None = None
        self._read_at = -math.inf
        self.settled = False
        self.trouble = ""

    @property
    def record(self) -> PinnedCluster:
        """The record; an empty one before it was written."""
        return PinnedCluster() if self._stored is None else self._stored.record

    async def compare(self, uid: str) -> None:
        """Compare the API server's uid with the pinned one, or pin it; an empty one cannot be compared.

        Raises:
            StoreError: the store could not be asked, or another farm was faster; try again.
        """
        old = self._context.clock.mono() - self._read_at >= READ_AGAIN_SECONDS
        try:
            if old or uid not in ("", self.record.uid):
                await self.read()
        except RecordInvalid as error:
            self.trouble = error.message
            return
        if uid and not self.record.uid:
            now, by = self._context.clock.now(), self._context.actor
            await self.write(msgspec.structs.replace(self.record, uid=uid, by=by, since=now))
        self.settled = True
        self.trouble = self._compared(uid)

    def _compared(self, uid: str) -> str:
        if not uid or uid == self.record.uid:
            return ""
        return (
            f"found the uid {uid} of its namespace kube-system, expected {self.record.uid}: another cluster"
            f" answers; if it is the one that is meant: farmctl kubernetes accept --name {self._name}"
        )

    async def read(self) -> None:
        """Read the record.

        Raises:
            RecordInvalid: it does not decode.
        """
        entry = await self._context.client.read(self._key, mode="consistent")
        self._stored = None if entry is None else codec.stored(PinnedCluster, entry)
        self._read_at = self._context.clock.mono()

    async def write(self, record: PinnedCluster) -> None:
        """Replace the record as it was read.

        Raises:
            TransactionRejected: it has changed since.
        """
        before = self._stored
        value = codec.encode(record) if before is None else codec.rewrite(record, before.raw)
        index = 0 if before is None else before.index
        self._read_at = -math.inf  # until it is answered
        await self._context.client.transaction([operations.cas(self._key, value, index)])
        await self.read()
