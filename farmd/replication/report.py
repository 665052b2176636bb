"""What an RC's worker tells people: the status record, and one alert while nodes are short."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

from alerting.alert import Alert
from farmd.farm.statuses import StatusWriter
from farmd.pods.report import report
from farmd.pods.state import Place, PodState
from farmd.replication import healing
from farmd.replication import plan as planning
from farmd.replication.model import Plan, Snapshot, Step
from store.entry import Entry
from store.locks import Claim
from store.sessions import Session
from store.status import Status

if TYPE_CHECKING:
    from farmd.replication.kind import Tools

SUMMARY_LIMIT = 500


class Reporter:
    """Speaks for one RC under one claim."""

    __slots__ = ("_id", "_incidents", "_tools", "_transfer", "_writer")

    def __init__(self, claim: Claim, session: Session, tools: Tools) -> None:
        self._tools = tools
        self._id = claim.item
        known = tools.recollection.take(claim.item)
        self._writer = StatusWriter(
            claim, session, tools.client, tools.keys, tools.clock, known, tools.alerter
        )
        self._incidents = self._writer.incidents
        self._transfer = f"transfer_{claim.item}"
        work = tools.caches.work.get(tools.keys.work("rcs", claim.item))
        if work is not None and work.record.transfer_failures:
            # An earlier owner told of it; it may have had no time for a status since.
            self._incidents.inherit(self._transfer)

    async def say(self, snapshot: Snapshot, plan: Plan, index: int) -> float | None:
        """Write the status if it changed; returns the seconds to wait when it is too early for that, or until
        the next pod is available.

        ``index`` is the ModifyIndex of the record that it speaks of: no status outlives its record.

        Raises:
            ClaimLost: the fence refused it.
        """
        await self._raise_or_resolve(snapshot)
        farm, now = self._tools.farm, self._tools.clock.now()

        def status(pods: Mapping[Place, PodState]) -> Status:
            return planning.status(dataclasses.replace(snapshot, pods=pods), plan, farm, now)

        return await report(self._writer, snapshot.pods, snapshot.rc.min_healthy_time, status, index)

    async def stepped(self, snapshot: Snapshot, step: Step) -> None:
        """A step of a move was written: a failure is told, with what can be done; success ends it."""
        if step.action == "finish":
            await self._incidents.end(self._transfer)
        elif step.action == "rollback":
            old, new = "/".join(step.old), "/".join(step.new)
            await self._move_told(
                f"{snapshot.rc.name}: moving {old} to {new} failed: {step.reason}; it was taken back and is"
                f" tried again later. Look at the pod on {step.new[0]}, cordon {step.new[0]} if the node is"
                f" to blame, or let {step.old[0]} keep its pod"
            )

    async def _move_told(self, failure: str) -> None:
        """One low alert while moves of this RC fail."""
        await self._tell(self._transfer, failure)

    async def _tell(self, key: str, text: str, **details: str) -> None:
        await self._incidents.tell(
            Alert(
                summary=" ".join(text.split())[:SUMMARY_LIMIT],
                incident_key=key,
                urgency="low",
                details={"rc_id": self._id, "farm": self._tools.farm, **details},
            )
        )

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

    async def _raise_or_resolve(self, snapshot: Snapshot) -> None:
        """One low alert while there are not enough eligible nodes (p2's incident key: the RC's id)."""
        rc = snapshot.rc
        offer = snapshot.offer
        if offer.purpose == "transfer" and offer.missing and not offer.contended:
            await self._move_told(
                f"{rc.name}: a pod should move and there is no place for it: {offer.why}. Add room, or let"
                " its node keep it"
            )
        elif not offer.missing and not _moves_on(snapshot):
            await self._incidents.end(self._transfer)
        short = bool(offer.missing) and offer.purpose != "transfer" and not offer.contended
        if short and not rc.disabled:
            await self._tell(
                self._id,
                f"{rc.name}: not enough eligible nodes: {offer.why}",
                pod_id=rc.pod_id,
                node_selector=rc.node_selector,
            )
        else:
            await self._incidents.end(self._id)


def _moves_on(snapshot: Snapshot) -> bool:
    """Whether a move is under way, put off, or due."""
    if snapshot.transfer is not None or snapshot.now < snapshot.not_before:
        return True
    return healing.candidate(snapshot) is not None
