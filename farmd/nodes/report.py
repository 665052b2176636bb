"""What a node's worker tells people: the status record, and alerts for lost nodes and late drains.

A node with nothing the matter has no status at all. Statuses travel with the change that they speak of, and
name its record, so that none outlives it. No decision ever reads one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from alerting.alert import Alert
from farmd.farm.incidents import Incidents
from farmd.farm.statuses import STATUS_PAUSE, same
from farmd.nodes.model import Plan, Snapshot
from store import codec, operations
from store.nodes import NodeStatus
from store.operations import Operation
from store.work import Work

if TYPE_CHECKING:
    from farmd.nodes.kind import Tools

SUMMARY_LIMIT = 1024
ILLEGIBLE = NodeStatus(state="blocked", reason="its status did not decode")


class Reporter:
    """Speaks for one node under one claim. ``status`` is what stands in the store."""

    __slots__ = ("_drain", "_incidents", "_lost", "_node", "_tools", "_written_at", "status")

    def __init__(self, node: str, tools: Tools) -> None:
        self._node = node
        self._tools = tools
        self.status = tools.recollection.take(node)
        self._written_at = float("-inf")
        self._lost, self._drain = f"node_lost_{node}", f"node_drain_{node}"
        self._incidents = Incidents(tools.alerter)
        if self.status is not None and self.status.state == "draining" and self.status.reason:
            self._incidents.inherit(self._drain)
        work = tools.caches.work.get(tools.keys.work("nodes", node))
        if work is not None and work.record.lost_since > 0:
            self._incidents.inherit(self._lost)  # whichever farm gave it up has told of it

    def writes(self, status: NodeStatus | None) -> list[Operation]:
        """The operation that makes the status say this; none when it says it already."""
        if same(self.status, status):
            return []
        key = self._tools.keys.status("nodes", self._node)
        return [operations.delete(key) if status is None else operations.put(key, codec.encode(status))]

    def wrote(self, status: NodeStatus | None) -> None:
        """It stands in the store now."""
        if not same(self.status, status):
            self.status, self._written_at = status, self._tools.clock.mono()

    def early(self) -> float:
        """Seconds until a status alone may be written again; 0 or less: now."""
        return self._written_at + STATUS_PAUSE - self._tools.clock.mono()

    # -- alerts --------------------------------------------------------------------------------
    async def alert(self, snapshot: Snapshot, plan: Plan) -> None:
        """Tell of what is wrong, and that it is over; whoever told of it first."""
        await self.verdict(snapshot.work)
        if plan.newly_overdue:
            left, why = len(snapshot.left or ()), f": {snapshot.waiting[0]}" if snapshot.waiting else ""
            text = f"drain of {self._node} is past its deadline, {left} pods are left{why}"
            await self._tell(self._drain, text, left=str(left))
        elif snapshot.draining is None or not snapshot.draining.overdue:
            await self._incidents.end(self._drain)

    async def verdict(self, work: Work) -> None:
        """What the fleet says of its agent: lost, or not (any more)."""
        if work.lost_since > 0:
            absent = work.lost_since - work.absent_since
            text = f"node {self._node} is lost: its agent was absent for {absent:.0f} s"
            await self._tell(self._lost, text)
        else:
            await self._incidents.end(self._lost)

    async def over(self) -> None:
        """The node is gone, and with it what was wrong with it."""
        await self._incidents.end_all()

    async def _tell(self, key: str, text: str, **details: str) -> None:
        await self._incidents.tell(
            Alert(
                summary=text[:SUMMARY_LIMIT],
                incident_key=key,
                urgency="low",
                details={"node": self._node, **details},
            )
        )
