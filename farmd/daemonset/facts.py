"""The facts of one daemon set: its snapshot, and how it is read (R15)."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from farmd.daemonset.rivals import Contention, Rivals
from farmd.pods.state import PodState
from farmd.work.owned import ReplicaPlan, ReplicaSnapshot
from farmd.work.owner import ReplicaKind, ReplicaReader
from scheduler.feasibility import cramped
from scheduler.model import EVICTING, Assignment, FleetView, PlacementRequest
from scheduler.protocol import Scheduler
from store.daemonsets import DAEMON_SET_ID_LABEL, DaemonSet
from store.entry import Stored
from store.labels import POD_ID_LABEL
from store.manifests import Manifest
from store.manifests import asked as amounts
from store.pods import Place
from store.selectors import parse

# Finds the nodes that are eligible for a daemon set; the scheduler is asked again only about changed nodes.
#
# The verdict on a node depends on that node alone, unless the manifest has rules across nodes; then every
# question covers the whole fleet. So a converged daemon set costs nothing, and a changed node one verdict.

# A pod stays on a node that is given up: it may still run there, and belongs there when the node returns.
STAYING = frozenset({"agent_lost"})


def request(daemonset: DaemonSet, manifest: Manifest) -> PlacementRequest:
    """The request to the scheduler for a daemon set."""
    labels = {**daemonset.pod_labels, POD_ID_LABEL: manifest.id, DAEMON_SET_ID_LABEL: daemonset.id}
    return PlacementRequest(
        manifest=manifest,
        selector=parse(daemonset.node_selector),
        owner=daemonset.id,
        labels=labels,
        numbered=daemonset.numbered,
    )


class Verdicts:
    """The scheduler's verdict on each node: the codes of its reasons against the node, none if it is
    eligible.
    """

    __slots__ = ("_codes", "_key")

    def __init__(self) -> None:
        self._codes: dict[str, frozenset[str]] = {}
        self._key: Any = None

    async def refresh(
        self,
        scheduler: Scheduler,
        request: PlacementRequest,
        view: FleetView,
        changed: Collection[str],
        key: Any,
    ) -> bool:
        """Ask about the changed nodes; about all nodes at first, when ``key`` changed, and where rules across
        nodes apply. Returns whether anything was asked.

        Raises:
            SchedulerError: no trustworthy answer; all is asked again the next time.
        """
        undecided = {node for node, codes in self._codes.items() if "contended" in codes}
        stale = {*changed, *undecided}
        if key == self._key and not stale:
            return False
        whole = key != self._key or across_nodes(request)
        self._key = None
        if not whole:
            request = msgspec.structs.replace(request, among=frozenset(stale & view.keys()))
        answer = await scheduler.eligible_nodes(request, view)
        if whole:
            self._codes.clear()
        for node in stale:
            self._codes.pop(node, None)
        self._codes.update((node, frozenset()) for node in answer.eligible)
        for node, reasons in answer.refused.items():
            self._codes[node] = frozenset(reason.code for reason in reasons)
        self._key = key
        return True

    def eligible(self) -> set[str]:
        """Nodes that should have a pod."""
        return {node for node, codes in self._codes.items() if not codes}

    def keeps(self, node: str) -> bool:
        """Whether a pod on the node may stay."""
        codes = self._codes.get(node)
        return codes is not None and not codes & (EVICTING - STAYING)

    def draining(self, node: str) -> bool:
        """Whether a drain, which is a person's command on that very node, sends its pod away."""
        return "draining" in self._codes.get(node, frozenset())

    def refused(self) -> Mapping[str, int]:
        """How many nodes have each reason against them."""
        return Counter(code for codes in self._codes.values() for code in codes)


def one_a_node(daemonset: DaemonSet, pods: Mapping[Place, PodState]) -> dict[Place, PodState]:
    """The pods, of which at most one a node may stay: one that serves first.

    A manager that replaced pods side by side may leave two on a node (R14).
    """
    wanted = daemonset.manifest, daemonset.restart

    def order(place: Place) -> tuple[bool, bool, bool, Place]:
        state = pods[place]
        return not state.available, not state.healthy, state.outdated(*wanted), place

    seen, found = set[str](), dict(pods)
    for place in sorted((place for place in pods if pods[place].retained), key=order):
        if place[0] in seen:
            found[place] = msgspec.structs.replace(pods[place], retained=False)
        seen.add(place[0])
    return found


