"""Nodes as a kind of work, one item for each node, and its worker (R21)."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import structlog

from farmd.cache.caches import Caches
from farmd.farm.kind import Items
from farmd.farm.plan import Item
from farmd.farm.writer import Write
from farmd.nodes import facts as reading
from farmd.nodes import plan as planning
from farmd.nodes.facts import Absences, Plan, Snapshot, SystemPods
from farmd.runtime.wake import Wake
from farmd.work.context import Context
from farmd.work.kind import Kind
from farmd.work.model import Outcome
from farmd.work.worker import Worker
from store import codec, operations
from store.entry import Stored
from store.keys import Keys
from store.locks import Claim
from store.nodes import Drain, Node, NodeStatus
from store.sessions import Session
from store.words import count_of
from store.work import Work

# Wakes the workers of nodes at changes of their nodes, and of their pods while they drain.


class NodeWakers:
    """The wakers of this farm's node workers."""

    def __init__(self, caches: Caches, keys: Keys) -> None:
        self._wakers: dict[str, Wake] = {}
        self._observed: set[str] = set()
        verdicts = keys.work("nodes", "")

        def of_work(changed: set[str]) -> None:
            self.wake(keys.last_part(key) for key in changed if key.startswith(verdicts))

        def at(position: int) -> Callable[[set[str]], None]:
            def of_pods(changed: set[str]) -> None:
                if self._observed:
                    self.wake({key.split("/")[position] for key in changed} & self._observed)

            return of_pods

        def of_agents(changed: set[str]) -> None:
            self.wake(keys.last_part(key) for key in changed)

        caches.work.subscribe(of_work)
        caches.agents.subscribe(of_agents)  # its address may be doubted
        # The node is the last part but one of every pod's key.
        for tree in (caches.pods, caches.intent, caches.reality):
            tree.subscribe(at(-2))

    def attach(self, node: str, wake: Wake) -> None:
        """Set ``wake`` when something of this node's changed."""
        self._wakers[node] = wake

    def detach(self, node: str) -> None:
        """Undo ``attach``."""
        self._wakers.pop(node, None)
        self._observed.discard(node)

    def follow(self, node: str, *, pods: bool) -> None:
        """Note whether changes of its pods wake the node's worker."""
        (self._observed.add if pods else self._observed.discard)(node)

    def wake(self, nodes: Iterable[str]) -> None:
        """Wake those of the nodes' workers that are in this farm."""
        for node in nodes:
            if (wake := self._wakers.get(node)) is not None:
                wake.set()


# The worker of one node: gives up an absent agent for all farms (R21), and advances the drain.
#
# The transaction of the verdict checks that the agent's presence is missing, so that no farm with an old
# view can give up an agent that is present.

log = structlog.get_logger()

_THERE = {"lost_since": 0.0, "absent_since": 0.0}


