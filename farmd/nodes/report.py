"""What a node's worker tells people: the status record, and alerts for lost nodes and late drains.

A node with nothing the matter has no status at all; what an earlier owner wrote is recalled, so that a
take-over of thousands of nodes writes nothing. No decision ever reads it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import structlog

from alerting.alert import Alert
from alerting.alerter import Alerter
from farmd.farm.incidents import Incidents
from store import codec, operations
from store.consul.client import ConsulClient
from store.entry import Entry
from store.errors import RecordInvalid
from store.keys import Keys
from store.nodes import Drain, NodeStatus
from store.operations import Operation
from store.ports import Clock

log = structlog.get_logger()

STATUS_PAUSE = 1.0
RECALL_ONE_BY_ONE = 16


class Recollection:
    """Statuses that earlier owners wrote, read in bulk before workers start."""

    def __init__(self, client: ConsulClient, keys: Keys) -> None:
        self._client = client
        self._keys = keys
        self._statuses: dict[str, NodeStatus] = {}

    async def read(self, nodes: Sequence[str]) -> None:
        """Read the statuses of these nodes, with one request when there are many."""
        if len(nodes) <= RECALL_ONE_BY_ONE:
            found = [await self._client.read(self._keys.status("nodes", node)) for node in nodes]
            entries = [entry for entry in found if entry is not None]
        else:
            wanted = {self._keys.status("nodes", node) for node in nodes}
            page = await self._client.list(self._keys.status("nodes", ""))
            entries = [Entry.of(raw) for raw in page.items if raw.key in wanted]
        for entry in entries:
            try:
                status = codec.decode(NodeStatus, entry.value, entry.key)
            except RecordInvalid as error:
                log.warning("record.invalid", error=error.message)
                status = NodeStatus(state="blocked", reason="its status did not decode")
            self._statuses[self._keys.last_part(entry.key)] = status

    def take(self, node: str) -> NodeStatus | None:
        """The status of a node, once."""
        return self._statuses.pop(node, None)


class Reporter:
    """Speaks for one node under one claim. ``status`` is what stands in the store."""

    __slots__ = ("_alerter", "_clock", "_drains", "_keys", "_node", "_written_at", "status")

    def __init__(
        self, node: str, keys: Keys, clock: Clock, alerter: Alerter, status: NodeStatus | None
    ) -> None:
        self._node = node
        self._keys = keys
        self._clock = clock
        self._alerter = alerter
        self.status = status
        self._written_at = float("-inf")
        told = status is not None and status.state == "draining" and bool(status.reason)
        self._drains = Incidents(alerter, [self._drain_key] if told else ())

    def writes(self, status: NodeStatus | None) -> list[Operation]:
        """The operation that makes the status say this; none when it says it already."""
        if _same(self.status, status):
            return []
        key = self._keys.status("nodes", self._node)
        return [operations.delete(key) if status is None else operations.put(key, codec.encode(status))]

    def wrote(self, status: NodeStatus | None) -> None:
        """It stands in the store now."""
        if not _same(self.status, status):
            self.status, self._written_at = status, self._clock.mono()

    def early(self) -> float:
        """Seconds until a status alone may be written again; 0 or less: now."""
        return self._written_at + STATUS_PAUSE - self._clock.mono()

    # -- alerts --------------------------------------------------------------------------------
    async def lost(self, absent_for: float) -> None:
        """The node was given up."""
        await Incidents(self._alerter).tell(
            Alert(
                summary=f"node {self._node} is lost: its agent was absent for {absent_for:.0f} s",
                incident_key=f"node_lost_{self._node}",
                urgency="low",
                details={"node": self._node},
            )
        )

    async def back(self) -> None:
        """Its agent is there again; whichever farm gave it up has told of it."""
        await Incidents(self._alerter, [f"node_lost_{self._node}"]).end_all()

    async def overdue(self, left: int, waiting: Sequence[str]) -> None:
        """The deadline of its drain has passed."""
        why = f": {waiting[0]}" if waiting else ""
        await self._drains.tell(
            Alert(
                summary=f"drain of {self._node} is past its deadline, {left} pods are left{why}"[:1024],
                incident_key=self._drain_key,
                urgency="low",
                details={"node": self._node, "left": str(left)},
            )
        )

    async def settle(self, drain: Drain | None) -> None:
        """Resolve the alert of a late drain once it is over; an earlier owner may have fired it."""
        late = drain is not None and drain.overdue and drain.stage != "done"
        if not late:
            await self._drains.end_all()

    @property
    def _drain_key(self) -> str:
        return f"node_drain_{self._node}"


def _same(left: NodeStatus | None, right: NodeStatus | None) -> bool:
    """Whether two statuses say the same; who says it since when does not count."""
    if left is None or right is None:
        return left is right
    return msgspec.structs.replace(left, since=0.0, farm="") == msgspec.structs.replace(
        right, since=0.0, farm=""
    )
