"""The claim loop of one kind under one session: carries out the plan of ``plan.decide`` (R3, R7–R10).

Locks are taken in batches, several in flight; new claims share one barrier read, which begins when all kinds
have taken their locks, and then get their workers.
The loop adopts locks that bear this session and have no worker: a hand-over arrives in this way, and so does
a claim whose answer was lost. No lock of a live session may stay without a worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field

import structlog

from farmd.cache.caches import Caches
from farmd.farm.kind import Kind
from farmd.farm.locking import HeldLocks, Locks, LockTree
from farmd.farm.members import Members
from farmd.farm.plan import ClaimPlan, FarmSettings, Item, Peer, Situation, decide
from farmd.farm.supervisor import Supervisor, due_in
from farmd.observe.progress import Loop
from farmd.runtime.wake import Wake, wait
from store import registration
from store.consul.client import ConsulClient
from store.errors import NotRegistered, OutcomeUnknown, SchemaTooNew, StoreError
from store.keys import Keys
from store.locks import Claim
from store.ports import Clock, Ids, Recorder, Rng
from store.selectors import parse
from store.sessions import Session

# Reads the input of a round of claiming; ``plan.py`` decides.
#
# Items are all those that this farm's selector matches, whatever they need: all members must count the same
# items, or they would not agree on which member should hold each (R7).


@dataclass(eq=False)
class ClaimReader:
    """Reads one kind for one farm: the items, which are held, and the members that share them."""

    kind: Kind
    settings: FarmSettings
    keys: Keys
    caches: Caches
    held: HeldLocks
    members: Members
    features: Callable[[], frozenset[str]]
    clock: Clock
    rng: Rng
    _free_since: dict[str, float] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._selector = parse(self.settings.selector_of(self.kind.name))
        self._patience = self.settings.patience * self.rng.uniform(0.75, 1.25)

    async def situation(
        self, mine: Mapping[str, object], *, above_since: float | None, draining: bool
    ) -> Situation:
        """The present situation.

        Raises:
            NotRegistered: nothing is known of the locks.
        """
        now = self.clock.mono()
        peers = self.members.peers()
        items = {item.id: item for item in self.kind.items().values() if self._shares(item)}
        await self.members.share(items, peers, draining=draining)
        claimable = {item.id: item for item in items.values() if self._knows(item)}
        held = self.held.known()
        self._note_free(claimable, held, now)
        return Situation(
            me=self.settings.name,
            claimable=claimable,
            held=held,
            mine=dict.fromkeys(mine, 0),
            peers=peers,
            preferred=self.members.preferred,
            targets=self.members.targets,
            free_since=self._free_since,
            not_before=self._not_before(now),
            patience=self._patience,
            now=now,
            above_since=above_since,
            draining=draining,
        )

    def may_claim(self, item: Item) -> bool:
        """Whether this farm may work on the item (R11)."""
        return self._shares(item) and self._knows(item)

    def taken(self, item: str) -> float | None:
        """Note that this farm took the item; returns the seconds for which the item was free, if it was seen
        free.
        """
        since = self._free_since.pop(item, None)
        return None if since is None else self.clock.mono() - since

    def _shares(self, item: Item) -> bool:
        # The labels and needs of a broken item are unknown; its owner reports it and does no more.
        return bool(item.broken) or self._selector.matches(item.labels)

    def _knows(self, item: Item) -> bool:
        return bool(item.broken) or self.features().issuperset(item.needs)

    def _note_free(self, claimable: Mapping[str, Item], held: Set[str], now: float) -> None:
        for item in claimable:
            if item in held:
                self._free_since.pop(item, None)
            else:
                self._free_since.setdefault(item, now)
        for gone in [item for item in self._free_since if item not in claimable]:
            del self._free_since[gone]

    def _not_before(self, now: float) -> dict[str, float]:
        wall, mine = self.clock.now(), self.keys.work(self.kind.name, "")
        due = {}
        for key, stored in self.caches.work.entries.items():
            if (seconds := due_in(stored.record, wall)) > 0 and key.startswith(mine):
                due[self.keys.last_part(key)] = now + seconds
        return due


log = structlog.get_logger()

IDLE_SECONDS = 30.0
STARTED_AT_ONCE = 250
# After a barrier that failed the loop takes nothing for a while; it would otherwise take and free locks in a
# storm.
BARRED_START, BARRED_LIMIT = 1.0, 10.0


@dataclass(eq=False, kw_only=True)
class ClaimLoop:
    """Claims items of one kind and keeps their workers; ends only by cancellation.

    All loops of a farm wait for ``begin``, so that each claims before another reads for its workers.
    """

    kind: Kind
    session: Session
    schema: int
    settings: FarmSettings
    features: Callable[[], frozenset[str]]
    client: ConsulClient
    keys: Keys
    caches: Caches
    locks: LockTree
    clock: Clock
    rng: Rng
    ids: Ids
    recorder: Recorder
    beat: Loop
    begin: asyncio.Event
    _above_since: float | None = field(default=None, init=False)
    _draining: bool = field(default=False, init=False)
    _barred_until: float = field(default=float("-inf"), init=False)

    def __post_init__(self) -> None:
        self._wake = Wake()
        held = self._held = self.locks.of(self.kind.name, self._wake.set)
        self.supervisor = Supervisor(
            self.kind,
            self.session,
            self.client,
            self.keys,
            self.clock,
            self.rng,
            self.recorder,
            self.settings.name,
            self._wake.set,
        )
        self._locks = Locks(
            self.kind.name,
            self.session,
            self.settings.name,
            self.kind.locker(self.client, self.keys),
            held,
            self.clock,
            self.ids,
            self.recorder,
        )
        self._members = Members(self.kind.name, self.settings, self.features, self.caches.farms, self.clock)
        self._reader = ClaimReader(
            self.kind,
            self.settings,
            self.keys,
            self.caches,
            held,
            self._members,
            self.features,
            self.clock,
            self.rng,
        )
        self.drained = asyncio.Event()
        self._epoch = self.session.epoch
        self._barred_for = BARRED_START

    async def run(self) -> None:
        """Claim until cancelled; then every worker has ended."""
        try:
            await self.begin.wait()
            self._wake.set()
            while True:
                await wait(self._wake, self.clock, self._due_in)
                self._wake.clear()
                await self._round()
                self.beat.beat()
        finally:
            await self.supervisor.stop(list(self.supervisor.owned))
            self.beat.close()

    _due_in = IDLE_SECONDS

    def drain(self) -> None:
        """Take nothing any more and hand over what other farms may have (R9); then set ``drained``."""
        self._draining = True
        self._wake.set()

    # -- what is done about it -----------------------------------------------------------------
    async def _round(self) -> None:
        self._due_in = IDLE_SECONDS
        if self._held.items is None or not self.session.valid():
            self._due_in = 0.5
            return
        try:
            await self._held.refresh()
            await self._resumed()
            await self._drop_lost()
            with self._held.claiming():
                situation = await self._reader.situation(
                    self.supervisor.owned, above_since=self._above_since, draining=self._draining
                )
                plan = decide(situation)
                self._above_since = (self._above_since or situation.now) if plan.above else None
                claims = await self._carry_out(plan, situation)
            await self._start(claims)
            self._plan_next(plan, situation)
            if situation.draining and not plan.give:
                self.drained.set()
        except NotRegistered as error:
            log.warning("claims.round_failed", kind=self.kind.name, code=error.code, error=error.message)
            self._soon(self.rng.uniform(0.5, 1.5))
            await self._read_schema()
        except StoreError as error:
            log.warning("claims.round_failed", kind=self.kind.name, code=error.code, error=error.message)
            self._soon(self.rng.uniform(0.5, 1.5))
        self.recorder.set("farmd_owned", len(self.supervisor), kind=self.kind.name)

    def _plan_next(self, plan: ClaimPlan, situation: Situation) -> None:
        if plan.wake_at is not None:
            self._soon(plan.wake_at - self.clock.mono())
        settling = any(not (peer.settled or peer.starting) for peer in situation.peers.values())
        if settling or plan.give:
            self._soon(0.0 if plan.give and situation.draining else 1.0)
        if (due := self._held.due_in()) is not None:
            self._soon(due)

    def _soon(self, seconds: float) -> None:
        self._due_in = min(self._due_in, max(0.0, seconds))

    async def _read_schema(self) -> None:
        """Read the schema again, because a newer farmd may have rewritten it; this version must still be
        allowed.

        Raises:
            SchemaTooNew: it is not.
        """
        try:
            self.schema = (await registration.read_schema(self.client, self.keys)).modify_index
        except SchemaTooNew:
            raise
        except StoreError as error:
            # With the old index claims are refused meanwhile; workers do not need it.
            log.warning("claims.no_schema", kind=self.kind.name, code=error.code, error=error.message)

    async def _resumed(self) -> None:
        """Restart the workers after a suspension, because what they have read is too old (R15)."""
        if self.session.epoch == self._epoch:
            return
        self._epoch = self.session.epoch
        await self._start(await self.supervisor.stop(list(self.supervisor.owned)))

    async def _drop_lost(self) -> None:
        """Stop the workers whose locks are gone, for example because a person deleted them."""
        held, index = self._held.known(), self._held.index
        claims = self.supervisor.owned
        lost = [item for item, claim in claims.items() if item not in held and claim.index <= index]
        lost += self.supervisor.take_lost()
        if lost:
            await self.supervisor.stop(lost)
            self._locks.look_again()
            self.recorder.count("farmd_lock_events_total", len(lost), event="lost")
            log.warning("claims.lost", kind=self.kind.name, count=len(lost))

    def wake(self) -> None:
        """Run a round soon, because its input changed."""
        self._wake.set()

    def records_changed(self, items: set[str], matters: bool) -> None:
        """Pass on that records changed; ``matters``: the change can affect claiming."""
        for item in items:
            self.supervisor.record_changed(item)
        if matters:
            self._wake.set()

    async def _carry_out(self, plan: ClaimPlan, situation: Situation) -> list[Claim]:
        """Release, hand over, take and adopt; returns the claims that have no worker yet."""
        if plan.release and self.kind.trusted():
            await self._locks.free(await self.supervisor.stop(plan.release))
        kept: list[Claim] = []
        for receiver, items in plan.give.items():
            kept += await self._hand_over(items, situation.peers[receiver])
        if (barred := self._barred_until - self.clock.mono()) > 0:
            self._soon(barred)
            return kept
        taken = await self._locks.take(plan.take, self.schema)
        if self._locks.in_doubt():
            self._soon(self.rng.uniform(0.5, 1.5))
        mine = [*kept, *taken]
        return [*mine, *await self._adopt(situation, {claim.item for claim in mine})]

    async def _adopt(self, situation: Situation, mine: Set[str]) -> list[Claim]:
        """Locks that bear this session and have no worker: handed over, or taken with an unknown outcome.

        The locks of ``mine`` were taken, or not handed over, a moment ago and are no adoptions.
        """
        expected = any(
            situation.targets.get(item) == self.settings.name
            for item in situation.held
            if item not in situation.mine
        )
        if not self._locks.worth_looking(situation.held - situation.mine.keys(), expected):
            return []
        known = self.supervisor
        claims = [c for c in await self._locks.borne() if c.item not in known and c.item not in mine]
        items = self.kind.items()
        unfit = [c for c in claims if c.item in items and not self._reader.may_claim(items[c.item])]
        await self._locks.free(unfit)
        claims = [claim for claim in claims if claim not in unfit]
        self.recorder.count("farmd_lock_events_total", len(claims), event="adopted")
        return claims

    async def _start(self, claims: Sequence[Claim]) -> None:
        """One shared barrier read, then a worker for each claim (R15).

        The reads begin when no other kind is claiming, because they would hold up its locks.
        """
        claims = [claim for claim in claims if claim.item not in self.supervisor]
        if not claims:
            return
        await self._held.tree.idle()
        try:
            await self.caches.work.barrier()
            await self.kind.barrier([claim.item for claim in claims])
        except StoreError:
            # Without a fresh read the worker may not plan: free the locks, so that another farm or a later
            # round takes them.
            self._bar()
            self._locks.doubt()
            await self._locks.free(claims)
            raise
        self._barred_for = BARRED_START
        for position, claim in enumerate(claims):
            if position % STARTED_AT_ONCE == STARTED_AT_ONCE - 1:
                await self.clock.sleep(0)
            work = self.caches.work.get(self.keys.work(self.kind.name, claim.item))
            if (free_for := self._reader.taken(claim.item)) is not None:
                self.recorder.observe("farmd_lock_failover_seconds", free_for)
            self.supervisor.start(claim, work.record if work else None)
        log.info("claims.taken", kind=self.kind.name, count=len(claims), owned=len(self.supervisor))

    def _bar(self) -> None:
        """Take nothing for a while, which doubles each time in a row."""
        self._barred_until = self.clock.mono() + self._barred_for * self.rng.uniform(0.75, 1.25)
        self._barred_for = min(2 * self._barred_for, BARRED_LIMIT)

    async def _hand_over(self, items: list[str], receiver: Peer) -> list[Claim]:
        """Cancel and await the workers, then move their locks (R9); returns the claims that were refused."""
        self.session.require()
        claims = await self.supervisor.stop(items)
        try:
            await self._locks.hand_over(claims, receiver)
        except OutcomeUnknown as error:
            # A lock that is still this session's is adopted again once it was read (R12).
            log.warning("claims.hand_over_unanswered", receiver=receiver.id, error=error.message)
        except StoreError as error:
            log.info("claims.hand_over_refused", receiver=receiver.id, error=error.message)
            self._members.shun(receiver)
            return claims
        else:
            log.info("claims.handed_over", kind=self.kind.name, receiver=receiver.id, count=len(claims))
        return []
