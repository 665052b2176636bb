"""The worker of one app: one plan a cycle, carried out in fenced transactions, then all is looked at again.

What must never break: a target is recorded before the first object that is made for it, and each transaction
checks the claim and the very record of the app that was planned from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from farmd.apps import plan as planning
from farmd.apps import report
from farmd.apps.facts import Act, ApplicationRevision, Plan, Ref, Snapshot
from farmd.apps.protocols import Elsewhere, Objects, OutsideUnknown
from farmd.apps.reader import Index, Reader
from farmd.apps.records import Records
from farmd.apps.writes import AppManifestsDispatcher, GCHandler, Writing
from farmd.commands.mutation import guard
from farmd.runtime.wake import Wake, earliest
from farmd.work.managing import Phases
from farmd.work.model import Blocked, Outcome
from farmd.work.named import DELETED, LOOK_AGAIN_SECONDS, NamedKind, NamedWorker
from store import operations
from store.apps import KIND, App, AppStatus
from store.entry import Stored
from store.errors import Locked
from store.locks import Claim
from store.operations import Operation
from store.sessions import Session
from store.transaction import Group
from store.words import listed


def _validity(session: Session) -> float:
    """Seconds that a write outside of Consul may take (R16).

    Raises:
        SessionSuspended: nothing may be written now.
    """
    session.require()
    return session.remaining()


class AppWorker(NamedWorker[Snapshot, Plan]):
    """Keeps one app as people ask, while its claim lasts."""

    __slots__ = ("_alarms", "_index", "_phases", "_places", "_reader", "_sure", "_tried", "_writing")

    def __init__(
        self,
        kind: NamedKind,
        claim: Claim,
        session: Session,
        wake: Wake,
        index: Index,
        elsewhere: Elsewhere | None,
        phases: Phases,
    ) -> None:
        super().__init__(kind, claim, session, wake)
        context, name = self.context, claim.item
        self._index, self._phases = index, phases
        self._places: dict[bool, Objects] = {True: Records(context, index, name, wake, self._commit)}
        if elsewhere is not None:
            self._places[False] = elsewhere(context, name, wake, partial(_validity, session))
        self._reader = Reader(context, index, name, self._places)
        self._alarms = report.AppAlerts(self.status.incidents, context.clock, context.farm)
        self._writing: Writing | None = None
        self._sure = False
        self._tried: Mapping[Ref, str] = {}

    # -- the frame's hooks -----------------------------------------------------------------------
    def attach(self) -> None:
        """Hear of its own state; of its objects it hears once they are known."""
        self._index.attach(self.claim.item, self.wake)

    def detach(self) -> None:
        """Hear of nothing any more."""
        self._index.detach(self.claim.item)
        self._phases.see(self.claim.item, "")
        for place in self._places.values():
            place.unfollow()

    async def reread(self) -> None:
        """After a write with an unknown outcome: read whether it happened (R12)."""
        await super().reread()
        await self.context.caches.work.barrier()
        for tree in self._index.trees:
            await tree.barrier()

    async def look(self, stored: Stored[App]) -> Snapshot | Outcome:
        """The app, its revisions and its objects."""
        broken = self.context.caches.work.broken.get(self.context.keys.work(KIND, self.claim.item))
        if broken is not None:
            return await self.unreadable(broken, "its state")
        return await self._reader.read(stored, self.frozen(), self._tried)

    def decide(self, snapshot: Snapshot) -> Plan:
        """Pure (``plan.py``)."""
        return planning.decide(snapshot)

    async def alert(self, snapshot: Snapshot, plan: Plan) -> float | None:
        """A revision that failed, or is blocked for long; and somebody else who writes its fields."""
        return await self._alarms.tell(snapshot.name, plan.blocked)

    async def block(self, reason: str) -> float | None:
        """Report why nothing can be planned or carried out, and alert after a while."""
        due = await self._alarms.tell(self.claim.item, Blocked(report.OBSTRUCTED, reason))
        again = await super().block(reason)
        return min((each for each in (due, again) if each is not None), default=None)

    def describe(self, snapshot: Snapshot, plan: Plan) -> AppStatus:
        """How far it is."""
        self._phases.see(snapshot.name, plan.phase)
        return report.status(snapshot, plan, self.context.farm, self.context.clock.now())

    # -- writing ---------------------------------------------------------------------------------
    async def act(self, snapshot: Snapshot, plan: Plan) -> Outcome:
        """Carry out a plan; what cannot be changed now is looked at again soon."""
        if plan.ends and not self._sure:
            await self.reread()  # of what another app handed over before the deletion
            self._sure = True
            return Outcome("after", 0.0)
        if plan.ends:
            return await self.end()
        self._sure = False
        state, outside = plan.note or snapshot.state, [act for act in plan.acts if not act.ref.own]
        what = (state.seq, state.effective, state.wave, plan.action, plan.acts) if outside else None
        if (rest := self.resting(what)) is not None:
            due = await self.block(rest.reason)
            return Outcome(rest.result, earliest(rest.after, due), rest.reason)
        writing = self._writing = Writing(self, self._index, snapshot, plan, self._reader.work)
        carry = partial(self._carry, writing, state.seq, self.repeats(what))
        revision = ApplicationRevision(app=snapshot.name, number=state.effective)
        collector = GCHandler(snapshot, carry)
        dispatcher = AppManifestsDispatcher(revision, snapshot.wanted, carry, collector)
        try:
            if plan.collects:
                waiting = await dispatcher.end_and_gc(snapshot.former).dispatch([])
            else:
                waiting = await dispatcher.start_and_skip_gc(snapshot.former).dispatch(plan.acts)
        except OutsideUnknown as error:
            return await self._refused(what, error.message)
        await writing.note()
        if plan.phase == "deleting" and plan.note is not None:
            await self.reread()  # of what was handed over before that note this farm may not have heard yet
        self._writing = None
        self._measure(snapshot, plan)
        self._tried = waiting
        if not waiting:
            return Outcome("after", 0.0)
        # What may not be read stands in the plan, and what was tried may have failed because of it.
        first = {
            **plan.refused,
            **{ref: why for ref, why in plan.waiting.items() if _obstructs(snapshot, ref)},
        }
        told = [*sorted(first.items()), *sorted(waiting.items())]
        text = listed([f"{ref}: {why}" for ref, why in told])
        if any(str(act.ref) in waiting for act in outside):
            return await self._refused(what, text)
        await self.block(text)
        return Outcome("blocked", LOOK_AGAIN_SECONDS, text)

    async def _refused(self, what: object, text: str) -> Outcome:
        """Report what the API server refuses, and try again later."""
        due = await self.block(text)
        rest = await self.count_refusal(what, text, noun="app", name=self.claim.item)
        return Outcome(rest.result, earliest(rest.after, due), text)

    async def _carry(
        self, writing: Writing, seq: int, repeated: bool, acts: Sequence[Act]
    ) -> Mapping[Ref, str]:
        """Do changes: of records in their transactions, of other objects after one that tells of them, unless
        they are ``repeated`` after a refusal.
        """
        own = [act for act in acts if act.ref.own]
        waiting = dict(await self._places[True].act(own, seq)) if own else {}
        others = [act for act in acts if not act.ref.own]
        await writing.note(outside=others, repeated=repeated)
        if others:
            refused = await self._places[False].act(others, seq)
            writing.done(str(act.ref) for act in others if str(act.ref) not in refused)
            waiting |= refused
        for act in (act for act in acts if str(act.ref) not in waiting):
            backend = "consul" if act.ref.own else "kubernetes"
            self.context.recorder.count("farmd_app_objects_total", backend=backend, act=act.verb)
        return waiting

    def _measure(self, snapshot: Snapshot, plan: Plan) -> None:
        """Observe how long a step took that this plan ends."""
        done = plan.note is not None and plan.note.wave > snapshot.state.wave
        if done or plan.action == "app.fail":
            taken, result = snapshot.now - snapshot.state.since, "done" if done else "failed"
            self.context.recorder.observe("farmd_app_wave_duration_seconds", taken, result=result)

    async def _commit(self, groups: Sequence[Group[Act]]) -> None:
        assert self._writing is not None
        await self._writing.records(groups)

    async def end(self, why: str = DELETED, besides: Sequence[Operation] = ()) -> Outcome:
        """Delete the app with its revisions, its state and its status."""
        context, name = self.context, self.claim.item
        call = self.call(why)
        try:
            held = await guard(call, KIND, name, f"app {name!r}")
        except Locked as error:
            await self.block(str(error))
            return Outcome("blocked", LOOK_AGAIN_SECONDS, error.code)
        keys = context.keys
        gone = [keys.record(KIND, name), keys.work(KIND, name), keys.status(KIND, name)]
        deleted = [*map(operations.delete, gone), operations.delete_tree(keys.trackers(name))]
        told = self.audit("app.delete", why, before={"exists": True}, after={"exists": False})
        await self.writer.commit(*self.stands(), *held.operations, *deleted, *besides, told)
        await self.status.incidents.end_all()
        return Outcome("done")


def _obstructs(snapshot: Snapshot, ref: Ref) -> bool:
    """Whether an object waits because the server does not even show it."""
    live = snapshot.live.get(ref)
    return live is not None and not live.version and bool(live.busy)
