"""Looks at the fleet once a second and judges what it sees; what it finds wrong is kept, in words."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from store import codec
from store.audit import Audit
from store.errors import StoreError
from tests.fault.invariants import Dump, violations
from tests.soak import causes, continuity, jobs, processes, rollouts, schedules, spreads
from tests.soak.fleet import Fleet
from tests.soak.floors import Floors
from tests.soak.sight import Sight

PAUSE = 1.0
REMEMBERED = 150.0
# So long after a restore agents still act on what they knew before it (R16).
BLIND_SECONDS = 45.0
MOST_TOLD = 20


@dataclass(frozen=True)
class Size:
    """How much the store holds: keys, bytes of their values, and records of the audit among the keys."""

    keys: int = 0
    bytes: int = 0
    audits: int = 0

    @classmethod
    def of(cls, dump: Dump) -> Size:
        """That of a dump."""
        values = sum(len(entry.value) for entry in dump.entries.values())
        return cls(len(dump.entries), values, len(dump.audits))


class Watch:
    """``found`` are violations with their times; ``looks`` and ``audits`` count what was judged."""

    def __init__(self, fleet: Fleet, killed: Collection[tuple[int, int]]) -> None:
        self.found: list[str] = []
        self.looks = 0
        self.size = Size()
        self.audits = 0
        self._fleet = fleet
        self._killed = killed
        self._floors = Floors()
        self._rollouts = rollouts.RolloutFloors()
        self._seen: deque[Sight] = deque()
        self._judged: set[str] = set()
        self._told: set[str] = set()
        self._restores = 0
        self._blind_until = 0.0

    def restored(self) -> None:
        """The store went back: what was seen before tells nothing of what comes."""
        self._restores += 1
        self._blind_until = time.monotonic() + BLIND_SECONDS
        self._seen.clear()
        self._floors.forget()
        self._rollouts.forget()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(PAUSE)

    async def look(self) -> None:
        """One look; a Consul that does not answer shows nothing."""
        restores = self._restores
        running = await asyncio.to_thread(self._fleet.workloads)
        self._tell(processes.twice(running))
        silent = {name: part.silent_for() for name, part in self._fleet.agents.items()}
        self._tell(processes.outlived(running, silent))
        self._tell(found for part in self._fleet.parts if (found := part.ended()))
        self._tell(found for part in self._fleet.parts for found in part.crashes())
        try:
            dump = await self._fleet.dump()
        except StoreError:
            return
        if restores != self._restores:
            return
        self.looks += 1
        well_for = {part.name: part.well_for() for part in self._fleet.parts}
        sight = Sight(time.time(), _slim(dump), running, self._fleet.zones, well_for)
        self._tell(await asyncio.to_thread(violations, dump))
        self._tell(rollouts.twice_over(dump))
        self._tell(jobs.judged_once(dump))
        self._tell(schedules.miscounted(dump))
        self._tell(schedules.overlapping(dump))
        self.size = Size.of(dump)
        self._judge(sight, dump)
        self._seen.append(sight)
        while self._seen[0].at < sight.at - REMEMBERED:
            self._seen.popleft()

    def _judge(self, sight: Sight, dump: Dump) -> None:
        new = [(index, key, audit) for index, key, audit in _audits(dump, self._judged)]
        self._judged.update(key for _, key, _ in new)
        if not self._seen:
            return
        if time.monotonic() < self._blind_until:
            return
        self.audits += len(new)
        self._tell(jobs.twice(sight))
        self._tell(jobs.revived(self._seen[-1], sight))
        self._tell(schedules.fell(self._seen[-1].dump, sight.dump))
        self._tell(spreads.beyond(self._seen[-1], sight, [audit for *_, audit in new]))
        for index, _, audit in new:
            self._tell(causes.groundless(audit, [*self._seen, sight]))
            self._tell(self._floors.judge(index, audit, self._seen[-1], sight))
            self._tell(self._rollouts.judge(index, audit, self._seen[-1], sight))
        if len(self._seen) > 1:
            self._tell(continuity.broken(self._seen[-2], self._seen[-1], sight, self._killed))

    def _tell(self, lines: Iterable[str]) -> None:
        """Keep what was not told before."""
        for line in lines:
            if line not in self._told and len(self.found) < MOST_TOLD:
                self._told.add(line)
                self.found.append(f"{time.strftime('%H:%M:%S', time.gmtime())} {line}")
                print(f"VIOLATION {self.found[-1]}", flush=True)


def _audits(dump: Dump, judged: Collection[str]) -> list[tuple[int, str, Audit]]:
    """The audit records that were not judged yet, in the order of their commits."""

    prefix = dump.keys.tree("audit")
    fresh = [
        (entry.create_index, key, codec.decode(Audit, entry.value, key))
        for key, entry in dump.entries.items()
        if key.startswith(prefix) and dump.keys.is_audit_record(key) and key not in judged
    ]
    return sorted(fresh, key=lambda each: each[0])


def _slim(dump: Dump) -> Dump:
    """The same without the audit, of which there is too much to remember."""
    prefix = dump.keys.tree("audit")
    return Dump(dump.keys, {key: entry for key, entry in dump.entries.items() if not key.startswith(prefix)})