def paired(
    daemonset: DaemonSet, pods: Mapping[Place, PodState], renewed: Collection[str]
) -> dict[Place, PodState]:
    """The pods, of which at most two a node may stay: one of the version that the node shall run, and another
    one until that is available.
    """
    nodes, found = dict[str, list[Place]](), dict(pods)
    for place in sorted(pods, key=lambda place: (not pods[place].available, not pods[place].healthy, place)):
        if pods[place].retained:
            nodes.setdefault(place[0], []).append(place)
    for node, places in nodes.items():
        wanted = daemonset.coming if node in renewed else daemonset.manifest
        right = [place for place in places if pods[place].pod.record.manifest == wanted]
        other = [place for place in places if place not in right]
        stay = right[:1] if right and pods[right[0]].available else right[:1] + other[:1]
        for place in set(places).difference(stay):
            found[place] = msgspec.structs.replace(pods[place], retained=False)
    return found


def across_nodes(request: PlacementRequest) -> bool:
    """Whether pods on other nodes affect a node's verdict."""
    placement = request.manifest.placement
    return bool(placement.spread or placement.anti_affinity or placement.pod_affinity)


# The snapshot and the plan of a daemon set.

Fact = Literal["room", "places"]


@dataclass(frozen=True, slots=True)
class Need:
    """The fact that the scheduler must supply before the plan; ``count``: the number of places."""

    fact: Fact
    count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot(ReplicaSnapshot):
    """One daemon set and its fleet at one moment.

    ``vacant`` are eligible nodes without a pod of it, ``offer`` the places there from the scheduler (as many
    as may be taken now). ``refused`` counts the ineligible nodes by reason code; ``nodes`` is the number of
    all nodes. ``contention`` names the older daemon set that it contends with. ``edited``: the record changed
    since a plan last took in all that it says. ``renewed`` are the nodes that shall run the version that is
    coming, ``unfit`` those with a pod that cannot run it.
    """

    daemonset: DaemonSet
    vacant: tuple[str, ...] = ()
    offer: tuple[Assignment, ...] = ()
    nodes: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)
    contention: str = ""
    edited: bool = False
    renewed: frozenset[str] = frozenset()
    unfit: frozenset[str] = frozenset()

    def outdates(self, place: Place) -> bool:
        """Whether a pod runs another manifest than its node shall run, or must be restarted."""
        daemonset, state = self.daemonset, self.pods[place]
        if place[0] in self.renewed:
            return state.outdated(daemonset.coming, daemonset.restart)
        if daemonset.coming_to and state.pod.record.manifest in daemonset.superseded:
            return False  # it waits for the version that is coming
        return state.outdated(daemonset.manifest, daemonset.restart)

    @property
    def replaced(self) -> frozenset[str]:
        """The nodes that have a pod of the version that they shall run."""
        return frozenset(place[0] for place in self.kept if not self.outdates(place))

    @property
    def besides(self) -> tuple[str, ...]:
        """The nodes on which a pod is to start beside one of another version, which serves or may serve."""
        daemonset = self.daemonset
        if not daemonset.coming_beside or daemonset.coming_held:
            return ()
        serve = {
            place[0]
            for place, state in self.kept.items()
            if self.outdates(place) and not (state.absent or state.down or state.foreign(daemonset.id))
        }
        return tuple(sorted(serve - self.replaced))

    @property
    def waits_for_room(self) -> bool:
        """Whether other changes of reservations are in flight, or outdated pods have no room."""
        return bool(self.refused.get("contended") or self.cramped)

    @property
    def kept(self) -> dict[Place, PodState]:
        """Pods that may stay, on nodes that are not given up."""
        return {place: state for place, state in self.pods.items() if state.retained and state.lost is None}

    @property
    def outdated(self) -> list[Place]:
        """Pods that run another manifest than they should, or must be restarted."""
        return [place for place in self.pods if self.outdates(place)]

    @property
    def desired(self) -> int:
        """How many nodes should have a pod: eligible ones, and those that may keep theirs."""
        if self.daemonset.deleting:
            return 0
        return len(self.vacant) + len({node for node, _ in self.kept})


Plan = ReplicaPlan

# What a manifest asks for and a node cannot do, whatever room it has.
UNFIT = frozenset({"constraint", "runtime", "allow", "identity", "feature", "registry"})


