"""Freeze, never panic: when the evidence is doubtful, nothing is removed (R18, R19).

Frozen means no removal, move, take-over or revert; additions go on, and so do people's explicit commands
on single items (a record changed *after* the freeze). Any farm may set ``failsafe/<kind>``, all obey it,
and a farm that cannot write obeys its own doubt. It thaws when the evidence was good for two waits, or
while a person's acknowledgement names this very evidence and has not expired.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from farmd.failsafe.alerts import FreezeAlerts
from store import codec, failsafe, operations
from store.cache import PrefixCache
from store.consul.client import ConsulClient
from store.entry import Stored
from store.errors import StoreError, TransactionRejected
from store.keys import Keys
from store.ports import Clock, Recorder
from store.watch import WAIT_SECONDS

log = structlog.get_logger()

TICK_SECONDS = 1.0
THAW_AFTER = 2 * WAIT_SECONDS


class FailsafeGuard:
    """Watches the evidence of one kind and tells workers whether removals stand still.

    ``present`` tells whether a farm is there: only then its freeze is its own to clear.
    """

    def __init__(
        self,
        kind: str,
        farm: str,
        evidence: Sequence[Callable[[], str | None]],
        cache: PrefixCache[failsafe.Failsafe],
        client: ConsulClient,
        keys: Keys,
        clock: Clock,
        recorder: Recorder,
        alerts: FreezeAlerts,
        thaw_after: float = THAW_AFTER,
        *,
        present: Callable[[str], bool],
    ) -> None:
        self._kind = kind
        self._farm = farm
        self._evidence = evidence
        self._cache = cache
        self._client = client
        self._key = keys.failsafe(kind)
        self._clock = clock
        self._recorder = recorder
        self._alerts = alerts
        self._thaw_after = thaw_after
        self._reported: str | None = None
        self._doubt: str | None = None
        self._doubted_at = 0.0
        self._present = present
        self._clean_since = clock.mono()
        self._seen: int | None = None
        self._said: str | None = None
        self._subscribers: list[Callable[[], None]] = []

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Call back when ``frozen`` says something else than before: who waits for the thaw must hear."""
        self._subscribers.append(changed)

    def frozen(self) -> str | None:
        """Why removals stand still now, or None."""
        stored = self._cache.get(self._key)
        record = stored.record if stored else None
        if self._doubt is not None and not self._acknowledged(record, self._doubt):
            return self._doubt
        if record is not None and failsafe.frozen(record, self._clock.now()):
            return record.evidence
        if self._key in self._cache.broken:
            return failsafe.ILLEGIBLE
        return None

    def frozen_index(self) -> int:
        """ModifyIndex of the freeze: a record changed later carries a person's explicit command."""
        stored = self._cache.get(self._key)
        return stored.create_index if stored else 0

    def commanded(self, index: int) -> bool:
        """Whether a record of that ModifyIndex was changed after the freeze that stands now (R18)."""
        return self.frozen() is not None and 0 < self.frozen_index() < index

    def report(self, evidence: str) -> None:
        """A worker found evidence of its own, such as a removal budget about to be exceeded."""
        self._reported = evidence

    def _acknowledged(self, record: failsafe.Failsafe | None, evidence: str) -> bool:
        return (
            record is not None
            and record.evidence == evidence
            and not failsafe.frozen(record, self._clock.now())
        )

    def look(self) -> str | None:
        """Look at the evidence once; the freeze outlasts it by two waits."""
        found = next((text for source in self._evidence if (text := source())), None) or self._reported
        self._reported = None
        now = self._clock.mono()
        if found is not None:
            if self._doubt is None:
                log.warning("failsafe.frozen", kind=self._kind, evidence=found)
            self._doubt, self._doubted_at = found, now
        elif self._doubt is not None and now - self._doubted_at >= self._thaw_after:
            log.info("failsafe.thawed", kind=self._kind, evidence=self._doubt)
            self._doubt = None
        self._recorder.set("farmd_frozen", 1 if self.frozen() else 0, kind=self._kind)
        return found

    async def run(self) -> None:
        """Look at the evidence each second, record the freeze and clear it; until cancelled."""
        self._cache.subscribe(lambda _: self._tell())
        self._clean_since = self._clock.mono()
        overtaken = False
        while True:
            if self.look() is not None:
                self._clean_since = self._clock.mono()
            before, overtaken = overtaken, False
            try:
                await self._record()
            except TransactionRejected:
                log.debug("failsafe.overtaken", kind=self._kind)  # the next look sees what another farm wrote
                overtaken = True
            except StoreError as error:
                log.debug("failsafe.not_recorded", code=error.code)
            # Who is overtaken twice in a row may never come to record it, and speaks all the same.
            if before or not overtaken:
                await self._alerts.say(self._kind, *self._doubts())
            self._tell()
            await self._clock.sleep(TICK_SECONDS)

    def _doubts(self) -> list[str]:
        """What people must hear of: a record that does not decode freezes, too, until somebody mends it."""
        doubts = [self._doubt] if self._doubt is not None else []
        return doubts + [failsafe.ILLEGIBLE] * (self._key in self._cache.broken)

    def _tell(self) -> None:
        if (says := self.frozen()) != self._said:
            self._said = says
            for callback in self._subscribers:
                callback()

    async def _record(self) -> None:
        stored = self._cache.get(self._key)
        index = stored.create_index if stored else None
        if index != self._seen:
            # What another farm found counts as if it was found here, from when it came to be known.
            self._seen, self._clean_since = index, self._clock.mono()
        if self._doubt is not None:
            await self._freeze(stored, self._doubt)
        elif stored is not None and self._may_clear(stored.record):
            await self._client.transaction([operations.delete_cas(self._key, stored.index)])
            self._cache.removed(self._key, stored.index)
            self._alerts.cleared(stored.record.evidence)

    def _may_clear(self, record: failsafe.Failsafe) -> bool:
        """Whether the evidence is good for long enough, and nobody else is there to say so."""
        if self._clock.mono() - self._clean_since < self._thaw_after:
            return False
        kind, _, farm = record.by.partition("/")
        return farm == self._farm or kind != "farm" or not self._present(farm)

    async def _freeze(self, stored: Stored[failsafe.Failsafe] | None, evidence: str) -> None:
        """Set the freeze unless one holds already, whoever set it; then theirs does as well as ours.

        One that does not decode holds as well, and is a person's to mend: it is never written over.
        """
        if self._cache.doubt is not None or self._key in self._cache.broken:
            return
        now = self._clock.now()
        if stored is not None and (stored.record.evidence == evidence or failsafe.frozen(stored.record, now)):
            return
        # The evidence may be that this is another cluster by now: its failsafe is not ours to set.
        await self._cache.barrier()
        record = failsafe.Failsafe(evidence=evidence, by=f"farm/{self._farm}", since=now)
        self._alerts.recording(evidence)
        entries = await self._client.transaction(
            [operations.cas(self._key, codec.encode(record), stored.index if stored else 0)]
        )
        self._cache.wrote(self._key, record, max(entry.modify_index for entry in entries))
        # Whoever recorded it first tells people; all who did so before this farm are seen by now.
        await self._cache.barrier()
        self._alerts.recorded(evidence)
