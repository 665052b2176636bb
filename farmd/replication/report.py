"""What an RC's worker tells people: the status record, and one alert while nodes are short.

A status is written on change only and at most once a second; what an earlier owner wrote is recalled, so
that a take-over of thousands of items writes nothing. No decision ever reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import structlog

from alerting.alert import Alert
from farmd.farm.errors import ClaimLost
from farmd.replication import healing
from farmd.replication import plan as planning
from farmd.replication.model import Plan, Snapshot, Step
from store import codec, operations
from store.consul.client import ConsulClient
from store.entry import Entry
from store.errors import RecordInvalid, StoreError, TransactionRejected
from store.keys import Keys
from store.locks import Claim
from store.sessions import Session
from store.status import Status

if TYPE_CHECKING:
    from farmd.replication.kind import Tools

log = structlog.get_logger()

STATUS_PAUSE = 1.0
STATUS_RETRY = 5.0
SUMMARY_LIMIT = 500
RECALL_ONE_BY_ONE = 16


class Recollection:
    """Statuses that earlier owners wrote, read in bulk before workers start."""

    def __init__(self, client: ConsulClient, keys: Keys) -> None:
        self._client = client
        self._keys = keys
        self._statuses: dict[str, Status] = {}

    async def read(self, items: Sequence[str]) -> None:
        """Read the statuses of these items, with one request when there are many."""
        if len(items) <= RECALL_ONE_BY_ONE:
            found = [await self._client.read(self._keys.status("rcs", item)) for item in items]
            entries = [entry for entry in found if entry is not None]
        else:
            wanted = {self._keys.status("rcs", item) for item in items}
            page = await self._client.list(self._keys.status("rcs", ""))
            entries = [Entry.of(raw) for raw in page.items if raw.key in wanted]
        for entry in entries:
            try:
                self._statuses[self._keys.last_part(entry.key)] = codec.decode(Status, entry.value, entry.key)
            except RecordInvalid as error:
                log.warning("record.invalid", error=error.message)

    def take(self, item: str) -> Status | None:
        """The status of an item, once."""
        return self._statuses.pop(item, None)


class Reporter:
    """Speaks for one RC under one claim."""

    __slots__ = ("_alerted", "_claim", "_id", "_move_failing", "_session", "_status", "_tools", "_written_at")

    def __init__(self, claim: Claim, session: Session, tools: Tools) -> None:
        self._claim = claim
        self._session = session
        self._tools = tools
        self._id = claim.item
        self._status = tools.recollection.take(claim.item)
        self._written_at = float("-inf")
        self._alerted = False
        self._move_failing = False

    async def say(self, snapshot: Snapshot, plan: Plan, index: int) -> float | None:
        """Write the status if it changed; returns the seconds to wait when it is too early for that.

        ``index`` is the ModifyIndex of the record that it speaks of: no status outlives its record.

        Raises:
            ClaimLost: the fence refused it.
        """
        await self._raise_or_resolve(snapshot)
        status = planning.status(snapshot, plan, self._tools.farm, self._tools.clock.now())
        return await self._write(status, index)

    async def stepped(self, snapshot: Snapshot, step: Step) -> None:
        """A step of a move was written: a failure is told, with what can be done; success ends it."""
        if step.action == "finish":
            await self._move_told(None)
        elif step.action == "rollback":
            old, new = "/".join(step.old), "/".join(step.new)
            await self._move_told(
                f"{snapshot.rc.name}: moving {old} to {new} failed: {step.reason}; it was taken back and is"
                f" tried again later. Look at the pod on {step.new[0]}, cordon {step.new[0]} if the node is"
                f" to blame, or let {step.old[0]} keep its pod"
            )

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
        known = self._status or Status(state="blocked")
        status = Status(
            state="blocked",
            desired=known.desired,
            placed=len(self._tools.world.pods(self._id)),
            reason=reason,
            farm=self._tools.farm,
            since=self._tools.clock.now(),
        )
        try:
            return await self._write(status, index)
        except StoreError as error:
            log.debug("rc.status.not_written", rc_id=self._id, error_code=error.code)
            return STATUS_RETRY

    async def _write(self, status: Status, index: int) -> float | None:
        if self._status is not None and _same(self._status, status):
            return None
        wait = self._written_at + STATUS_PAUSE - self._tools.clock.mono()
        if wait > 0:
            return wait
        keys = self._tools.keys
        record = operations.check_index(keys.record("rcs", self._id), index)
        write = operations.put(keys.status("rcs", self._id), codec.encode(status))
        self._session.require()
        try:
            await self._tools.client.transaction([*self._claim.fence(), record, write])
        except TransactionRejected as error:
            if any(failure.index < len(self._claim.fence()) for failure in error.errors):
                raise ClaimLost(str(error)) from error
            return STATUS_RETRY  # the record changed: its watch brings the next cycle before that
        self._status, self._written_at = status, self._tools.clock.mono()
        return None

    async def _raise_or_resolve(self, snapshot: Snapshot) -> None:
        """One low alert while there are not enough eligible nodes (p2's incident key: the RC's id)."""
        rc = snapshot.rc
        offer = snapshot.offer
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


def _same(left: Status, right: Status) -> bool:
    """Whether two statuses say the same; who says it since when does not count."""
    return msgspec.structs.replace(left, since=0.0, farm="") == msgspec.structs.replace(
        right, since=0.0, farm=""
    )