def renewed(
    daemonset: DaemonSet,
    pods: Mapping[Place, PodState],
    vacant: Collection[str],
    canaries: Collection[str],
    unfit: Collection[str],
) -> frozenset[str]:
    """The nodes that shall run the version that is coming: those that have it stay, then those with one that
    a person superseded come first, then canaries.

    A node that nobody hears of is not chosen, so that it does not hold up the others; it gets the version
    when it returns.
    """
    stay = [(node, state) for (node, _), state in pods.items() if state.retained]  # a node may have two
    have = {node for node, state in stay if state.pod.record.manifest == daemonset.coming}
    bad = {node for node, state in stay if state.pod.record.manifest in daemonset.superseded}
    away = {node for node, state in stay if state.absent or state.lost is not None}
    counted = ({node for node, _ in stay} | set(vacant)) - (away - have)
    ranks = [have, bad, set(canaries)]
    order = sorted(counted.difference(unfit), key=lambda node: (*(node not in rank for rank in ranks), node))
    return frozenset(order[: daemonset.renewed(len(counted))])


def by_version(snapshot: Snapshot, plan: Plan) -> tuple[tuple[DaemonSet, Plan], tuple[DaemonSet, Plan]]:
    """The changes of a plan by the manifest that pods get: the daemon set's, and the one that is coming."""
    daemonset, renewed = snapshot.daemonset, snapshot.renewed
    old, new = [
        dataclasses.replace(
            plan,
            additions=tuple(goal for goal in plan.additions if (goal.node in renewed) == coming),
            replacements=tuple(place for place in plan.replacements if (place[0] in renewed) == coming),
            restarts=tuple(place for place in plan.restarts if (place[0] in renewed) == coming),
        )
        for coming in (False, True)
    ]
    later = dataclasses.replace(new, removals=(), repairs=())
    return (daemonset, old), (coming_of(daemonset), later)


def coming_of(daemonset: DaemonSet) -> DaemonSet:
    """The daemon set with the version that is coming as its own."""
    return msgspec.structs.replace(daemonset, manifest=daemonset.coming or daemonset.manifest, coming="")


# Reads the input of one daemon set's decision: its record, its pods, the scheduler's verdicts (R15).
#
# A converged daemon set costs no request to the store or the scheduler until a node changes.


@dataclass(frozen=True, slots=True)
class Facts:
    """A snapshot, and what its plan is carried out with; ``view`` is what the places were chosen from.

    ``request`` is the request to the scheduler; None: the daemon set wants no pods. ``coming`` is that for
    the version that is coming.
    """

    stored: Stored[DaemonSet]
    snapshot: Snapshot
    view: FleetView
    request: PlacementRequest | None = None
    coming: PlacementRequest | None = None