class NodeWorker(Worker[Snapshot, Plan]):
    """Keeps one node while its claim lasts; an idle node costs no request."""

    __slots__ = ("_absences", "_system", "_watch")

    def __init__(
        self,
        kind: Kind,
        claim: Claim,
        session: Session,
        wake: Wake,
        watch: NodeWakers,
        absences: Absences,
        system: SystemPods,
    ) -> None:
        super().__init__(kind, claim, session, wake)
        self._watch = watch
        self._absences = absences
        self._system = system
        status, incidents = self.status.known, self.status.incidents
        if status is not None and status.state == "draining" and status.reason:
            incidents.inherit(self._drain)
        work = self.context.caches.work.get(self.context.keys.work(kind.name, claim.item))
        if work is not None and work.record.lost_since > 0:
            incidents.inherit(self._lost)  # whichever farm gave it up has told of it

    @property
    def _lost(self) -> str:
        """The incident key of a lost node."""
        return f"node_lost_{self.claim.item}"

    @property
    def _address(self) -> str:
        """The incident key of a node whose presence names another address than before."""
        return f"node_address_{self.claim.item}"

    @property
    def _drain(self) -> str:
        """The incident key of a drain past its deadline."""
        return f"node_drain_{self.claim.item}"

    def attach(self) -> None:
        """Have ``wake`` set by changes of the agent and, during a drain, of the pods."""
        self._watch.attach(self.claim.item, self.wake)

    def detach(self) -> None:
        """Undo ``attach``."""
        self._watch.detach(self.claim.item)

    async def reread(self) -> None:
        """Read the input of verdicts and drains again."""
        await reading.barrier(self.context.caches)

    async def read(self) -> Snapshot | Outcome:
        """The snapshot, also of a node that has an agent and no record yet."""
        stored = self.stored(self.context.caches.nodes)
        if stored is None and not self._absences.present(self.claim.item):
            return await self.gone()
        drains = isinstance(stored, Stored) and stored.record.draining is not None
        self._watch.follow(self.claim.item, pods=drains)  # before they are read: no change is missed
        known = self.status.known
        return await reading.read(
            self.claim.item,
            stored,
            known if isinstance(known, NodeStatus) else None,
            self._absences,
            self._system,
            self.kind,
        )

    def decide(self, snapshot: Snapshot) -> Plan:
        return planning.decide(snapshot)

    def describe(self, snapshot: Snapshot, plan: Plan) -> NodeStatus | None:
        """The status; a node without trouble needs none."""
        return plan.status

    # -- alerts ----------------------------------------------------------------------------------
    async def alert(self, snapshot: Snapshot, plan: Plan) -> float | None:
        """Fire and resolve the alerts of a lost node, of an address in doubt and of an overdue drain."""
        node, work, incidents = self.claim.item, snapshot.work, self.status.incidents
        absent = work.lost_since - work.absent_since
        lost = f"node {node} is lost: its agent was absent for {absent:.0f} s" if work.lost_since > 0 else ""
        await incidents.say(self._lost, lost, {"node": node})
        moved = self.context.fleet.addresses.doubt(node)
        await incidents.say(self._address, moved and f"node {node}: {moved}", {"node": node})
        if snapshot.draining is not None and snapshot.draining.overdue:
            left, why = len(snapshot.left or ()), f": {snapshot.waiting[0]}" if snapshot.waiting else ""
            text = f"drain of {node} is past its deadline, with {count_of(left, 'pod')} left{why}"
            if self._drain not in incidents:
                await incidents.say(self._drain, text, {"node": node, "left": str(left)})
        else:
            await incidents.end(self._drain)
        return self.context.fleet.addresses.told_for(node)

    # -- writes ----------------------------------------------------------------------------------
    async def act(self, snapshot: Snapshot, plan: Plan) -> Outcome:
        """Write one change; the next cycle confirms and reports it."""
        if plan.register:
            await self._register(snapshot, plan)
        elif plan.verdict:
            await self._judge(snapshot, plan)
        elif plan.drain is not None and snapshot.draining is not None and snapshot.node is not None:
            await self._advance(snapshot, plan, snapshot.node, snapshot.draining, plan.drain)
        return Outcome("after", 0.0)

    async def _register(self, snapshot: Snapshot, plan: Plan) -> None:
        """Write the record of a node whose agent is present; without a record its absence would go unnoticed.

        The transaction checks that the agent is present, so that a node which was forgotten meanwhile does
        not come back.
        """
        await self.writer.commit(
            operations.get(self.context.keys.agent(self.claim.item)),
            Write(self.key, Node(), 0, tree=self.context.caches.nodes),
            self.audit("node.register", planning.why(snapshot, plan)),
        )

    async def _judge(self, snapshot: Snapshot, plan: Plan) -> None:
        """Write the verdict, or take it back, once for all farms."""
        keys, node = self.context.keys, self.claim.item
        key, absent = keys.work(self.kind.name, node), snapshot.absent_for or 0.0
        lost = plan.verdict == "lost"
        since = {"lost_since": snapshot.now, "absent_since": snapshot.now - absent} if lost else _THERE
        entry = await self.context.client.read(key)
        before = codec.decode(Work, entry.value, key) if entry is not None else Work()
        work = msgspec.structs.replace(before, **since)
        index, raw = (entry.modify_index, entry.value) if entry is not None else (0, b"")
        # The transaction checks the agent's presence, because the watch may be old.
        decides = operations.check_not_exists if lost else operations.get
        await self.writer.commit(
            *self.stands(),
            decides(keys.agent(node)),
            Write(key, work, index, raw, tree=self.context.caches.work),
            self.audit(
                f"node.{plan.verdict}",
                planning.why(snapshot, plan),
                before={"lost": not lost},
                after={"lost": lost},
            ),
        )
        log.warning(f"node.{plan.verdict}", node=node, absent_s=round(absent, 1))

    async def _advance(self, snapshot: Snapshot, plan: Plan, node: Node, old: Drain, new: Drain) -> None:
        """Write the drain's next stage into the node's record, which people read and owners' workers act
        on.
        """
        entry = await self.context.client.read(self.key)
        if entry is None or entry.modify_index != self.index:
            self.writer.unsettled = True  # changed since it was planned from
            return
        record = msgspec.structs.replace(node, drain=new)
        await self.writer.commit(
            Write(self.key, record, self.index, entry.value, entry.flags, self.context.caches.nodes),
            self.audit(
                "node.drain",
                planning.why(snapshot, plan),
                before=planning.difference(old, new),
                after=planning.difference(new, old),
            ),
        )
        log.info("node.drain.advanced", node=self.claim.item, stage=new.stage, overdue=new.overdue)


