"""The worker of one node: gives up its agent for all farms (R21), and advances its drain.

Read, decide, execute; the whole state each time. An idle node costs a sleeping task and no timer. The
verdict is written only while the agent's presence is missing in the very same transaction, so that no
farm with an old view can give up an agent that is there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import structlog

from farmd.farm.errors import ClaimLost
from farmd.nodes import leftovers
from farmd.nodes import plan as planning
from farmd.nodes.model import DONE, Leftover, Outcome, Plan, Snapshot
from farmd.nodes.report import Reporter
from farmd.wake import Wake, wait
from store import codec, operations
from store.audit import Audit
from store.entry import Entry
from store.errors import AccessDenied, NotRegistered, SessionSuspended, StoreError, TransactionRejected
from store.locks import Claim
from store.nodes import Drain, Node
from store.operations import Operation
from store.sessions import Session
from store.work import Work

if TYPE_CHECKING:
    from farmd.nodes.kind import Tools

log = structlog.get_logger()

BACKOFF_START = 0.5
BACKOFF_LIMIT = 60.0
OWNERS_AT_MOST = 20
_NO_WORK = Work()


class NodeWorker:
    """Looks after one node while its claim lasts."""

    __slots__ = ("_backoff", "_claim", "_doubtful", "_name", "_report", "_session", "_tools", "_wake")

    def __init__(self, claim: Claim, session: Session, tools: Tools) -> None:
        self._claim = claim
        self._session = session
        self._tools = tools
        self._name = claim.item
        self._wake = Wake()
        self._backoff = BACKOFF_START
        self._doubtful = False
        status = tools.recollection.take(claim.item)
        self._report = Reporter(claim.item, tools.keys, tools.clock, tools.alerter, status)

    async def run(self) -> None:
        """Work until cancelled.

        Raises:
            ClaimLost: the lock is no longer this claim's.
        """
        tools = self._tools
        tools.watch.attach(self._name, self._wake.set)
        try:
            while True:
                self._wake.clear()
                started = tools.clock.mono()
                outcome = await self._guarded_cycle()
                tools.recorder.observe(
                    "farmd_cycle_duration_seconds", tools.clock.mono() - started, kind="nodes"
                )
                tools.recorder.count("farmd_cycles_total", kind="nodes", result=outcome.result)
                if outcome.after is None:
                    await self._wake.wait()  # thousands sleep here: not one frame more than it takes
                else:
                    await wait(self._wake, tools.clock, outcome.after)
        finally:
            tools.watch.detach(self._name)

    async def _guarded_cycle(self) -> Outcome:
        """One cycle; what the store refuses is tried again later, with backoff, jitter and a fresh view."""
        try:
            if self._doubtful:
                await self._tools.barrier()
                self._doubtful = False
            outcome = await self._cycle()
        except TransactionRejected as error:
            self._doubtful = True
            log.info("node.cycle.rejected", node=self._name, error=error.message)
            return Outcome("rejected", self._pause())
        except StoreError as error:
            self._doubtful = True
            delay = self._pause()
            if isinstance(error, SessionSuspended):
                delay = min(delay, 1.0)
            log.warning(
                "node.cycle.failed", node=self._name, error_code=error.code, error=str(error), after_s=delay
            )
            return Outcome("backoff", delay)
        self._backoff = BACKOFF_START
        return outcome

    def _pause(self) -> float:
        delay = self._backoff * self._tools.rng.uniform(0.75, 1.25)
        self._backoff = min(self._backoff * 2, BACKOFF_LIMIT)
        return delay

    async def _cycle(self) -> Outcome:
        snapshot = await self._read()
        if snapshot is None:
            return DONE
        plan = planning.decide(snapshot)
        self._tools.watch.mark(
            self._name,
            observed=snapshot.draining is not None,
            held_back=bool(plan.held_back),
            blocked=plan.blocked,
        )
        await self._report.settle(snapshot.node.drain if snapshot.node is not None else None)
        if plan.newly_overdue:
            await self._report.overdue(len(snapshot.left or ()), snapshot.waiting)
        if plan.register:
            await self._register(plan)
        elif plan.verdict:
            await self._judge(snapshot, plan)
        elif plan.drain is not None:
            await self._advance(snapshot, plan, plan.drain)
        else:
            return await self._say(plan)
        return Outcome("after", 0.0)  # what was written is confirmed by one more look

    # -- read ----------------------------------------------------------------------------------
    @property
    def _node_key(self) -> str:
        return self._tools.keys.node(self._name)

    async def _read(self) -> Snapshot | None:
        """The node as it is; None when nobody speaks of it any more. An idle node costs no request."""
        tools, key = self._tools, self._node_key
        stored, broken = tools.caches.nodes.get(key), tools.caches.nodes.broken.get(key)
        present = tools.absences.present(self._name)
        if stored is None and broken is None and not present:
            return None
        work = tools.caches.work.get(tools.keys.work("nodes", self._name))
        snapshot = Snapshot(
            node=stored.record if stored is not None else None,
            present=present,
            work=work.record if work is not None else _NO_WORK,
            absent_for=None if present else tools.absences.seconds(self._name),
            grace=tools.absences.grace,
            frozen=tools.guard.frozen(),
            now=tools.clock.now(),
            farm=tools.farm,
            status=self._report.status,
            broken=broken.message if broken is not None else "",
        )
        return await self._with_leftovers(snapshot) if snapshot.draining is not None else snapshot

    async def _with_leftovers(self, snapshot: Snapshot) -> Snapshot:
        """What the drain waits for, read anew; where the node is lost, nobody can say what runs there."""
        tools = self._tools
        lost = not snapshot.present and snapshot.work.lost_since > 0
        try:
            left = await leftovers.read(tools.client, tools.keys, self._name, tools.system, running=not lost)
        except NotRegistered as error:
            return replace(snapshot, waiting=(error.message,))
        return replace(snapshot, left=left, waiting=await self._reasons(left))

    async def _reasons(self, left: tuple[Leftover, ...]) -> tuple[str, ...]:
        tools, reasons = self._tools, []
        for owner in sorted({pod.owner for pod in left})[:OWNERS_AT_MOST]:
            rc = tools.caches.rcs.get(tools.keys.record("rcs", owner))
            ds = tools.caches.daemonsets.get(tools.keys.record("daemonsets", owner))
            known = leftovers.owner_of(rc.record if rc else None, ds.record if ds else None, owner)
            reasons.append(await leftovers.reason(tools.client, tools.keys, owner, known))
        return tuple(text for text in reasons if text)

    # -- execute -------------------------------------------------------------------------------
    async def _register(self, plan: Plan) -> None:
        """A node whose record somebody deleted while its agent lives: without one nobody would miss it."""
        key, record = self._node_key, Node()
        index = await self._commit("node.register", plan, [operations.create(key, codec.encode(record))])
        self._tools.caches.nodes.wrote(key, record, index)
        self._tools.caches.nodes.notify({key})

    async def _judge(self, snapshot: Snapshot, plan: Plan) -> None:
        """Write the verdict, or take it back, once for all farms."""
        tools, key = self._tools, self._tools.keys.work("nodes", self._name)
        now, absent = snapshot.now, snapshot.absent_for or 0.0
        lost = plan.verdict == "lost"
        entry = await tools.client.read(key)
        before = codec.decode(Work, entry.value, key) if entry is not None else _NO_WORK
        work = msgspec.structs.replace(
            before, lost_since=now if lost else 0.0, absent_since=now - absent if lost else 0.0
        )
        value = codec.rewrite(work, entry.value) if entry is not None else codec.encode(work)
        agent = tools.keys.agent(self._name)
        # The agent that is there, or not, decides: not what a watch last said of it.
        writes = [operations.check_not_exists(agent)] if lost else [operations.get(agent)]
        writes.append(operations.cas(key, value, entry.modify_index if entry is not None else 0))
        index = await self._commit(f"node.{plan.verdict}", plan, writes, {"lost": not lost}, {"lost": lost})
        tools.caches.work.wrote(key, work, index)
        tools.caches.work.notify({key})
        await (self._report.lost(absent) if lost else self._report.back())
        log.warning("node.lost" if lost else "node.back", node=self._name, absent_s=round(absent, 1))

    async def _advance(self, snapshot: Snapshot, plan: Plan, drain: Drain) -> None:
        """Write the drain's next stage into the record that people read, and RC workers act on."""
        tools, key = self._tools, self._node_key
        entry = await tools.client.read(key)
        known = tools.caches.nodes.get(key)
        if entry is None or known is None or entry.modify_index != known.index or snapshot.draining is None:
            self._doubtful = True  # changed since it was planned from
            return
        record = msgspec.structs.replace(known.record, drain=drain)
        old = snapshot.draining
        index = await self._commit(
            "node.drain",
            plan,
            [operations.cas(key, codec.rewrite(record, entry.value), entry.modify_index, flags=entry.flags)],
            _changed(old, drain),
            _changed(drain, old),
        )
        tools.caches.nodes.wrote(key, record, index)
        tools.caches.nodes.notify({key})
        log.info("node.drain.advanced", node=self._name, stage=drain.stage, overdue=drain.overdue)

    async def _say(self, plan: Plan) -> Outcome:
        """Nothing to change: now there is time to tell people, as often as is useful to them."""
        writes, early = self._report.writes(plan.status), self._report.early()
        if writes and early > 0:
            return Outcome("after", early)
        if writes:
            await self._transact(writes)
            self._report.wrote(plan.status)
        if plan.held_back:
            return Outcome("frozen")
        if not plan.blocked and plan.again is None:
            return DONE
        return Outcome("blocked" if plan.blocked else "done", plan.again)

    async def _commit(
        self,
        action: str,
        plan: Plan,
        writes: list[Operation],
        before: dict[str, int | str | bool] | None = None,
        after: dict[str, int | str | bool] | None = None,
    ) -> int:
        """One transaction: fence, the record that was planned from, the change, the status, the audit.

        Returns the index of the commit.

        Raises:
            TransactionRejected: nothing was written: read again, plan again (R12).
        """
        tools = self._tools
        audit = Audit(
            at=tools.audit.now(),
            actor=f"farm/{tools.farm}",
            action=action,
            kind="nodes",
            id=self._name,
            name=self._name,
            before=before or {},
            after=after or {},
        )
        known = tools.caches.nodes.get(self._node_key)
        if known is not None and all(write.key != self._node_key for write in writes):
            writes = [*writes, operations.check_index(self._node_key, known.index)]
        entries = await self._transact(
            [*writes, *self._report.writes(plan.status), tools.audit.operation(audit)]
        )
        self._report.wrote(plan.status)
        return max(entry.modify_index for entry in entries)

    async def _transact(self, writes: list[Operation]) -> list[Entry]:
        """One fenced transaction.

        Raises:
            ClaimLost: the fence refused it. AccessDenied: Consul's ACL did.
            TransactionRejected: anything else did; nothing was written.
        """
        self._session.require()
        fence = self._claim.fence()
        try:
            return await self._tools.client.transaction([*fence, *writes])
        except TransactionRejected as error:
            for failure in error.errors:
                if "permission denied" in failure.what.lower():
                    raise AccessDenied(failure.what) from error
                if failure.index < len(fence):
                    raise ClaimLost(failure.what) from error
            raise


def _changed(drain: Drain, other: Drain) -> dict[str, int | str | bool]:
    """What of a drain differs from another one, for the audit."""
    stage: dict[str, int | str | bool] = {"drain": drain.stage} if drain.stage != other.stage else {}
    return {**stage, **({"overdue": drain.overdue} if drain.overdue != other.overdue else {})}
