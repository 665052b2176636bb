"""The facts of one rollout: its record and state, both controllers as they stand, their pods (R15).

Both controllers and their mutation locks are read anew for each cycle: a transaction compares what was read
here and rewrites the very bytes, so that fields of newer versions survive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import msgspec

from farmd.failsafe.guard import FailsafeGuard, holding
from farmd.pods.state import PodState, observed
from farmd.rollout import fitting
from farmd.rollout.model import FACTS, Need, Offer, Side, Snapshot
from farmd.rollout.noun import controller
from farmd.work import managing
from farmd.work.context import Context
from scheduler.model import FleetView, PlacementRequest
from store.entry import Entry, Stored
from store.families import RCS
from store.locks import Holder
from store.named import decode_named
from store.rcs import ReplicationController
from store.rollouts import KIND, Rollout, RolloutState
from store.work import Work

REALITY_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A snapshot, and what its plan is carried out with.

    ``records`` are the controllers as they were read, by id; ``locks`` the mutation locks that stand, by the
    controller's id; ``view``: what places were chosen from.
    """

    stored: Stored[Rollout]
    work: Stored[Work] | None
    snapshot: Snapshot
    records: dict[str, Stored[ReplicationController]] = field(default_factory=dict)
    locks: dict[str, Entry] = field(default_factory=dict)
    view: FleetView | None = None


