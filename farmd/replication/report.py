"""What an RC's worker tells people: the status record, and one alert while nodes are short."""

from __future__ import annotations

from typing import TYPE_CHECKING

from alerting.alert import Alert
from farmd.farm.statuses import StatusWriter
from farmd.replication import healing
from farmd.replication import plan as planning
from farmd.replication.model import Plan, Snapshot, Step
from store.locks import Claim
from store.sessions import Session

if TYPE_CHECKING:
    from farmd.replication.kind import Tools

SUMMARY_LIMIT = 500


class Reporter:
    """Speaks for one RC under one claim."""

    __slots__ = ("_alerted", "_id", "_inherited", "_move_failing", "_tools", "_writer")

    def __init__(self, claim: Claim, session: Session, tools: Tools) -> None:
        self._tools = tools
        self._id = claim.item
        known = tools.recollection.take(claim.item)
        self._writer = StatusWriter(claim, session, tools.client, tools.keys, tools.clock, known)
        self._alerted = False
        self._move_failing = False
        work = tools.caches.work.get(tools.keys.work("rcs", claim.item))
        # An earlier owner told people; only whoever tells them can tell them that it is over.
        self._inherited = work.record.transfer_failures if work is not None else 0

    async def say(self, snapshot: Snapshot, plan: Plan, index: int) -> float | None:
        """Write the status if it changed; returns the seconds to wait when it is too early for that.

        ``index`` is the ModifyIndex of the record that it speaks of: no status outlives its record.

        Raises:
            ClaimLost: the fence refused it.
        """
        await self._raise_or_resolve(snapshot)
        status = planning.status(snapshot, plan, self._tools.farm, self._tools.clock.now())
        return await self._writer.write(status, index)

    async def stepped(self, snapshot: Snapshot, step: Step) -> None:
        """A step of a move was written: a failure is told, with what can be done; success ends it."""
        await self._inherit(snapshot)
        if step.action == "finish":
            await self._move_told(None)
        elif step.action == "rollback":
            old, new = "/".join(step.old), "/".join(step.new)
            await self._move_told(
                f"{snapshot.rc.name}: moving {old} to {new} failed: {step.reason}; it was taken back and is"
                f" tried again later. Look at the pod on {step.new[0]}, cordon {step.new[0]} if the node is"
                f" to blame, or let {step.old[0]} keep its pod"
            )

    async def _inherit(self, snapshot: Snapshot) -> None:
        failures, self._inherited = self._inherited, 0
        if failures:
            await self._move_told(f"{snapshot.rc.name}: moving a pod failed {failures} times in a row")

    async def _move_told(self, failure: str | None) -> None:
        """One low alert while moves of this RC fail; None ends it."""
        key = f"transfer_{self._id}"
        if failure is not None:
            await self._tools.alerter.fire(
                Alert(
                    summary=" ".join(failure.split())[:SUMMARY_LIMIT],
                    incident_key=key,
                    urgency="low",
                    details={"rc_id": self._id, "farm": self._tools.farm},
                )
            )
        elif self._move_failing:
            await self._tools.alerter.resolve(key)
        self._move_failing = failure is not None

    async def over(self) -> None:
        """The item is gone, and with it what was wrong with it."""
        await self._move_told(None)
        if self._alerted:
            self._alerted = False
            await self._tools.alerter.resolve(self._id)

    async def block(self, reason: str, index: int) -> float | None:
        """Say that this item cannot be worked on, and why; returns when to say it if that is not now."""
        placed = len(self._tools.world.pods(self._id))
        return await self._writer.block(reason, index, placed, self._tools.farm)

    async def _raise_or_resolve(self, snapshot: Snapshot) -> None:
        """One low alert while there are not enough eligible nodes (p2's incident key: the RC's id)."""
        rc = snapshot.rc
        offer = snapshot.offer
        await self._inherit(snapshot)
        if offer.purpose == "transfer" and offer.missing and not offer.contended and not self._move_failing:
            await self._move_told(
                f"{rc.name}: a pod should move and there is no place for it: {offer.why}. Add room, or let"
                " its node keep it"
            )
        elif self._move_failing and not offer.missing and not _moves_on(snapshot):
            await self._move_told(None)
        short = bool(offer.missing) and offer.purpose != "transfer" and not offer.contended
        short = short and not rc.disabled
        if short and not self._alerted:
            summary = " ".join(f"{rc.name}: not enough eligible nodes: {snapshot.offer.why}".split())
            details = {"rc_id": self._id, "farm": self._tools.farm, "pod_id": rc.pod_id}
            await self._tools.alerter.fire(
                Alert(
                    summary=summary[:SUMMARY_LIMIT],
                    incident_key=self._id,
                    urgency="low",
                    details={**details, "node_selector": rc.node_selector},
                )
            )
        elif not short and self._alerted:
            await self._tools.alerter.resolve(self._id)
        self._alerted = short


def _moves_on(snapshot: Snapshot) -> bool:
    """Whether a move is under way, put off, or due."""
    if snapshot.transfer is not None or snapshot.now < snapshot.not_before:
        return True
    return healing.candidate(snapshot) is not None