class Reader(ReplicaReader[Facts]):
    """Reads for one daemon set under one claim."""

    __slots__ = ("_contention", "_verdicts", "settled")

    def __init__(self, kind: ReplicaKind, item: str, rivals: Rivals) -> None:
        super().__init__(kind, item)
        self._verdicts = Verdicts()
        self._contention = Contention(rivals, self.context.scheduler)
        stored = kind.tree.get(self.context.keys.record(kind.name, item))
        # ModifyIndex of the record that a plan took in as a whole. A record that is older than the claim
        # counts as taken in: nobody edited it just now.
        self.settled = stored.index if stored is not None else 0

    async def read(self, stored: Stored[DaemonSet]) -> Facts:
        """The daemon set and its fleet; facts that are needed only sometimes are left to ``answer``.

        Raises:
            NotFound: its manifest is gone. SchedulerError: the scheduler has no trustworthy answer.
        """
        context, daemonset = self.context, stored.record
        request = await self.request(daemonset) if daemonset.wants_pods else None
        # Nothing is awaited between the view and the question to the scheduler: a change that the view lacks
        # is asked about later.
        view = context.fleet.view()
        snapshot = Snapshot(
            daemonset=daemonset,
            pods={},
            nodes=len(view),
            frozen=self.guard.frozen(),
            commanded=self.guard.commanded(stored.index),
            edited=stored.index != self.settled,
            now=context.clock.now(),
            unread=frozenset({"room", "places"}),
        )
        if request is None:
            return self._unwanted(stored, snapshot, view)
        snapshot = await self._judged(stored, snapshot, request, view)
        pods = {place: self._judgement(place[0], state) for place, state in self.pods(daemonset).items()}
        if daemonset.numbered and not daemonset.coming_beside:
            pods = one_a_node(daemonset, pods)
        vacant = self._verdicts.eligible() - {node for node, _ in pods}
        snapshot = dataclasses.replace(snapshot, pods=pods, vacant=tuple(sorted(vacant)))
        if not daemonset.coming:
            return Facts(stored, snapshot, view, request)
        return await self._coming(Facts(stored, snapshot, view, request))

    async def _coming(self, reading: Facts) -> Facts:
        """The reading with the nodes that shall run the version that is coming.

        The scheduler is asked in each cycle, because a rollout is short. Where the node may keep its pod, the
        reasons against the new version are those of the manifest alone.
        """
        snapshot, daemonset = reading.snapshot, reading.stored.record
        coming = await self.request(coming_of(daemonset))
        own = msgspec.structs.replace(coming, replaces=frozenset({daemonset.id}))
        answer = await self.context.scheduler.eligible_nodes(own, reading.view)
        refused = {node: {reason.code for reason in found} for node, found in answer.refused.items()}
        unfit = {node for node, codes in refused.items() if codes & UNFIT}
        selector = parse(daemonset.canary_selector) if daemonset.canary_selector else None
        canaries = {name for name, node in reading.view.items() if selector and selector.matches(node.labels)}
        chosen = renewed(daemonset, snapshot.pods, snapshot.vacant, canaries, unfit)
        here = frozenset(node for node, _ in snapshot.pods if node in unfit)
        if daemonset.coming_beside:
            snapshot = dataclasses.replace(snapshot, pods=paired(daemonset, snapshot.pods, chosen))
        return dataclasses.replace(
            reading, snapshot=dataclasses.replace(snapshot, renewed=chosen, unfit=here), coming=coming
        )

    def _unwanted(self, stored: Stored[DaemonSet], snapshot: Snapshot, view: FleetView) -> Facts:
        """The reading of a daemon set that is disabled or being deleted, for which no verdict matters."""
        # When it wants pods again its record has changed, and all nodes are asked about.
        self.context.fleet.interests.forget(self.item)
        found, running = self.pods(stored.record), self.running(stored.record)
        pods = {place: msgspec.structs.replace(state, draining="") for place, state in found.items()}
        return Facts(stored, dataclasses.replace(snapshot, pods=pods, running=running), view)

    async def answer(self, reading: Facts, need: Need) -> Facts:
        """Ask the scheduler for places for so many pods, or which outdated pods have room (R17)."""
        snapshot, request = reading.snapshot, reading.request
        assert request is not None
        snapshot = dataclasses.replace(snapshot, unread=snapshot.unread - {need.fact})
        if need.fact == "room":
            places, new = snapshot.outdated, snapshot.renewed
            tight = cramped([place for place in places if place[0] not in new], request, reading.view)
            if reading.coming is not None:
                tight |= cramped([place for place in places if place[0] in new], reading.coming, reading.view)
            return dataclasses.replace(reading, snapshot=dataclasses.replace(snapshot, cramped=tight))
        found = list[Assignment]()
        vacant, besides, new = set(snapshot.vacant), set(snapshot.besides), snapshot.renewed
        for each, nodes, most in (
            (request, vacant - new, 1),
            (reading.coming, vacant & new, 1),
            (request, besides - new, 2),
            (reading.coming, besides & new, 2),
        ):
            if each is not None and nodes and len(found) < need.count:
                asked = msgspec.structs.replace(each, among=frozenset(nodes), replicas_per_node=most)
                answer = await self.context.scheduler.allocate_nodes(
                    asked, need.count - len(found), reading.view
                )
                found += answer.assignments
        return dataclasses.replace(reading, snapshot=dataclasses.replace(snapshot, offer=tuple(found)))

    async def _judged(
        self, stored: Stored[DaemonSet], snapshot: Snapshot, request: PlacementRequest, view: FleetView
    ) -> Snapshot:
        context, manifest = self.context, request.manifest
        changed = context.fleet.interests.changed(
            self.item, manifest.id, resources=bool(amounts(manifest)), pods=across_nodes(request)
        )
        asked = await self._verdicts.refresh(context.scheduler, request, view, changed, stored.index)
        contention = await self._contention.with_elders(stored, request, view, self.request, again=asked)
        return dataclasses.replace(snapshot, refused=self._verdicts.refused(), contention=contention)

    def _judgement(self, node: str, state: PodState) -> PodState:
        retained = self._verdicts.keeps(node)
        draining = "gentle" if not retained and self._verdicts.draining(node) else ""
        return msgspec.structs.replace(state, retained=retained, draining=draining)
