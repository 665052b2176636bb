"""Freeze, never panic: when the evidence is doubtful, nothing is removed (R18, R19).

Frozen means no removal, move, take-over or revert; additions go on, and so do people's explicit commands
on single items (a record changed *after* the freeze). Any farm may set ``failsafe/<kind>``, all obey it,
and a farm that cannot write obeys its own doubt. It thaws when the evidence was good for two waits, or
while a person's acknowledgement names this very evidence and has not expired.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import structlog

from alerting.alert import Alert
from alerting.alerter import Alerter
from store import codec, failsafe, operations
from store.cache import PrefixCache
from store.consul.client import ConsulClient
from store.entry import Stored
from store.errors import StoreError
from store.keys import Keys
from store.ports import Clock, Recorder
from store.watch import WAIT_SECONDS

log = structlog.get_logger()

TICK_SECONDS = 1.0
THAW_AFTER = 2 * WAIT_SECONDS
UNDECODABLE_SHARE = 0.2
LOST_SHARE = 0.5
LOST_AT_LEAST = 4
REMOVALS_SHARE_PER_MINUTE = 0.3
REMOVALS_AT_LEAST = 20

INCIDENT_KEYS = {"rcs: the answer lacks the sentinel": "no_rcs_found"}


def undecodable(tree: PrefixCache[Any]) -> str | None:
    """Evidence: too large a share of a tree's records does not decode."""
    broken, whole = len(tree.broken), len(tree.broken) + len(tree.entries)
    if broken and broken > UNDECODABLE_SHARE * whole and broken > 1:
        return f"{tree.family}: more than {UNDECODABLE_SHARE:.0%} of the records do not decode"
    return None


def mass_loss(registered: int, present: int) -> str | None:
    """Evidence: more than half of the registered nodes have no agent; that is the network, not the nodes."""
    absent = registered - present
    if absent >= LOST_AT_LEAST and absent > LOST_SHARE * registered:
        return f"agents: more than {LOST_SHARE:.0%} of the nodes are absent"
    return None


class RemovalBudget:
    """How many removals that no person asked for a kind may make in a minute (R19)."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._spent: list[tuple[float, int]] = []

    def allows(self, removals: int, population: int) -> bool:
        """Whether so many more removals stay within the budget; spends them if so."""
        now = self._clock.mono()
        self._spent = [(at, count) for at, count in self._spent if now - at < 60]
        limit = max(REMOVALS_AT_LEAST, REMOVALS_SHARE_PER_MINUTE * population)
        if sum(count for _, count in self._spent) + removals > limit:
            return False
        self._spent.append((now, removals))
        return True


class FailsafeGuard:
    """Watches the evidence of one kind and tells workers whether removals stand still."""

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
        alerter: Alerter,
        thaw_after: float = THAW_AFTER,
    ) -> None:
        self._kind = kind
        self._farm = farm
        self._evidence = evidence
        self._cache = cache
        self._client = client
        self._key = keys.failsafe(kind)
        self._clock = clock
        self._recorder = recorder
        self._alerter = alerter
        self._thaw_after = thaw_after
        self._reported: str | None = None
        self._doubt: str | None = None
        self._doubted_at = 0.0
        self._alerted = False

    def frozen(self) -> str | None:
        """Why removals stand still now, or None."""
        stored = self._cache.get(self._key)
        record = stored.record if stored else None
        if self._doubt is not None and not self._acknowledged(record, self._doubt):
            return self._doubt
        if record is not None and failsafe.frozen(record, self._clock.now()):
            return record.evidence
        return None

    def frozen_index(self) -> int:
        """ModifyIndex of the freeze: a record changed later carries a person's explicit command."""
        stored = self._cache.get(self._key)
        return stored.create_index if stored else 0

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
        clean_since = self._clock.mono()
        while True:
            if self.look() is not None:
                clean_since = self._clock.mono()
            try:
                await self._record(self._clock.mono() - clean_since)
            except StoreError as error:
                log.debug("failsafe.not_recorded", code=error.code)
            await self._clock.sleep(TICK_SECONDS)

    async def _record(self, clean: float) -> None:
        stored = self._cache.get(self._key)
        if self._doubt is not None and (stored is None or stored.record.evidence != self._doubt):
            await self._alert(self._doubt)
            await self._write(stored, self._doubt)
        elif stored is not None and self._doubt is None and clean >= self._thaw_after:
            await self._client.transaction([operations.delete_cas(self._key, stored.index)])
            self._cache.removed(self._key, stored.index)
        elif stored is None and self._doubt is None and self._alerted:
            self._alerted = False
            await self._alerter.resolve(f"failsafe_{self._kind}")

    async def _write(self, stored: Stored[failsafe.Failsafe] | None, evidence: str) -> None:
        if self._cache.doubt is not None:
            return
        record = failsafe.Failsafe(evidence=evidence, by=f"farm/{self._farm}", since=self._clock.now())
        entries = await self._client.transaction(
            [operations.cas(self._key, codec.encode(record), stored.index if stored else 0)]
        )
        self._cache.wrote(self._key, record, max(entry.modify_index for entry in entries))

    async def _alert(self, evidence: str) -> None:
        if self._alerted:
            return
        self._alerted = True
        await self._alerter.fire(
            Alert(
                summary=f"removals of {self._kind} are frozen: {evidence}",
                incident_key=f"failsafe_{self._kind}",
                urgency="high",
                details={"kind": self._kind, "farm": self._farm, "evidence": evidence},
            )
        )
