"""Freezes removals while the evidence is doubtful (R18, R19).

A freeze stops removals, moves, take-overs and reverts. Additions go on, and so do people's explicit commands
on single items (a record that changed *after* the freeze). Any farm may set ``failsafe/<kind>``, and all
farms obey it. The freeze ends when the evidence was good for two waits, or while a person's acknowledgement
names this very evidence and has not expired.

A farm records only what it finds at that moment, in a transaction that checks its session, after it has read
again what the evidence rests on. Its own doubt lasts two waits longer than the evidence and binds that farm
alone: were it written, one farm's memory would freeze all others again and again.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

import structlog

from farmd.failsafe.alerts import FreezeAlerts
from farmd.failsafe.evidence import NO_LEADER
from store import codec, failsafe, operations
from store.cache import PrefixCache
from store.consul.client import ConsulClient
from store.entry import Stored
from store.errors import StoreError, TransactionRejected
from store.keys import Keys
from store.operations import Operation
from store.ports import Clock, Recorder
from store.watch import WAIT_SECONDS

# How many removals that no person asked for a kind may make in a minute (R19).

REMOVALS_SHARE_PER_MINUTE = 0.3
# The minimum for small fleets, for all farms together; and one farm's minimum, which is what one worker may
# move at once.
REMOVALS_AT_LEAST = 20
REMOVALS_A_FARM_AT_LEAST = 8
# The share of the budget for other nodes while one node alone uses it up: a few pods elsewhere are no mass
# removal.
REMOVALS_BESIDE_ONE_NODE = 0.1


class RemovalBudget:
    """How many removals that no person asked for a kind may make in a minute (R19).

    All pods of one node may be removed, whatever share of a small fleet they are, because healing a failed
    node needs it. The budget limits removals on several nodes. ``farms`` counts the farms, which share the
    minimum.
    """

    def __init__(self, clock: Clock, farms: Callable[[], int]) -> None:
        self._clock = clock
        self._farms = farms
        self._spent: deque[tuple[float, str]] = deque()
        self._nodes: Counter[str] = Counter()

    def allows(self, nodes: Collection[str], population: int) -> bool:
        """Whether one removal on each of these nodes stays within the budget; if so, it is spent.

        ``population`` is how many pods this farm owns now: each farm has its own budget and does not know the
        others'. What it hands over lowers its limit, whatever it has spent.
        """
        now = self._clock.mono()
        while self._spent and now - self._spent[0][0] >= 60:
            self._forget(self._spent.popleft()[1])
        wanted, total = Counter(nodes), len(self._spent) + len(nodes)
        at_least = max(REMOVALS_A_FARM_AT_LEAST, REMOVALS_AT_LEAST / max(1, self._farms()))
        limit = max(at_least, REMOVALS_SHARE_PER_MINUTE * population)
        if total > limit:
            one_node = max((self._nodes + wanted).values(), default=0)
            if total - one_node > max(1, REMOVALS_BESIDE_ONE_NODE * limit):
                return False
        self._nodes += wanted
        self._spent.extend((now, node) for node in nodes)
        return True

    def give_back(self, nodes: Iterable[str]) -> None:
        """Return the budget of removals that were not made, because somebody else was faster."""
        for node in nodes:
            last = next((spent for spent in reversed(self._spent) if spent[1] == node), None)
            if last is not None:
                self._spent.remove(last)
                self._forget(node)

    def _forget(self, node: str) -> None:
        self._nodes[node] -= 1
        if not self._nodes[node]:
            del self._nodes[node]


log = structlog.get_logger()

TICK_SECONDS = 1.0
# How the evidence of mass ill health begins.
HEALTH = "health"
THAW_AFTER = 2 * WAIT_SECONDS


@dataclass(eq=False)
class FailsafeGuard:
    """Watches the evidence of one kind and tells workers whether removals are frozen.

    A kind may add checks of its own to ``evidence`` before the guard runs.

    Args:
        present: whether a farm is present; a present farm clears its own freeze.
        fence: the checks of a write that rests on this farm's session; None while it is not in force.
        reread: reads again what an evidence rests on; raises StoreError if that was not answered.
        newest: the highest index that this farm has read.
    """

    kind: str
    farm: str
    evidence: list[Callable[[], str | None]]
    cache: PrefixCache[failsafe.Failsafe]
    client: ConsulClient
    keys: Keys
    clock: Clock
    recorder: Recorder
    alerts: FreezeAlerts
    thaw_after: float = THAW_AFTER
    present: Callable[[str], bool] = field(kw_only=True)
    fence: Callable[[], Sequence[Operation] | None] = field(kw_only=True)
    reread: Callable[[str], Awaitable[None]] = field(kw_only=True)
    newest: Callable[[], int] = field(kw_only=True)
    _reported: str | None = field(default=None, init=False)
    _doubt: str | None = field(default=None, init=False)
    _doubted_at: float = field(default=0.0, init=False)
    _doubt_began: float = field(default=0.0, init=False)
    _doubt_index: int = field(default=0, init=False)
    _seen: int | None = field(default=None, init=False)
    _said: str | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._key = self.keys.failsafe(self.kind)
        self._clean_since = self.clock.mono()
        self._subscribers: list[Callable[[], None]] = []

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Call back when the result of ``frozen`` changes."""
        self._subscribers.append(changed)

    def frozen(self) -> str | None:
        """The evidence for which removals are frozen now; None: they are not frozen."""
        stored = self.cache.get(self._key)
        record = stored.record if stored else None
        if self._doubt is not None and not self._acknowledged(record, self._doubt):
            return self._doubt
        if record is not None and failsafe.frozen(record, self.clock.now()):
            # Earlier versions record it. The store in which that is written has a leader.
            return None if record.evidence == NO_LEADER else record.evidence
        if self._key in self.cache.broken:
            return failsafe.ILLEGIBLE
        return None

    def frozen_index(self) -> int:
        """ModifyIndex of the freeze; a record that changed later carries a person's explicit command.

        A doubt that is not recorded began at the highest index that this farm had read.
        """
        stored = self.cache.get(self._key)
        return max(stored.create_index if stored else 0, self._doubt_index)

    def frozen_since(self) -> float:
        """When the freeze began, by the clock of the farm that found it; infinity: there is none."""
        stored = self.cache.get(self._key)
        began = [stored.record.since] if stored else []
        return max([*began, self._doubt_began] if self._doubt is not None else began, default=math.inf)

    def commanded(self, index: int) -> bool:
        """Whether a record of that ModifyIndex changed after the present freeze (R18)."""
        return self.frozen() is not None and 0 < self.frozen_index() < index

    def report(self, evidence: str) -> None:
        """Add evidence that a worker found, such as a removal budget about to be exceeded."""
        self._reported = evidence

    def _acknowledged(self, record: failsafe.Failsafe | None, evidence: str) -> bool:
        return (
            record is not None
            and record.evidence == evidence
            and not failsafe.frozen(record, self.clock.now())
        )

    def look(self) -> str | None:
        """Check the evidence once, and return it; this farm's doubt lasts two waits longer."""
        found = self._find()
        now = self.clock.mono()
        if found is not None:
            if self._doubt is None:
                log.warning("failsafe.frozen", kind=self.kind, evidence=found)
                self._doubt_began, self._doubt_index = self.clock.now(), self.newest()
            self._doubt, self._doubted_at = found, now
        elif self._doubt is not None and self._over(now):
            log.info("failsafe.thawed", kind=self.kind, evidence=self._doubt)
            self._doubt, self._doubt_index = None, 0
        self.recorder.set("farmd_frozen", 1 if self.frozen() else 0, kind=self.kind)
        return found

    def _find(self) -> str | None:
        return next((text for source in self.evidence if (text := source())), None) or self._reported

    def _over(self, now: float) -> bool:
        """Whether the doubt ends, now that its evidence is gone.

        A session in force contradicts the lack of a leader: what this farm plans rests on later reads (R15).
        """
        contradicted = self._doubt == NO_LEADER and self.fence() is not None
        return contradicted or now - self._doubted_at >= self.thaw_after

    async def run(self) -> None:
        """Check the evidence each second, record the freeze and clear it; until cancelled."""
        self.cache.subscribe(lambda _: self._tell())
        self._clean_since = self.clock.mono()
        overtaken = False
        while True:
            found = self.look()
            if found is not None:
                self._clean_since = self.clock.mono()
            before, overtaken = overtaken, False
            try:
                await self._record(found)
                self._reported = None
            except TransactionRejected:
                log.debug("failsafe.overtaken", kind=self.kind)  # the next look sees what another farm wrote
                overtaken = True
            except StoreError as error:
                log.debug("failsafe.not_recorded", code=error.code)
            # A farm that is overtaken twice in a row may never record the freeze, and fires the alert all the
            # same.
            if before or not overtaken:
                await self.alerts.say(self.kind, *self._doubts())
            self._tell()
            await self.clock.sleep(TICK_SECONDS)

    def _doubts(self) -> list[str]:
        """The evidence for alerts. A record that does not decode freezes as well, until a person mends it."""
        doubts = [self._doubt] if self._doubt is not None else []
        return doubts + [failsafe.ILLEGIBLE] * (self._key in self.cache.broken)

    def _tell(self) -> None:
        if (says := self.frozen()) != self._said:
            self._said = says
            for callback in self._subscribers:
                callback()

    async def _record(self, found: str | None) -> None:
        stored = self.cache.get(self._key)
        index = stored.create_index if stored else None
        if index != self._seen:
            # The time without evidence begins when this farm learns of another farm's freeze.
            self._seen, self._clean_since = index, self.clock.mono()
        fence = self.fence()
        if fence is None:
            return
        if found is not None:
            await self._freeze(stored, found, fence)
        elif self._doubt is None and stored is not None and self._may_clear(stored.record):
            await self.client.transaction([*fence, operations.delete_cas(self._key, stored.index)])
            self.cache.removed(self._key, stored.index)
            self.alerts.cleared(stored.record.evidence)

    def _may_clear(self, record: failsafe.Failsafe) -> bool:
        """Whether the evidence was good for long enough, and no other present farm set the freeze."""
        if self.clock.mono() - self._clean_since < self.thaw_after:
            return False
        kind, _, farm = record.by.partition("/")
        return farm == self.farm or kind != "farm" or not self.present(farm)

    async def _freeze(
        self, stored: Stored[failsafe.Failsafe] | None, evidence: str, fence: Sequence[Operation]
    ) -> None:
        """Record the freeze unless one is in force already, which counts as well as this farm's.

        A record that does not decode is in force, too; a person mends it, and it is never overwritten.
        """
        if self.cache.doubt is not None or self._key in self.cache.broken:
            return
        now = self.clock.now()
        if stored is not None and (stored.record.evidence == evidence or failsafe.frozen(stored.record, now)):
            return
        # The store may hold another cluster by now, whose failsafe record this farm must not write.
        await self.cache.barrier()
        await self.reread(evidence)
        if self._find() != evidence:
            return  # this farm's copies were behind, which is no evidence for others
        record = failsafe.Failsafe(evidence=evidence, by=f"farm/{self.farm}", since=now)
        self.alerts.recording(evidence)
        entries = await self.client.transaction(
            [*fence, operations.cas(self._key, codec.encode(record), stored.index if stored else 0)]
        )
        self.cache.wrote(self._key, record, max(entry.modify_index for entry in entries))
        # The farm that recorded it first fires the alert; this read shows all earlier records.
        await self.cache.barrier()
        self.alerts.recorded(evidence)


@dataclass(frozen=True, slots=True)
class Freezes:
    """What holds a change of a version while it is frozen.

    A record that changed after the freeze, by its ModifyIndex ``index``, carries a person's command. To go
    ``back`` from the version that fails is the cure of mass ill health (R19).
    """

    guards: Sequence[FailsafeGuard]
    index: int
    back: bool

    def evidence(self) -> str | None:
        """The evidence that holds the change; None: it may go on."""
        for guard in self.guards:
            evidence = guard.frozen()
            cure = self.back and evidence is not None and evidence.startswith(HEALTH)
            if evidence is not None and not cure and not guard.commanded(self.index):
                return evidence
        return None

    def found(self) -> str | None:
        """Like ``evidence``, after a look at all of it now: guards look by themselves once a second."""
        for guard in self.guards:
            guard.look()
        return self.evidence()
