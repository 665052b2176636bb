"""The claim loop of one kind under one session: carries out what ``plan.decide`` says (R3, R7–R10).

It watches which locks exist (``?keys``: existence means held); the watch rests while claiming. Locks are
taken in batches, several in flight; new claims share one barrier read and then get their workers. When a
lock that this farm is preferred for is held by another session, it looks whether that is its own: that is
how a hand-over arrives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from farmd.farm.caches import Caches
from farmd.farm.kind import Kind
from farmd.farm.model import ClaimPlan, FarmSettings, Item, Peer, Situation
from farmd.farm.plan import decide
from farmd.farm.preference import preferred
from farmd.farm.supervisor import Supervisor
from farmd.progress import Loop
from farmd.wake import Wake, wait
from store.consul.client import ConsulClient
from store.errors import NotRegistered, StoreError, TransactionRejected
from store.keys import Keys, is_sentinel
from store.locks import Claim, Holder, Locker, batch_size
from store.ports import Clock, Ids, Recorder, Rng
from store.selectors import parse
from store.sessions import Session
from store.watch import follow

log = structlog.get_logger()

IN_FLIGHT = 8
IDLE_SECONDS = 30.0
LOCKS_PAUSE = 0.05
ADOPT_PAUSE = 0.5
PREFERENCE_SLICE = 2000


class ClaimLoop:
    """Claims items of one kind and keeps their workers; ends only by cancellation."""

    def __init__(
        self,
        *,
        kind: Kind,
        session: Session,
        schema: int,
        settings: FarmSettings,
        client: ConsulClient,
        keys: Keys,
        caches: Caches,
        clock: Clock,
        rng: Rng,
        ids: Ids,
        recorder: Recorder,
        beat: Loop,
    ) -> None:
        self.kind = kind.name
        self._kind = kind
        self._session = session
        self._schema = schema
        self._settings = settings
        self._client = client
        self._keys = keys
        self._caches = caches
        self._clock = clock
        self._rng = rng
        self._ids = ids
        self._recorder = recorder
        self._beat = beat
        self._selector = parse(settings.selector)
        self._locker = Locker(client, keys, kind.name)
        self._wake = Wake()
        self.supervisor = Supervisor(
            kind, session, client, keys, clock, rng, recorder, settings.name, self._wake.set
        )
        self._resting = asyncio.Event()
        self._held: set[str] | None = None
        self._held_index = 0
        self._locks_moved = False
        self._free_since: dict[str, float] = {}
        self._peer_since: dict[str, float] = {}
        self._preferred: dict[str, str] = {}
        self._preferred_by: tuple[str, ...] = ()
        self._epoch = session.epoch
        self._patience = settings.patience * rng.uniform(0.75, 1.25)

    async def run(self) -> None:
        """Claim until cancelled; then every worker has ended."""
        self._kind.subscribe(self._records_changed)
        for tree in (self._caches.farms, self._caches.work):
            tree.subscribe(lambda _: self._wake.set())
        locks = asyncio.create_task(self._watch_locks(), name=f"locks-{self.kind}")
        locks.add_done_callback(lambda _: self._wake.set())
        try:
            await self._clock.sleep(self._settings.settle)
            self._wake.set()
            while True:
                await self._wait_for_wake(locks)
                await self._round()
                self._beat.beat()
        finally:
            locks.cancel()
            await asyncio.gather(locks, return_exceptions=True)
            await self.supervisor.stop(list(self.supervisor.owned))
            self._beat.close()

    # -- what there is -------------------------------------------------------------------------
    async def _watch_locks(self) -> None:
        """Follow which locks of this kind exist; rests while a round claims (R7)."""
        prefix = self._keys.tree("locks")
        self._resting.set()

        async def query(index: int, wait: float):  # type: ignore[no-untyped-def]
            await self._resting.wait()
            return await self._client.keys(prefix, index=index, wait=wait)

        pages = follow(
            query,
            name=f"locks/{self.kind}",
            clock=self._clock,
            rng=self._rng,
            pause=LOCKS_PAUSE,
            on_answer=self._beat.beat,
        )
        async for page in pages:
            if self._keys.sentinel(prefix) not in page.items:
                log.warning("locks.doubt", kind=self.kind, reason="the answer lacks the sentinel")
                self._held = None
                continue
            held = set()
            for key in page.items:
                if not is_sentinel(key):
                    kind, item, mutation = self._keys.lock_parts(key)
                    if kind == self.kind and not mutation:
                        held.add(item)
            self._held, self._held_index = held, page.index
            self._locks_moved = True
            self._wake.set()

    async def _wait_for_wake(self, locks: asyncio.Task[None]) -> None:
        await wait(self._wake, self._clock, self._due_in)
        if locks.done():
            locks.result()
        self._wake.clear()

    _due_in = IDLE_SECONDS

    async def _situation(self) -> Situation:
        now = self._clock.mono()
        peers = self._peers(now)
        items = self._kind.items()
        claimable = {item.id: item for item in items.values() if self._may_claim(item)}
        held = self._held or set()
        await self._prefer(claimable, tuple(sorted(p.id for p in peers.values() if not p.draining)))
        for item in claimable:
            if item in held:
                self._free_since.pop(item, None)
            else:
                self._free_since.setdefault(item, now)
        for gone in [item for item in self._free_since if item not in claimable]:
            del self._free_since[gone]
        return Situation(
            me=self._settings.name,
            claimable=claimable,
            held=held,
            mine=dict.fromkeys(self.supervisor.owned, 0),
            peers=peers,
            preferred=self._preferred,
            free_since=self._free_since,
            not_before=self._not_before(now),
            patience=self._patience,
            now=now,
        )

    def _may_claim(self, item: Item) -> bool:
        return set(item.needs) <= set(self._settings.features) and self._selector.matches(item.labels)

    def _peers(self, now: float) -> dict[str, Peer]:
        """Members that can take items of this kind; a member is settled once it was seen long enough."""
        peers = {}
        for stored in self._caches.farms.entries.values():
            member = stored.record
            if self.kind in member.kinds and member.selector == self._settings.selector:
                since = self._peer_since.setdefault(member.session, now)
                settled = member.id == self._settings.name or now - since >= self._settings.stable
                peers[member.id] = Peer(member.id, member.session, settled, member.draining)
        sessions = {peer.session for peer in peers.values()}
        self._peer_since = {s: at for s, at in self._peer_since.items() if s in sessions}
        return peers

    async def _prefer(self, claimable: dict[str, Item], members: tuple[str, ...]) -> None:
        """Keep each item's preferred member; computed anew only when the members change."""
        if members != self._preferred_by:
            self._preferred, self._preferred_by = {}, members
        missing = [item for item in claimable if item not in self._preferred]
        for position, item in enumerate(missing):
            if position % PREFERENCE_SLICE == PREFERENCE_SLICE - 1:
                await self._clock.sleep(0)
            self._preferred[item] = preferred(item, members)
        for gone in [item for item in self._preferred if item not in claimable]:
            del self._preferred[gone]

    def _not_before(self, now: float) -> dict[str, float]:
        wall = self._clock.now()
        due = {}
        for key, stored in self._caches.work.entries.items():
            if stored.record.not_before > wall and key.startswith(self._keys.work(self.kind, "")):
                due[self._keys.last_part(key)] = now + stored.record.not_before - wall
        return due

    # -- what is done about it -----------------------------------------------------------------
    async def _round(self) -> None:
        self._due_in = IDLE_SECONDS
        if self._held is None or not self._session.valid():
            self._due_in = 0.5
            return
        await self._resumed()
        await self._drop_lost(self._held)
        situation = await self._situation()
        plan = decide(situation)
        self._resting.clear()
        try:
            await self._carry_out(plan, situation)
        except StoreError as error:
            log.warning("claims.round_failed", kind=self.kind, code=error.code, error=error.message)
            self._due_in = self._rng.uniform(0.5, 1.5)
        finally:
            self._resting.set()
        self._recorder.set("farmd_owned", len(self.supervisor), kind=self.kind)
        if plan.wake_at is not None:
            self._due_in = min(self._due_in, max(0.0, plan.wake_at - self._clock.mono()))
        if any(not peer.settled for peer in situation.peers.values()) or plan.give:
            self._due_in = min(self._due_in, 1.0)

    async def _resumed(self) -> None:
        """After a suspension what workers have read is too old: they start again (R15)."""
        if self._session.epoch == self._epoch:
            return
        self._epoch = self._session.epoch
        await self._start(await self.supervisor.stop(list(self.supervisor.owned)))

    async def _drop_lost(self, held: set[str]) -> None:
        """Locks that vanished under their workers, because somebody deleted them by hand."""
        claims = self.supervisor.owned
        lost = [i for i, claim in claims.items() if i not in held and claim.index <= self._held_index]
        lost += self.supervisor.take_lost()
        if lost:
            await self.supervisor.stop(lost)
            self._recorder.count("farmd_lock_events_total", len(lost), event="lost")
            log.warning("claims.lost", kind=self.kind, count=len(lost))

    def _records_changed(self, items: set[str], matters: bool) -> None:
        for item in items:
            self.supervisor.record_changed(item)
        if matters:
            self._wake.set()

    async def _carry_out(self, plan: ClaimPlan, situation: Situation) -> None:
        if plan.release and self._kind.trusted():
            for claim in await self.supervisor.stop(plan.release):
                await self._locker.free(claim)
                self._recorder.count("farmd_lock_events_total", event="released")
        for receiver, items in plan.give.items():
            await self._hand_over(items, situation.peers[receiver])
        taken = await self._take(plan.take)
        adopted = await self._adopt(situation)
        # A lock that was taken just now bears this session as well: one claim an item.
        await self._start(list({claim.item: claim for claim in (*taken, *adopted)}.values()))

    async def _take(self, items: Sequence[str]) -> list[Claim]:
        size = batch_size()
        batches = [items[start : start + size] for start in range(0, len(items), size)]
        gate = asyncio.Semaphore(IN_FLIGHT)

        async def one(batch: Sequence[str]) -> list[Claim]:
            async with gate:
                self._session.require()
                holder = Holder("farm", self._settings.name, self._ids.new())
                claims, refused = await self._locker.take(batch, self._session.id, holder, self._schema)
                if self._held is not None:
                    self._held |= set(batch)
                self._recorder.count("farmd_lock_events_total", len(claims), event="claimed")
                self._recorder.count("farmd_lock_events_total", len(refused), event="rejected")
                return claims

        results = await asyncio.gather(*(one(batch) for batch in batches), return_exceptions=True)
        errors = [result for result in results if isinstance(result, BaseException)]
        for error in errors:
            if isinstance(error, NotRegistered) or not isinstance(error, StoreError):
                raise error
        if errors:
            log.warning("claims.batches_failed", kind=self.kind, failed=len(errors), error=str(errors[0]))
            self._due_in = self._rng.uniform(0.5, 1.5)
        return [claim for result in results if not isinstance(result, BaseException) for claim in result]

    async def _adopt(self, situation: Situation) -> list[Claim]:
        """Locks that bear this session without a worker: handed over, or taken with an unknown outcome."""
        expected = any(
            owner == self._settings.name and item in situation.held and item not in self.supervisor
            for item, owner in self._preferred.items()
        )
        if not expected or not self._locks_moved:
            return []
        self._locks_moved = False
        claims = [c for c in await self._locker.borne_by(self._session.id) if c.item not in self.supervisor]
        self._recorder.count("farmd_lock_events_total", len(claims), event="adopted")
        return claims

    async def _start(self, claims: Sequence[Claim]) -> None:
        """One shared barrier read, then a worker for each claim (R15)."""
        claims = [claim for claim in claims if claim.item not in self.supervisor]
        if not claims:
            return
        try:
            await self._kind.barrier([claim.item for claim in claims])
        except StoreError:
            # Without a fresh read nothing may be planned: let others, or a later round, have them.
            for claim in claims:
                await self._locker.free(claim)
            raise
        now = self._clock.mono()
        for claim in claims:
            work = self._caches.work.get(self._keys.work(self.kind, claim.item))
            since = self._free_since.pop(claim.item, None)
            if since is not None:
                self._recorder.observe("farmd_lock_failover_seconds", now - since)
            self.supervisor.start(claim, work.record if work else None)
        log.info("claims.taken", kind=self.kind, count=len(claims), owned=len(self.supervisor))

    async def _hand_over(self, items: list[str], receiver: Peer) -> None:
        """Cancel, await, then move the locks in one transaction; a dead receiver rolls it back (R9)."""
        claims = await self.supervisor.stop(items)
        holder = Holder("farm", receiver.id, self._ids.new())
        try:
            self._session.require()
            await self._locker.hand_over(claims, receiver.session, holder)
        except TransactionRejected as error:
            log.info("claims.hand_over_refused", receiver=receiver.id, error=error.message)
            await self._start(claims)
        else:
            self._recorder.count("farmd_lock_events_total", len(claims), event="handed_over")
            log.info("claims.handed_over", kind=self.kind, receiver=receiver.id, count=len(claims))
