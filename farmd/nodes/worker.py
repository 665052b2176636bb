"""The worker of one node: gives up its agent for all farms (R21), and advances its drain.

Read, decide, execute; the whole state each time. An idle node costs a sleeping task and no timer. The
verdict is written only while the agent's presence is missing in the very same transaction, so that no
farm with an old view can give up an agent that is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import structlog

from farmd.farm.cycles import Cycles, Outcome
from farmd.farm.errors import ClaimLost
from farmd.nodes import plan as planning
from farmd.nodes import reading, reasons
from farmd.nodes.model import Plan, Snapshot
from farmd.nodes.report import Reporter
from farmd.wake import Wake
from store import codec, operations
from store.audit import Audit
from store.entry import Entry
from store.errors import StoreError, TransactionRejected
from store.locks import Claim
from store.nodes import Drain, Node, NodeStatus
from store.operations import Operation
from store.sessions import Session
from store.work import Work

if TYPE_CHECKING:
    from farmd.nodes.kind import Tools

log = structlog.get_logger()

KIND = "nodes"
_THERE = {"lost_since": 0.0, "absent_since": 0.0}


class NodeWorker:
    """Looks after one node while its claim lasts."""

    __slots__ = (
        "_claim",
        "_cycles",
        "_key",
        "_name",
        "_reporter",
        "_session",
        "_tools",
        "_unsettled",
        "_wake",
    )

    def __init__(self, claim: Claim, session: Session, tools: Tools) -> None:
        self._claim = claim
        self._session = session
        self._tools = tools
        self._name = claim.item
        self._key = tools.keys.node(claim.item)
        self._wake = Wake()
        self._unsettled = False
        self._reporter = Reporter(claim.item, tools)
        self._cycles = Cycles(
            KIND, self._name, self._wake, tools.clock, tools.rng, tools.recorder, self._tell, tools.turns
        )

    async def run(self) -> None:
        """Work until cancelled.

        Raises:
            ClaimLost: the lock is no longer this claim's.
        """
        watch = self._tools.watch
        watch.attach(self._name, self._wake.set)
        try:
            async for outcome in self._cycles.run(self._cycle):
                watch.block(self._name, outcome.result == "blocked")
        finally:
            watch.detach(self._name)

    async def _tell(self, reason: str) -> None:
        """Say what only people can mend; what cannot be written either is tried again with the rest."""
        tools = self._tools
        index = reading.index(self._name, tools)
        status = NodeStatus(
            state="blocked", reason=reason, since=tools.clock.now(), farm=tools.farm, record=index
        )
        try:
            await self._say(status, index)
        except StoreError as error:
            log.debug("status.not_written", kind=KIND, item=self._name, code=error.code)

    async def _cycle(self) -> Outcome:
        if self._unsettled:
            await self._tools.barrier()
            self._unsettled = False
        snapshot = await reading.read(self._name, self._reporter.status, self._tools)
        if snapshot is None:
            await self._reporter.over()
            return Outcome("done", None, "the node is gone")
        plan = planning.decide(snapshot)
        pods, held_back = snapshot.draining is not None, bool(plan.held_back)
        self._tools.watch.follow(self._name, pods=pods, held_back=held_back)
        await self._reporter.alert(snapshot, plan)
        try:
            return await self._execute(snapshot, plan)
        except TransactionRejected as error:
            return self._cycles.rejected(error.message)

    # -- execute -------------------------------------------------------------------------------
    async def _execute(self, snapshot: Snapshot, plan: Plan) -> Outcome:
        if plan.register:
            await self._register(snapshot, plan)
        elif plan.verdict:
            await self._judge(snapshot, plan)
        elif plan.drain is not None:
            await self._advance(snapshot, plan, plan.drain)
        else:
            # Nothing to change: now there is time to tell people, as often as is useful to them.
            due = await self._say(plan.status, snapshot.index)
            after = min((at for at in (due, plan.again) if at is not None), default=None)
            if plan.held_back:
                return Outcome("frozen", due, plan.held_back)
            return Outcome("blocked" if plan.blocked else "done", after)
        return Outcome("after", 0.0)  # what was written is confirmed by one more look

    async def _register(self, snapshot: Snapshot, plan: Plan) -> None:
        """A node whose record somebody deleted while its agent lives: without one nobody would miss it.

        The agent that is there, or not, decides: who was forgotten meanwhile does not come back by this.
        """
        tools, record = self._tools, Node()
        agent = operations.get(tools.keys.agent(self._name))
        writes = [agent, operations.create(self._key, codec.encode(record))]
        index = await self._commit("node.register", snapshot, plan, writes)
        tools.caches.nodes.wrote(self._key, record, index)
        tools.caches.nodes.notify({self._key})

    async def _judge(self, snapshot: Snapshot, plan: Plan) -> None:
        """Write the verdict, or take it back, once for all farms."""
        tools, key = self._tools, self._tools.keys.work(KIND, self._name)
        lost, absent = plan.verdict == "lost", snapshot.absent_for or 0.0
        since = {"lost_since": snapshot.now, "absent_since": snapshot.now - absent} if lost else _THERE
        entry = await tools.client.read(key)
        before = codec.decode(Work, entry.value, key) if entry is not None else Work()
        work = msgspec.structs.replace(before, **since)
        value = codec.rewrite(work, entry.value) if entry is not None else codec.encode(work)
        # The agent that is there, or not, decides: not what a watch last said of it.
        decides = operations.check_not_exists if lost else operations.get
        writes = [
            self._stands(snapshot.index),
            decides(tools.keys.agent(self._name)),
            operations.cas(key, value, entry.modify_index if entry is not None else 0),
        ]
        action = f"node.{plan.verdict}"
        index = await self._commit(action, snapshot, plan, writes, {"lost": not lost}, {"lost": lost})
        tools.caches.work.wrote(key, work, index)
        tools.caches.work.notify({key})
        await self._reporter.verdict(work)
        log.warning(action, node=self._name, absent_s=round(absent, 1))

    async def _advance(self, snapshot: Snapshot, plan: Plan, drain: Drain) -> None:
        """Write the drain's next stage into the record that people read, and RC workers act on."""
        tools, old = self._tools, snapshot.draining
        entry = await tools.client.read(self._key)
        if entry is None or entry.modify_index != snapshot.index or snapshot.node is None or old is None:
            self._unsettled = True  # changed since it was planned from
            return
        record = msgspec.structs.replace(snapshot.node, drain=drain)
        value = codec.rewrite(record, entry.value)
        index = await self._commit(
            "node.drain",
            snapshot,
            plan,
            [operations.cas(self._key, value, entry.modify_index, flags=entry.flags)],
            reasons.difference(old, drain),
            reasons.difference(drain, old),
        )
        tools.caches.nodes.wrote(self._key, record, index)
        tools.caches.nodes.notify({self._key})
        log.info("node.drain.advanced", node=self._name, stage=drain.stage, overdue=drain.overdue)

    async def _say(self, status: NodeStatus | None, index: int) -> float | None:
        """Write the status if it says something else; the seconds to wait when it is too early for that.

        ``index`` is that of the record that it speaks of: no status outlives its node.
        """
        if not (writes := self._reporter.writes(status)):
            return None
        if (early := self._reporter.early()) > 0:
            return early
        await self._transact([self._stands(index), *writes])
        self._reporter.wrote(status)
        return None

    async def _commit(
        self,
        action: str,
        snapshot: Snapshot,
        plan: Plan,
        writes: list[Operation],
        before: reasons.Fields | None = None,
        after: reasons.Fields | None = None,
    ) -> int:
        """One transaction: fence, change, status and audit; returns the index of the commit.

        Raises:
            TransactionRejected: nothing was written: read again, plan again (R12).
        """
        tools = self._tools
        audit = Audit(
            at=tools.audit.now(),
            actor=f"farm/{tools.farm}",
            action=action,
            kind=KIND,
            id=self._name,
            name=self._name,
            reason=reasons.why(snapshot, plan),
            before=before or {},
            after=after or {},
        )
        writes += self._reporter.writes(plan.status)
        entries = await self._transact([*writes, tools.audit.operation(audit)])
        self._reporter.wrote(plan.status)
        return max(entry.modify_index for entry in entries)

    def _stands(self, index: int) -> Operation:
        """The check that the node's record is still the one that was read."""
        return operations.check_index(self._key, index) if index else operations.check_not_exists(self._key)

    async def _transact(self, writes: list[Operation]) -> list[Entry]:
        """One fenced transaction; until it is answered nothing else is planned.

        Raises:
            ClaimLost: the fence refused it.
            TransactionRejected: anything else did; nothing was written.
        """
        self._session.require()
        self._unsettled = True
        try:
            entries = await self._tools.client.transaction([*self._claim.fence(), *writes])
        except TransactionRejected as error:
            if self._claim.refused(error):
                raise ClaimLost(str(error)) from error
            raise
        self._unsettled = False
        return entries
