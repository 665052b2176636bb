"""What a daemon set's worker tells people: the status record, and two low alerts.

One while it contends with another for nodes (p2's incident key, and the daemon set's id, so that the end of
one contention is not taken for the end of another's), one while no node is eligible, under its id alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

from alerting.alert import PREEMPTIVE_DS_CONTENTION, Alert
from farmd.daemonset import plan as planning
from farmd.daemonset.model import Plan, Snapshot
from farmd.farm.statuses import StatusWriter
from farmd.pods.report import report
from farmd.pods.state import Place, PodState
from store.entry import Entry
from store.locks import Claim
from store.sessions import Session
from store.status import Status

if TYPE_CHECKING:
    from farmd.daemonset.kind import Tools

SUMMARY_LIMIT = 500


class Reporter:
    """Speaks for one daemon set under one claim."""

    __slots__ = ("_id", "_incidents", "_tools", "_writer")

    def __init__(self, claim: Claim, session: Session, tools: Tools) -> None:
        self._tools = tools
        self._id = claim.item
        known = tools.recollection.take(claim.item)
        self._writer = StatusWriter(
            claim, session, tools.client, tools.keys, tools.clock, known, tools.alerter
        )
        self._incidents = self._writer.incidents

    async def say(self, snapshot: Snapshot, plan: Plan, index: int) -> float | None:
        """Write the status if it changed; returns the seconds to wait when it is too early for that, or until
        the next pod is available.

        ``index`` is the ModifyIndex of the record that it speaks of.

        Raises:
            ClaimLost: the fence refused it.
        """
        await self._contends(snapshot)
        await self._strands(snapshot, plan)
        farm, now = self._tools.farm, self._tools.clock.now()

        def status(pods: Mapping[Place, PodState]) -> Status:
            return planning.status(dataclasses.replace(snapshot, pods=pods), plan, farm, now)

        wait = snapshot.daemonset.min_healthy_time
        return await report(self._writer, snapshot.pods, wait, status, index)

    def differs(self, entry: Entry | None) -> bool:
        """Whether another status stands in the store than this one's; it is said again then."""
        return self._writer.differs(entry)

    async def over(self) -> None:
        """The item is gone, and with it what was wrong with it."""
        await self._incidents.end_all()

    async def block(self, reason: str, index: int) -> float | None:
        """Say that this item cannot be worked on, and why; returns when to say it if that is not now."""
        placed = len(self._tools.world.pods(self._id))
        return await self._writer.block(reason, index, placed, self._tools.farm)

    async def _contends(self, snapshot: Snapshot) -> None:
        key = f"{PREEMPTIVE_DS_CONTENTION}_{self._id}"
        if snapshot.contention:
            name = snapshot.daemonset.name
            await self._tell(key, f"daemonset {name!r} {snapshot.contention}; it is held back", snapshot)
        else:
            await self._incidents.end(key)

    async def _strands(self, snapshot: Snapshot, plan: Plan) -> None:
        if plan.blocked.startswith(planning.NOWHERE):
            await self._tell(self._id, f"daemonset {snapshot.daemonset.name!r}: {plan.blocked}", snapshot)
        else:
            await self._incidents.end(self._id)

    async def _tell(self, key: str, text: str, snapshot: Snapshot) -> None:
        daemonset = snapshot.daemonset
        await self._incidents.tell(
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
