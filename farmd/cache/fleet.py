"""Indexes over the shared caches for the workers' lookups, updated at each change (the cost of a decision
grows with what changed, never with the fleet).

It also wakes the workers that a change concerns: the owner of a pod, an intent or a reality; for a changed
node, the owners of its pods; and every owner that waits for places, when room may have become free. An owner
that depends on other nodes follows them (``interests``).

An intent without a pod keeps its place for its owner, even if it does not decode. So does a pod that does not
decode: no other owner may have the place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from farmd.cache.agents import Addresses, Answers
from farmd.cache.caches import Caches
from farmd.runtime.wake import Wake
from scheduler.fleet import Fleet
from scheduler.ledger import Ledger
from scheduler.model import FleetView
from store.entry import Stored
from store.errors import RecordInvalid
from store.keys import Keys
from store.nodes import Drain
from store.pods import Place, Pod, PodKey
from store.reality import Glance, Intent, fails

# Wakes owners that depend on all nodes, and collects for each which nodes changed.
#
# Changes are collected until the owner's worker asks: however many come at once, they cost one question.


@dataclass(slots=True)
class _Interest:
    """``resources``: reservations matter. ``pods``: all pods matter, not only those of one instance."""

    instance: str = ""
    resources: bool = False
    pods: bool = False
    changed: set[str] = field(default_factory=set)


class Interests:
    """The owners that follow all nodes, and what changed for each since its last question."""

    def __init__(self, caches: Caches, keys: Keys, wake: Callable[[set[str]], None]) -> None:
        self._wake = wake
        self._interests: dict[str, _Interest] = {}
        verdicts = keys.work("nodes", "")

        def of_nodes(changed: set[str]) -> None:
            self._tell(set(map(keys.last_part, changed)), lambda _: True)

        def of_work(changed: set[str]) -> None:
            of_nodes({key for key in changed if key.startswith(verdicts)})

        def of_reservations(changed: set[str]) -> None:
            self._tell(set(map(keys.last_part, changed)), lambda interest: interest.resources)

        caches.nodes.subscribe(of_nodes)
        caches.agents.subscribe(of_nodes)
        caches.work.subscribe(of_work)
        caches.reserved.subscribe(of_reservations)
        for tree in (caches.pods, caches.intent):
            tree.subscribe(self._places)

    def changed(self, owner: str, instance: str, *, resources: bool, pods: bool) -> set[str]:
        """The nodes that changed since the last call. From now on the owner is woken by changes of nodes,
        of pods and intents of that instance, and if it says so of reservations and of all pods.
        """
        before = self._interests.get(owner)
        self._interests[owner] = _Interest(instance, resources, pods)
        return before.changed if before is not None else set()

    def forget(self, owner: str) -> None:
        """Stop following nodes for an owner."""
        self._interests.pop(owner, None)

    def _tell(self, nodes: set[str], concerns: Callable[[_Interest], bool]) -> None:
        if not nodes:
            return
        owners = {owner for owner, interest in self._interests.items() if concerns(interest)}
        for owner in owners:
            self._interests[owner].changed |= nodes
        self._wake(owners)

    def _places(self, changed: set[str]) -> None:
        """Node and instance are the last two parts of the keys of pods and intents."""
        places = [key.rsplit("/", 2)[1:] for key in changed] if self._interests else []
        owners = set()
        for owner, interest in self._interests.items():
            nodes = {node for node, instance in places if interest.pods or instance == interest.instance}
            if nodes:
                interest.changed |= nodes
                owners.add(owner)
        self._wake(owners)


# Follows the processes that nodes still run for owners that are being deleted.
#
# An owner is followed from the first question about it until ``forget``: one pass over all realities, then
# only changes. The owner's record stays until the processes are gone, so each end wakes its worker.

NAMED_AT_MOST = 3


class Processes:
    """Places by owner, as the agents reported last. ``lost``: since when a node is given up (0: it is
    not).
    """

    def __init__(
        self, caches: Caches, keys: Keys, lost: Callable[[str], float], wake: Callable[[set[str]], None]
    ) -> None:
        self._caches = caches
        self._keys = keys
        self._lost = lost
        self._wake = wake
        self._followed: dict[str, set[Place]] = {}
        caches.reality.subscribe(self._changed)
        caches.work.subscribe(self._verdicts)

    def of(self, owner: str) -> list[Place]:
        """The places where processes of an owner run, or may run: on nodes that are not given up (R21)."""
        return [place for place in self.known(owner) if not self._done(place)]

    def known(self, owner: str) -> list[Place]:
        """The same, with the places of processes that ended for good and whose agents still say how."""
        if owner not in self._followed:
            self._followed[owner] = {
                self._keys.reality_parts(key)
                for key, stored in self._caches.reality.entries.items()
                if stored.record.owner == owner
            }
        return sorted(place for place in self._followed[owner] if not self._lost(place[0]))

    def told(self, owner: str) -> str:
        """The processes of an owner as one line for people; empty if there are none."""
        places = self.of(owner)
        if not places:
            return ""
        names = ", ".join("/".join(place) + self._absent(place[0]) for place in places[:NAMED_AT_MOST])
        more = f" and {len(places) - NAMED_AT_MOST} more" if len(places) > NAMED_AT_MOST else ""
        return f"waiting until {len(places)} process{'es' * (len(places) > 1)} ended: {names}{more}"

    def _done(self, place: Place) -> bool:
        stored = self._caches.reality.get(self._keys.reality(*place))
        return stored is not None and stored.record.phase == "done"

    def forget(self, owner: str) -> None:
        """Stop following an owner, because its worker ended."""
        self._followed.pop(owner, None)

    def _absent(self, node: str) -> str:
        key, agents = self._keys.agent(node), self._caches.agents
        return "" if key in agents.entries or key in agents.broken else " (its agent is absent)"

    def _changed(self, changed: set[str]) -> None:
        if not self._followed:
            return
        for key in changed:
            place, stored = self._keys.reality_parts(key), self._caches.reality.get(key)
            for owner, places in self._followed.items():
                if stored is not None and stored.record.owner == owner:
                    places.add(place)
                    if stored.record.phase == "done":
                        self._wake({owner})
                elif place in places:
                    places.discard(place)
                    self._wake({owner})

    def _verdicts(self, changed: set[str]) -> None:
        """Wake owners of processes on nodes that were given up, because those are not waited for."""
        nodes = {self._keys.last_part(key) for key in changed if key.startswith(self._keys.work("nodes", ""))}
        if nodes and self._followed:
            self._wake(
                {owner for owner, places in self._followed.items() if any(at[0] in nodes for at in places)}
            )


K = TypeVar("K")
T = TypeVar("T")
_NO_POD = Pod(manifest="")
# An owner with more pods has an index of them by place, which takes five times the memory.
FEW_PODS = 16


def _drop(index: dict[str, dict[K, T]], owner: str, key: K) -> None:
    if owner in index:
        index[owner].pop(key, None)
        if not index[owner]:
            del index[owner]


class FleetIndex:
    """Indexes over a farm's caches, and the wakers of its workers."""

    def __init__(self, caches: Caches, keys: Keys) -> None:
        self._caches = caches
        self._keys = keys
        self._fleet = Fleet()
        self._pods: dict[str, dict[Place, Stored[Pod]] | tuple[Stored[Pod], ...]] = {}
        self._wakers: dict[str, Wake] = {}
        self._attached: dict[str, set[str]] = {}
        self._followers: dict[str, dict[str, Wake]] = {}
        self._broken: dict[str, dict[Place, RecordInvalid]] = {}
        self._bare: dict[Place, str] = {}
        self._unschedulable: set[str] = set()
        self._failing: set[str] = set()
        self.ledger = Ledger()
        self.processes = Processes(caches, keys, self.lost_since, self.wake)
        self.interests = Interests(caches, keys, self.wake)
        self.addresses = Addresses(caches, keys)
        self.answers = Answers(caches, keys)
        caches.on_forget(self.ledger.forget)
        caches.pods.subscribe(self._pods_changed)
        caches.intent.subscribe(self._intents_changed)
        caches.reality.subscribe(self._realities_changed)
        caches.nodes.subscribe(self._nodes_changed)
        caches.agents.subscribe(self._agents_changed)
        caches.reserved.subscribe(self._reserved_changed)
        caches.work.subscribe(self._work_changed)

    # -- looking things up ---------------------------------------------------------------------
    def pods(self, owner: str) -> Mapping[Place, Stored[Pod]]:
        """The pods of an owner, by place."""
        return self._by_place(self._pods.get(owner, ()))

    def _by_place(self, pods: dict[Place, Stored[Pod]] | tuple[Stored[Pod], ...]) -> dict[Place, Stored[Pod]]:
        if isinstance(pods, dict):
            return pods
        return {self._keys.pod_parts(pod.key)[1:]: pod for pod in pods}

    def pods_here(self, kind: str) -> int:
        """How many pods of one kind the workers of this farm own.

        A kind's removal budget is a share of these: farms that each took a share of all pods would together
        empty the fleet.
        """
        return sum(len(self._pods.get(owner, ())) for owner in self._attached.get(kind, ()))

    def intent(self, place: Place) -> Stored[Intent] | None:
        """The intent at a place."""
        return self._caches.intent.get(self._keys.intent(*place))

    def leftovers(self, owner: str) -> list[Place]:
        """The places that an owner's intent keeps although no pod of any owner is recorded there."""
        return sorted(place for place, at in self._bare.items() if at == owner)

    def unreadable(self, place: Place) -> bool:
        """Whether the intent at a place does not decode, so that its owner is unknown."""
        return self._keys.intent(*place) in self._caches.intent.broken

    def broken_pod(self, owner: str) -> RecordInvalid | None:
        """The error of a pod of the owner that does not decode; leaving the pod out would look like its
        absence.
        """
        return next(iter(self._broken.get(owner, {}).values()), None)

    def reality(self, place: Place) -> Glance | None:
        """The reality at a place."""
        stored = self._caches.reality.get(self._keys.reality(*place))
        return stored.record if stored is not None else None

    def view(self) -> FleetView:
        """All nodes with their pods, and with the changes that this process's own workers are making
        (R17).
        """
        return self.ledger.overlay(self._fleet.view())

    def lost_since(self, node: str) -> float:
        """Since when the node is given up (seconds since the epoch); 0: it is not (R21)."""
        stored = self._caches.work.get(self._keys.work("nodes", node))
        return stored.record.lost_since if stored is not None else 0.0

    def present(self, node: str) -> bool:
        """Whether the node's agent is present; a record of a newer version counts."""
        return self._caches.agents.holds(self._keys.agent(node))

    def stated(self, node: str) -> Mapping[str, str]:
        """The labels that its agent stated last; none if it is given up, or was not seen by this farm."""
        return self._fleet.stated(node)

    def drain(self, node: str) -> Drain | None:
        """The node's drain, if any."""
        stored = self._caches.nodes.get(self._keys.node(node))
        return stored.record.drain if stored is not None else None

    def failing(self) -> tuple[int, int]:
        """How many instances fail their health check or do not stay up, and how many there are."""
        return len(self._failing), len(self._caches.reality.entries)

    @contextmanager
    def expecting(self, owner: str, places: Iterable[Place]) -> Iterator[None]:
        """Count pods on their nodes already while they are being placed.

        Workers that choose at the same moment would otherwise all find the same node the emptiest (W25).
        These pods hold no place, because the outcome is not known yet.
        """
        coming = [PodKey("", node, f"coming-{owner}-{instance}") for node, instance in places]
        for key in coming:
            self._fleet.set_pod(key, _NO_POD)
        try:
            yield
        finally:
            for key in coming:
                self._fleet.set_pod(key, None)

    # -- waking workers ------------------------------------------------------------------------
    def attach(self, kind: str, owner: str, wake: Wake) -> None:
        """Set ``wake`` when something of this owner changed; its pods count for its kind's budget."""
        self._wakers[owner] = wake
        self._attached.setdefault(kind, set()).add(owner)

    def detach(self, owner: str) -> None:
        """Undo ``attach``, because the owner's worker ended."""
        self._wakers.pop(owner, None)
        for owners in self._attached.values():
            owners.discard(owner)
        self._unschedulable.discard(owner)
        self.interests.forget(owner)
        self._forget_processes(owner)

    def follow(self, owner: str, follower: str, wake: Wake) -> None:
        """Set ``wake`` also after changes of an owner whose pods the follower manages (R14)."""
        self._followers.setdefault(owner, {})[follower] = wake

    def unfollow(self, owner: str, follower: str) -> None:
        """The follower's worker ended."""
        _drop(self._followers, owner, follower)
        self._forget_processes(owner)

    def _forget_processes(self, owner: str) -> None:
        """Follow its processes no more, unless its own worker or a follower still waits for their end."""
        if owner not in self._wakers and owner not in self._followers:
            self.processes.forget(owner)

    def unschedulable(self, owner: str, unschedulable: bool) -> None:
        """Note whether the owner waits for places, so that anything that may make room wakes it."""
        (self._unschedulable.add if unschedulable else self._unschedulable.discard)(owner)

    def ledger_changed(self) -> None:
        """Wake the owners that wait for places, because a worker finished its change of reservations."""
        self.wake(self._unschedulable)

    def wake(self, owners: Iterable[str]) -> None:
        """Wake the owners that have workers in this farm."""
        for wake in self._wakes(owners):
            wake.set()

    def _nudge(self, owners: Iterable[str]) -> None:
        """Wake the owners after changes that come all the time; a worker that rests goes on resting."""
        for wake in self._wakes(owners):
            wake.nudge()

    def _wakes(self, owners: Iterable[str]) -> Iterator[Wake]:
        if not (self._wakers or self._followers):
            return  # as long as a farm reads the store for the first time
        for owner in set(owners):
            if (wake := self._wakers.get(owner)) is not None:
                yield wake
            yield from self._followers.get(owner, {}).values()

    # -- changes -------------------------------------------------------------------------------
    def _pods_changed(self, changed: set[str]) -> None:
        owners, went = set[str](), False
        pods, broken = self._caches.pods.entries, self._caches.pods.broken
        for key in changed:
            owner, node, instance = self._keys.pod_parts(key)
            place, stored, error = (node, instance), pods.get(key), broken.get(key)
            pod = stored.record if stored is not None else _NO_POD if error is not None else None
            self._fleet.set_pod(PodKey(owner, node, instance), pod)
            self._keep_pod(owner, place, key, stored)
            if stored is not None:
                self._bare.pop(place, None)
            else:
                self._keep_place(place, self.intent(place))
                went = True
            if error is not None:
                self._broken.setdefault(owner, {})[place] = error
            elif self._broken:
                _drop(self._broken, owner, place)
            owners.add(owner)
        self.wake(owners | self._unschedulable if went else owners)

    def _keep_pod(self, owner: str, place: Place, key: str, stored: Stored[Pod] | None) -> None:
        """Keep a pod of an owner, or None, under its key."""
        known = self._pods.get(owner, ())
        if isinstance(known, tuple):
            others = tuple(pod for pod in known if pod.key != key)
            known = others if stored is None else (*others, stored)
            self._pods[owner] = known = self._by_place(known) if len(known) > FEW_PODS else known
        elif stored is not None:
            known[place] = stored
        else:
            known.pop(place, None)
        if not known:
            self._pods.pop(owner, None)

    def _intents_changed(self, changed: set[str]) -> None:
        owners, went = set[str](), False
        intents = self._caches.intent.entries
        for key in changed:
            place, stored = self._keys.intent_parts(key), intents.get(key)
            if (bare := self._bare.pop(place, None)) is not None:
                self._fleet.set_pod(PodKey(bare, *place), None)
                owners.add(bare)
                went = True
            at = self._fleet.owner_at(*place)
            owners.add(at)
            if stored is not None:
                owners.add(stored.record.owner)
            if not at:
                self._keep_place(place, stored)
        self.wake(owners | self._unschedulable if went else owners)

    def _keep_place(self, place: Place, stored: Stored[Intent] | None) -> None:
        """Count a place with an intent and no pod as its owner's."""
        owner = stored.record.owner if stored is not None else "unknown" if self.unreadable(place) else ""
        if owner and not self._fleet.owner_at(*place):
            self._bare[place] = owner
            self._fleet.set_pod(PodKey(owner, *place), _NO_POD)

    def _realities_changed(self, changed: set[str]) -> None:
        owners, realities = set[str](), self._caches.reality.entries
        for key in changed:
            stored = realities.get(key)
            failing = stored is not None and stored.record.phase != "done" and fails(stored.record)
            (self._failing.add if failing else self._failing.discard)(key)
            at = (
                self._fleet.owner_at(*self._keys.reality_parts(key))
                if stored is None
                else stored.record.owner
            )
            owners.add(at)
        self._nudge(owners)

    def _nodes_changed(self, changed: set[str]) -> None:
        names = {self._keys.last_part(key) for key in changed}
        for name in names:
            stored = self._caches.nodes.get(self._keys.node(name))
            broken = self._keys.node(name) in self._caches.nodes.broken
            self._fleet.set_node(name, stored.record if stored else None, broken=broken)
        self._node_views_changed(names)

    def _agents_changed(self, changed: set[str]) -> None:
        names = {self._keys.last_part(key) for key in changed}
        for name in names:
            stored = self._caches.agents.get(self._keys.agent(name))
            self._fleet.set_agent(name, stored.record if stored else None)
        self._node_views_changed(names)

    def _reserved_changed(self, changed: set[str]) -> None:
        for name in {self._keys.last_part(key) for key in changed}:
            self._fleet.set_reserved(name, self._caches.reserved.get(self._keys.reserved(name)))
        self._nudge(self._unschedulable)

    def _work_changed(self, changed: set[str]) -> None:
        """Follow nodes that are given up or return (R21), and notes of workers."""
        nodes = set[str]()
        for key in changed:
            kind, item = key.rsplit("/", 2)[-2:]
            if kind == "nodes":
                self._fleet.set_lost(item, self.lost_since(item) > 0)
                nodes.add(item)
            else:
                self.wake({item})
        if nodes:
            self._node_views_changed(nodes)

    def _node_views_changed(self, names: set[str]) -> None:
        view = self._fleet.view()
        # Pods that are done weigh nothing there, but their owners take them off drained nodes.
        here = (pod for name in names if name in view for pod in view[name].pods.values())
        self.wake({pod.owner for pod in here} | self._unschedulable)