class Reader:
    """Reads for one rollout under one claim of ``session``.

    ``_steady``: since this claim took the controllers, no worker of theirs had a move to end, and their pods
    were read after that. ``_refreshed``: the last cycle read how the pods are, for this one; ``_refreshes``:
    this one did, for the next.
    """

    def __init__(self, item: str, session: str, context: Context, guards: Sequence[FailsafeGuard]) -> None:
        self._item = item
        self._session = session
        self._context = context
        self._guards = guards
        self._steady = False
        self._refreshed = self._refreshes = False
        self._frozen_since: float | None = None
        self._best: tuple[RolloutState | None, int] = (None, -1)
        self._rests = False
        self._risen = context.clock.now()

    async def read(self, stored: Stored[Rollout]) -> Facts:
        """The rollout and its world, without what only sometimes matters."""
        self._refreshed, self._refreshes = self._refreshes, False
        context, rollout = self._context, stored.record
        work = context.caches.work.get(context.keys.work(KIND, self._item))
        state = work.record.rollout if work is not None else None
        records, locks = await self._records(rollout)
        ours = [lock for lock in locks.values() if of_rollout(lock, self._item)]
        others = [Holder.parse(lock.value) for lock in locks.values() if not of_rollout(lock, self._item)]
        held = len(ours) == 2 and all(lock.session == self._session for lock in ours)
        moving = state is not None and state.phase == "moving"
        busy = await self._busy(rollout) if moving and held else ""
        if not (moving and held):
            self._steady = False
        old, new = [await self._side(rollout, records.get(rc)) for rc in (rollout.old, rollout.new)]
        back = state is not None and state.back
        frozen = self._frozen(stored.index, back or rollout.wish == "revert")
        snapshot = Snapshot(
            rollout=rollout,
            state=state,
            old=old,
            new=new,
            frozen=frozen,
            frozen_for=self._frozen_for(frozen),
            curable=frozen is not None and self._frozen(stored.index, True) is None,
            locked=f"{others[0].kind}/{others[0].id}" if others else "",
            locks=held,
            busy=busy,
            risen=self._progress(state, old if back else new),
            now=context.clock.now(),
            unread=FACTS,
        )
        return Facts(stored=stored, work=work, snapshot=snapshot, records=records, locks=locks)

    async def _records(
        self, rollout: Rollout
    ) -> tuple[dict[str, Stored[ReplicationController]], dict[str, Entry]]:
        """Both controllers and their mutation locks, those that stand.

        Raises:
            NotRegistered: one is missing, and so may be the whole tree.
            RecordInvalid: one does not decode.
        """
        keys, client, ids = self._context.keys, self._context.client, (rollout.old, rollout.new)
        wanted = [keys.record(RCS.name, rc) for rc in ids] + [keys.mutation_lock(RCS.name, rc) for rc in ids]
        old, new, *locks = await asyncio.gather(*map(client.read, wanted))
        if old is None or new is None:
            # A tree that lost its sentinel is no evidence that a controller was deleted (R20).
            await self._context.caches.tree(RCS).barrier([keys.record(RCS.name, rc) for rc in ids])
        there = [(rc, entry) for rc, entry in zip(ids, (old, new), strict=True) if entry is not None]
        records = {rc: decode_named(ReplicationController, keys, entry) for rc, entry in there}
        return records, {rc: lock for rc, lock in zip(ids, locks, strict=True) if lock is not None}

    async def _busy(self, rollout: Rollout) -> str:
        """What a worker of one of the controllers has to end first; its pods are read after that (R14)."""
        if self._steady:
            return ""
        waits = await managing.moving(self._context, RCS.name, (rollout.old, rollout.new))
        self._steady = not waits
        return waits

    async def _side(self, rollout: Rollout, stored: Stored[ReplicationController] | None) -> Side | None:
        if stored is None:
            return None
        context, rc = self._context, stored.record
        least = rollout.policy.min_healthy_time
        pods = self.pods(rc, rc.min_healthy_time if least is None else least)
        lost = any(state.lost is not None for state in pods.values())
        stop_after = (await context.manifests.get(rc.manifest)).stop_after if lost else 0.0
        return Side(rc, pods, stop_after, terminating=self._terminating(rollout, rc))

    def _terminating(self, rollout: Rollout, rc: ReplicationController) -> int:
        """Processes of pods that were removed; nodes that are given up are not waited for (R21)."""
        if rollout.policy.strategy == "rolling":
            return 0
        standing = self._context.fleet.pods(rc.id)
        return sum(place not in standing for place in self._context.fleet.processes.of(rc.id))

    def pods(self, rc: ReplicationController, min_healthy_time: float) -> dict[tuple[str, str], PodState]:
        """A controller's pods as they are now; one whose node is drained must leave it."""
        states = observed(self._context.fleet, rc.id, min_healthy_time, self._context.clock.mono())
        return {
            place: msgspec.structs.replace(state, retained=False) if state.draining else state
            for place, state in states.items()
        }

    async def refresh(self, shot: Snapshot) -> bool:
        """Read how the pods of both sides are where that may be old; whether anything was read (R15).

        What was read for this very cycle counts, however slow the cycle is: else it would be read for ever.
        """
        if self._refreshed:
            return False
        places = [place for side in shot.sides for place in side.pods]
        keys = [self._context.keys.reality(*place) for place in places]
        self._refreshes = await self._context.caches.reality.fresh(keys, REALITY_SECONDS)
        return self._refreshes

    def _frozen(self, index: int, back: bool) -> str | None:
        """Why nothing may move. To revert the version that fails is the cure of mass ill health (R19)."""
        return holding(self._guards, index, back=back)

    def _frozen_for(self, frozen: str | None) -> float:
        now = self._context.clock.mono()
        if frozen is None:
            self._frozen_since = None
            return 0.0
        if self._frozen_since is None:
            self._frozen_since = now
        return now - self._frozen_since

    def _progress(self, state: RolloutState | None, target: Side | None) -> float:
        """When more pods of the target became available than before in this phase, as this claim saw it, or
        the phase began; what it was idle before something held it counts, too (``RolloutState.idle``).

        While a stage rests all are: the time without progress begins when one of them is not any more.
        """
        settled, desired = (target.settled, target.desired) if target is not None else (0, 0)
        known, best = self._best
        rested, self._rests = (
            self._rests,
            settled >= desired and state is not None and state.phase == "baking",
        )
        if settled > best or rested:
            self._best, self._risen = (state, max(settled, best)), self._context.clock.now()
        elif known != state:
            began = state.since - state.idle if state is not None else self._context.clock.now()
            self._best, self._risen = (state, settled), began
        return self._risen

    # -- what the plan asks for -------------------------------------------------------------------
    async def answer(self, reading: Facts, need: Need) -> Facts:
        """The reading with the fact that was asked for.

        Raises:
            NotFound: a manifest is gone. SchedulerError: the scheduler has no trustworthy answer.
        """
        for guard in self._guards:
            guard.look()  # before anything moves the evidence is looked at, not only once a second (R19)
        shot, view = reading.snapshot, self._context.fleet.view()
        if (frozen := self._frozen(reading.stored.index, shot.back)) is not None:
            return replace(reading, snapshot=replace(shot, frozen=frozen))
        source, target = shot.sides
        comes = source if need.fact == "homes" else target
        request, scheduler = await self.request(comes.rc), self._context.scheduler
        unread = shot.unread - {need.fact}
        if need.fact == "fit":
            asked = fitting.question(request, source.rc.id, need.leaving)
            answer = await scheduler.eligible_nodes(asked, view)
            fit = fitting.places(asked, answer, view)
            shot = replace(shot, fit=fit, unread=unread)
        else:
            elsewhere = msgspec.structs.replace(request, leaving=frozenset(need.leaving))
            found = await scheduler.allocate_nodes(elsewhere, need.count, view)
            offer, shot = Offer(found.assignments, found.missing, found.why), replace(shot, unread=unread)
            shot = replace(shot, homes=offer) if need.fact == "homes" else replace(shot, offer=offer)
        return replace(reading, snapshot=shot, view=view)

    async def request(self, rc: ReplicationController) -> PlacementRequest:
        """What the scheduler is asked for pods of a controller."""
        pods = controller().pods
        assert pods is not None
        return pods.request(rc, await self._context.manifests.of(rc))


def of_rollout(lock: Entry, item: str) -> bool:
    """Whether a mutation lock belongs to this rollout, under whatever claim."""
    holder = Holder.parse(lock.value)
    return (holder.kind, holder.id) == (KIND, item)
