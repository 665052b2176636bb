"""What a daemon set's worker tells people: the status record, and two low alerts.

One while it contends with another for nodes (p2's incident key, shared by all of a farm's daemon sets),
one while no node is eligible, under the daemon set's id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from alerting.alert import PREEMPTIVE_DS_CONTENTION, Alert
from farmd.daemonset import plan as planning
from farmd.daemonset.model import Plan, Snapshot
from farmd.farm.statuses import StatusWriter
from store.locks import Claim
from store.sessions import Session

if TYPE_CHECKING:
    from farmd.daemonset.kind import Tools

SUMMARY_LIMIT = 500


class Reporter:
    """Speaks for one daemon set under one claim."""

    __slots__ = ("_id", "_stranded", "_tools", "_writer")

    def __init__(self, claim: Claim, session: Session, tools: Tools) -> None:
        self._tools = tools
        self._id = claim.item
        known = tools.recollection.take(claim.item)
        self._writer = StatusWriter(claim, session, tools.client, tools.keys, tools.clock, known)
        self._stranded = False

    async def say(self, snapshot: Snapshot, plan: Plan, index: int) -> float | None:
        """Write the status if it changed; returns the seconds to wait when it is too early for that.

        ``index`` is the ModifyIndex of the record that it speaks of.

        Raises:
            ClaimLost: the fence refused it.
        """
        await self._contends(snapshot)
        await self._strands(snapshot, plan)
        status = planning.status(snapshot, plan, self._tools.farm, self._tools.clock.now(), index)
        return await self._writer.write(status, index)

    async def over(self) -> None:
        """The item is gone, and with it what was wrong with it."""
        await self._resolve_contention()
        if self._stranded:
            self._stranded = False
            await self._tools.alerter.resolve(self._id)

    async def block(self, reason: str, index: int) -> float | None:
        """Say that this item cannot be worked on, and why; returns when to say it if that is not now."""
        placed = len(self._tools.world.pods(self._id))
        return await self._writer.block(reason, index, placed, self._tools.farm)

    async def _contends(self, snapshot: Snapshot) -> None:
        if not snapshot.contention:
            await self._resolve_contention()
        elif self._tools.watch.contend(self._id, contending=True):
            name = snapshot.daemonset.name
            await self._fire(
                PREEMPTIVE_DS_CONTENTION,
                f"daemonset {name!r} {snapshot.contention}; it is held back",
                snapshot,
            )

    async def _resolve_contention(self) -> None:
        if self._tools.watch.contend(self._id, contending=False):
            await self._tools.alerter.resolve(PREEMPTIVE_DS_CONTENTION)

    async def _strands(self, snapshot: Snapshot, plan: Plan) -> None:
        stranded = plan.blocked.startswith(planning.NOWHERE)
        if stranded and not self._stranded:
            await self._fire(self._id, f"daemonset {snapshot.daemonset.name!r}: {plan.blocked}", snapshot)
        elif self._stranded and not stranded:
            await self._tools.alerter.resolve(self._id)
        self._stranded = stranded

    async def _fire(self, key: str, text: str, snapshot: Snapshot) -> None:
        daemonset = snapshot.daemonset
        await self._tools.alerter.fire(
            Alert(
                summary=" ".join(text.split())[:SUMMARY_LIMIT],
                incident_key=key,
                urgency="low",
                details={
                    "daemonset_id": self._id,
                    "farm": self._tools.farm,
                    "pod_id": daemonset.pod_id,
                    "node_selector": daemonset.node_selector,
                },
            )
        )
