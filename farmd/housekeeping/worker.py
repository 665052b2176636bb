"""The worker of one chore: a round, then a long pause, for ever. It ends only with its claim.

Silence is the worst failure: what keeps a chore from its round stands in its status with the reason.
"""

from __future__ import annotations

from typing import Protocol

import structlog

from farmd.housekeeping import references
from farmd.housekeeping.model import Outcome
from farmd.housekeeping.pen import Pen
from farmd.housekeeping.tools import Tools
from store import codec, operations
from store.errors import RecordInvalid, StoreError
from store.locks import Claim
from store.status import Status

log = structlog.get_logger()

KIND = "housekeeping"
FIRST_SECONDS = 30.0
SOON_SECONDS = 5.0
FROZEN_SECONDS = 300.0
BACKOFF_START = 15.0


class Chore(Protocol):
    """One chore under one claim."""

    async def round(self) -> Outcome:
        """Do a bounded piece of it."""


class Housekeeper:
    """Runs a chore in rounds (``farmd.farm.kind.Worker``)."""

    def __init__(self, claim: Claim, pen: Pen, chore: Chore, tools: Tools, blocked: set[str]) -> None:
        self._item = claim.item
        self._pen = pen
        self._chore = chore
        self._tools = tools
        self._blocked = blocked
        self._backoff = BACKOFF_START
        self._status: Status | None = None

    async def run(self) -> None:
        """Work until cancelled.

        Raises:
            ClaimLost: the lock is no longer this claim's.
        """
        try:
            await self._rounds()
        finally:
            self._blocked.discard(self._item)

    async def _rounds(self) -> None:
        tools = self._tools
        # Whoever has just started, or taken over, has more urgent work than this.
        await tools.clock.sleep(min(FIRST_SECONDS, tools.settings.interval) * tools.rng.uniform(0.5, 1.0))
        while True:
            started = tools.clock.mono()
            outcome = await self._round()
            (self._blocked.add if outcome.result == "backoff" else self._blocked.discard)(self._item)
            tools.recorder.observe("farmd_cycle_duration_seconds", tools.clock.mono() - started, kind=KIND)
            tools.recorder.count("farmd_cycles_total", kind=KIND, result=outcome.result)
            await tools.clock.sleep(self._pause(outcome))

    def _pause(self, outcome: Outcome) -> float:
        interval = self._tools.settings.interval
        if outcome.result == "backoff":
            pause, self._backoff = min(self._backoff, interval), min(self._backoff * 2, interval)
        elif outcome.result == "frozen":
            pause = min(FROZEN_SECONDS, interval)
        else:
            pause, self._backoff = (SOON_SECONDS if outcome.more else interval), BACKOFF_START
        return pause * self._tools.rng.uniform(0.9, 1.1)

    async def _round(self) -> Outcome:
        try:
            frozen = await self._frozen()
            outcome = Outcome("frozen", frozen) if frozen else await self._chore.round()
            await self._say(outcome)
        except StoreError as error:
            log.warning("housekeeping.failed", chore=self._item, code=error.code, error=error.message)
            outcome = Outcome("backoff", f"{error.code}: {error.message}")
            await self._try_to_say(outcome)
        return outcome

    async def _frozen(self) -> str:
        """Why nothing may be removed now: this farm's own doubt, or a freeze of any kind of work (R18)."""
        tools = self._tools
        if doubt := tools.doubt():
            return doubt
        return await references.freeze(tools.client, tools.keys, tools.cluster, tools.clock)

    async def _try_to_say(self, outcome: Outcome) -> None:
        try:
            await self._say(outcome)
        except StoreError as error:
            log.debug("housekeeping.status_not_written", chore=self._item, code=error.code)

    async def _say(self, outcome: Outcome) -> None:
        """Write the status if it changed; what an earlier owner wrote counts."""
        tools = self._tools
        key = tools.keys.status(KIND, self._item)
        if self._status is None:
            self._status = await self._recalled(key)
        state = {"frozen": "frozen", "backoff": "blocked"}.get(outcome.result, "converged")
        status = Status(
            state=state,  # type: ignore[arg-type]
            reason=outcome.reason,
            farm=tools.farm,
            since=tools.clock.now(),
        )
        if (self._status.state, self._status.reason) == (status.state, status.reason):
            return
        if await self._pen.write(operations.put(key, codec.encode(status))) is not None:
            self._status = status

    async def _recalled(self, key: str) -> Status:
        unknown = Status(state="progressing")
        entry = await self._tools.client.read(key)
        try:
            return unknown if entry is None else codec.decode(Status, entry.value, key)
        except RecordInvalid:
            return unknown