# Nodes as a kind of work: one item for each node, so that all farms share one verdict (R21).

SWEEP_STALL_SECONDS = 180.0
_NO_LABELS: Mapping[str, str] = {}
"""All nodes share this: selectors do not choose among nodes."""


class Nodes(Kind):
    """The kind ``nodes``: every node that has a record or an agent."""

    name = "nodes"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        caches = context.caches
        self._watch = NodeWakers(caches, context.keys)
        self._system = SystemPods(context.client, context.keys)
        self._absences = Absences(
            caches,
            context.keys,
            context.clock,
            context.settings.lost_after,
            self._watch.wake,
            context.progress.loop("sweep", SWEEP_STALL_SECONDS),
            self.guard.look,
        )

    def records(self) -> Items:
        """The nodes that have a record or an agent."""
        caches = self.context.caches
        return Items((caches.nodes, caches.agents), self.context.keys, self._item)

    def background(self) -> Sequence[Coroutine[Any, Any, None]]:
        """The tasks of the kind, with the one sweep of absent agents."""
        return (*super().background(), self._absences.run())

    async def barrier(self, items: Sequence[str]) -> None:
        """Read the small trees that plans rest on, and these nodes' last statuses (R15)."""
        await reading.barrier(self.context.caches)
        await self.context.caches.failsafe.barrier()
        await self.recollection.read(items)

    def worker(self, claim: Claim, session: Session, wake: Wake) -> NodeWorker:
        self._absences.under(session)
        return NodeWorker(self, claim, session, wake, self._watch, self._absences, self._system)

    def _item(self, name: str) -> Item | None:
        caches, key = self.context.caches, self.context.keys.node(name)
        if (stored := caches.nodes.get(key)) is not None:
            return Item(name, stored.index, _NO_LABELS)
        if (error := caches.nodes.broken.get(key)) is not None:
            return Item(name, int(error.fields.get("index", 0)), broken=error.message)
        agents, agent = caches.agents, self.context.keys.agent(name)
        return Item(name, 0, _NO_LABELS) if agent in agents.entries or agent in agents.broken else None
