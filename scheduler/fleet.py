"""Views of the fleet for placement, built from records: once (``node_views``) or kept up to date (``Fleet``).

People's labels and capacity override the agent's facts. A node exists if it has a node record or an
agent's presence. The last facts of an absent agent stay valid until its node is lost (R21).

``Fleet`` rebuilds only nodes that changed, so that the cost of a decision does not grow with the size of
the fleet (P2); a view that was handed out never changes afterwards.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeVar

import msgspec

from scheduler.model import FleetView, NodeView, PodView, Presence
from store.entry import Stored
from store.nodes import Agent, Node, Reserved
from store.pods import Pod, PodKey

T = TypeVar("T")

_NO_NODE = Node()
_NO_RESERVED = Reserved()


def node_view(
    name: str,
    *,
    node: Node | None = None,
    agent: Agent | None = None,
    absent: bool = False,
    lost: bool = False,
    reserved: Stored[Reserved] | None = None,
    pods: Mapping[str, PodView] | None = None,
    broken: bool = False,
) -> NodeView:
    """One node's view. ``pods`` is keyed by instance; an absent agent is *unknown* until ``lost`` (R21).

    ``agent`` is the agent's presence record, the last one if the agent is ``absent``; None: the agent is
    absent, and no record of it is known.
    """
    said = node or _NO_NODE
    here = agent is not None and not absent
    presence: Presence = "present" if here else "lost" if lost else "unknown"
    book = reserved.record if reserved is not None else _NO_RESERVED
    counts = owners(pods) if pods else {}
    closed = agent.closed if agent is not None else ""
    return NodeView(
        name=name,
        labels=_labels(name, said, agent),
        taints=tuple(said.taints),
        cordoned=said.cordoned or closed != "",
        cordon_reason=said.cordon_reason or closed,
        drain=said.drain.stage if said.drain is not None else "",
        presence=presence,
        facts_known=agent is not None,
        features=frozenset(agent.features) if agent is not None else frozenset(),
        capacity={**agent.capacity, **said.capacity} if agent is not None else said.capacity,
        pods=pods or {},
        owners=counts,
        live=sum(counts.values()),
        reserved=book,
        reserved_index=reserved.index if reserved is not None else 0,
        reserved_raw=reserved.raw if reserved is not None else b"",
        used=used_amounts(book),
        broken=broken,
    )


def _labels(name: str, said: Node, agent: Agent | None) -> dict[str, str]:
    """What people and the agent say, ``node`` with its name, and ``volume/<name>`` for each volume."""
    own = {"node": name} | {f"volume/{volume}": "" for volume in said.volumes}
    return {**(agent.labels if agent is not None else {}), **said.labels, **own}


def owners(pods: Mapping[str, PodView]) -> dict[str, int]:
    """How many of these pods each owner has, without those that are done."""
    counts: dict[str, int] = {}
    for pod in pods.values():
        if not pod.done:
            counts[pod.owner] = counts.get(pod.owner, 0) + 1
    return counts


def populated(view: NodeView, pods: Mapping[str, PodView]) -> NodeView:
    """The view with these pods."""
    counts = owners(pods)
    return msgspec.structs.replace(view, pods=pods, owners=counts, live=sum(counts.values()))


def used_amounts(book: Reserved) -> dict[str, float]:
    """Sum a node's reservations by resource, in an order that does not depend on the map's."""
    used: dict[str, float] = {}
    for _, amounts in sorted(book.instances.items()):
        for resource, amount in amounts.items():
            used[resource] = used.get(resource, 0.0) + amount
    return used


def node_views(
    nodes: Mapping[str, Node],
    agents: Mapping[str, Agent],
    reserved: Mapping[str, Stored[Reserved]],
    pods: Mapping[PodKey, Pod],
    lost: Collection[str] = (),
) -> FleetView:
    """A view of a whole fleet, keyed and ordered by node name. For one-off questions (the command line).

    Pods on nodes that have neither a record nor a presence are left out: such a node cannot be judged.
    """
    fleet = Fleet()
    for name, node in nodes.items():
        fleet.set_node(name, node)
    for name, agent in agents.items():
        fleet.set_agent(name, agent)
    for name, book in reserved.items():
        fleet.set_reserved(name, book)
    for key, pod in pods.items():
        fleet.set_pod(key, pod)
    for name in lost:
        fleet.set_lost(name, True)
    return fleet.view()


class Fleet:
    """Takes changes of records one at a time and hands out consistent views.

    ``None`` means that the record is gone. Not thread-safe; one event loop owns it.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._agents: dict[str, Agent] = {}
        self._present: set[str] = set()
        self._reserved: dict[str, Stored[Reserved]] = {}
        self._pods: dict[str, dict[str, PodView]] = {}
        self._lost: set[str] = set()
        self._broken: set[str] = set()
        self._dirty: set[str] = set()
        self._repopulated: set[str] = set()
        self._views: dict[str, NodeView] = {}

    def set_node(self, name: str, node: Node | None, *, broken: bool = False) -> None:
        """The record of a node; ``broken``: there is one, and it does not decode."""
        (self._broken.add if broken else self._broken.discard)(name)
        self._set(self._nodes, name, _NO_NODE if broken else node)
        if node is None and not broken:
            self._forget_facts(name)

    def set_agent(self, name: str, agent: Agent | None) -> None:
        """The presence of a node's agent. None: it is absent, or its record does not decode; its last facts
        are kept until the node is lost, or its record is deleted (R21)."""
        (self._present.discard if agent is None else self._present.add)(name)
        if agent is not None:
            self._agents[name] = agent
        elif name in self._lost:
            self._forget_facts(name)
        self._dirty.add(name)

    def stated(self, name: str) -> dict[str, str]:
        """The labels that a node's agent stated last, as long as its facts are kept."""
        return self._agents[name].labels if name in self._agents else {}

    def set_reserved(self, name: str, reserved: Stored[Reserved] | None) -> None:
        """A node's reservations."""
        self._set(self._reserved, name, reserved)

    def set_lost(self, name: str, lost: bool) -> None:
        """The fleet-wide verdict on an absent agent (R21)."""
        (self._lost.add if lost else self._lost.discard)(name)
        if lost:
            self._forget_facts(name)
        self._dirty.add(name)

    def set_pod(self, key: PodKey, pod: Pod | None) -> None:
        """One pod of an owner; if two owners have a pod under one instance, the later call counts."""
        here = self._pods.get(key.node, {})
        if key.node not in self._repopulated:
            # The dictionary is the last view's, too, and a view never changes.
            here = {**here}
        if pod is not None:
            here[key.instance] = PodView(key.owner, done=True) if pod.done else PodView(key.owner, pod.labels)
            self._pods[key.node] = here
        elif key.instance in here and here[key.instance].owner == key.owner:
            del here[key.instance]
            self._pods[key.node] = here
            if not here:
                del self._pods[key.node]
        self._repopulated.add(key.node)

    def owner_at(self, node: str, instance: str) -> str:
        """The owner of the pod under an instance of a node; empty without a pod."""
        pod = self._pods.get(node, {}).get(instance)
        return pod.owner if pod is not None else ""

    def view(self) -> FleetView:
        """The fleet at this moment, ordered by name; the same object until something changes."""
        if self._dirty or self._repopulated:
            views = dict(self._views)
            for name in self._repopulated - self._dirty:
                if name in views:
                    # Only the pods: they change far more often than the rest of a node.
                    views[name] = populated(views[name], self._pods.get(name, {}))
            grown = False
            for name in self._dirty:
                if name in self._nodes or name in self._agents:
                    grown = grown or name not in views
                    views[name] = self._build(name)
                else:
                    views.pop(name, None)
            self._views = dict(sorted(views.items())) if grown else views
            self._dirty.clear()
            self._repopulated.clear()
        return self._views

    def _build(self, name: str) -> NodeView:
        return node_view(
            name,
            node=self._nodes.get(name),
            agent=self._agents.get(name),
            absent=name not in self._present,
            lost=name in self._lost,
            reserved=self._reserved.get(name),
            pods=self._pods.get(name, {}),
            broken=name in self._broken,
        )

    def _forget_facts(self, name: str) -> None:
        if name not in self._present:
            self._agents.pop(name, None)

    def _set(self, records: dict[str, T], name: str, record: T | None) -> None:
        if record is None:
            records.pop(name, None)
        else:
            records[name] = record
        self._dirty.add(name)
