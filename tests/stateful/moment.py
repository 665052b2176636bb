"""What the rules of single commits look at: one transaction, and the store right before and after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from store import codec
from store.audit import Audit
from store.daemonsets import DaemonSet
from store.embedded.kv import KeyValues, Pair
from store.embedded.verbs import KvOperation
from store.errors import RecordInvalid
from store.failsafe import Failsafe
from store.families import shards
from store.keys import Keys, is_sentinel
from store.nodes import Agent, Node, effective_labels
from store.pods import Pod
from store.ports import Clock
from store.rcs import ReplicationController
from store.reality import Intent, Reality, passes
from store.selectors import parse
from store.work import Work

T = TypeVar("T")
Place = tuple[str, str]
"""(node, instance)."""

PodId = tuple[str, str, str]
"""(owner, node, instance)."""

KNOWN_AFTER = 3.0
"""Seconds after which a farm whose line is good must have seen a change."""


@dataclass
class Moment:
    """One transaction of a farm; ``before`` is what stood at the keys that rules ask about."""

    farm: str
    operations: list[KvOperation]
    writes: list[KvOperation]
    audits: list[Audit]
    before: dict[str, Pair | None]
    counts: dict[str, int]
    added: set[PodId] = field(default_factory=set)
    gone: set[PodId] = field(default_factory=set)
    changed: set[PodId] = field(default_factory=set)
    intents: set[Place] = field(default_factory=set)


class Look:
    """The store as it is, and for how long it has been so.

    ``manifests`` are the pods' manifests before the transaction that is judged, by key; ``tampered`` places
    whose intent a person changed by hand; ``troubled`` tells whether a farm may be behind the times.
    """

    def __init__(self, kv: KeyValues, keys: Keys, clock: Clock, troubled: Callable[[str], bool]) -> None:
        self.kv = kv
        self.keys = keys
        self.clock = clock
        self.troubled = troubled
        self.tampered: set[Place] = set()
        self.manifests: dict[str, str] = {}
        self._touched: dict[str, float] = {}

    # -- time ----------------------------------------------------------------------------------
    def touch(self, key: str) -> None:
        self._touched[key] = self.clock.mono()

    def age(self, key: str) -> float:
        """For how many seconds a key has been as it is."""
        return self.clock.mono() - self._touched.get(key, 0.0)

    def settled(self, *keys: str) -> bool:
        """Whether these have been as they are for long enough to be known."""
        return all(self.age(key) > KNOWN_AFTER for key in keys)

    # -- records -------------------------------------------------------------------------------
    def record(self, kind: type[T], pair: Pair | None) -> T | None:
        """A record; None where there is none, or it does not decode."""
        if pair is None:
            return None
        try:
            return codec.decode(kind, pair.value or b"", pair.key)  # type: ignore[type-var]
        except RecordInvalid:
            return None

    def at(self, kind: type[T], key: str) -> T | None:
        return self.record(kind, self.kv.get(key))

    def under(self, family: str) -> list[str]:
        found = self.kv.under(self.keys.tree(family))
        return [pair.key for pair in found if not is_sentinel(pair.key)]

    def freeze(self, kind: str) -> Failsafe | None:
        return self.at(Failsafe, self.keys.failsafe(kind))

    # -- pods ----------------------------------------------------------------------------------
    def standing(self, owner: str) -> set[Place]:
        """The places of an owner's pods before the transaction."""
        parts = map(self.keys.pod_parts, self.manifests)
        return {(node, instance) for at, node, instance in parts if at == owner}

    def pods(self, owner: str) -> dict[Place, Pod]:
        """An owner's pods as they are now, those that decode."""
        found = {}
        for pair in self.kv.under(self.keys.pods(owner)):
            pod = self.record(Pod, pair)
            if pod is not None:
                _, node, instance = self.keys.pod_parts(pair.key)
                found[node, instance] = pod
        return found

    def owners(self) -> list[str]:
        """Whoever has pods."""
        return sorted({self.keys.pod_parts(key)[0] for key in self.under("pods")})

    def serves(self, owner: str, place: Place) -> bool:
        pod, intent = self.at(Pod, self.keys.pod(owner, *place)), self.at(Intent, self.keys.intent(*place))
        reality = self.at(Reality, self.keys.reality(*place))
        if pod is None or reality is None or (intent is not None and reality.restart < intent.restart):
            return False  # the node has yet to restart it
        return passes(reality, pod.manifest)

    def blind(self, *places: Place) -> bool:
        """Whether nobody can know how these pods are: their reality cannot be read, or not be trusted."""
        prefixes = [self.keys.tree("reality"), *shards(self.keys, "reality")]
        if any(self.kv.get(self.keys.sentinel(prefix)) is None for prefix in prefixes):
            return True
        pairs = [self.kv.get(self.keys.reality(*place)) for place in places]
        return any(pair is not None and self.record(Reality, pair) is None for pair in pairs)

    def served(self, owner: str, place: Place) -> bool:
        """Whether what the pod said before runs there and passes its check; of lost nodes nobody knows."""
        if self.lost(place[0]):
            return False
        reality = self.at(Reality, self.keys.reality(*place))
        return passes(reality, self.manifests.get(self.keys.pod(owner, *place), ""))

    # -- nodes ---------------------------------------------------------------------------------
    def lost(self, node: str) -> bool:
        work = self.at(Work, self.keys.work("nodes", node))
        return work is not None and work.lost_since > 0

    def unfit(self, node: str, owner: ReplicationController | DaemonSet, record_key: str) -> str:
        """Why an owner may place nothing new on a node; empty if it may, or could not know yet."""
        keys = self.keys.node(node), self.keys.agent(node), record_key
        record, agent = self.at(Node, keys[0]), self.at(Agent, keys[1])
        # Without its sentinel a tree's answers are not taken in: who closed a node since is not heard.
        sentinels = [self.keys.sentinel(self.keys.tree(family)) for family in ("nodes", "agents")]
        known = all(self.kv.get(sentinel) is not None for sentinel in sentinels)
        if not known or not self.settled(*keys, *sentinels):
            return ""
        if record is None or record.cordoned or record.drain is not None or record.taints:
            return f"takes nothing: {record}"
        if agent is None:
            return "has no agent"
        if not parse(owner.node_selector).matches(effective_labels(record, agent)):
            return f"has the labels {record.labels}, which do not fit {owner.node_selector!r}"
        return ""

    def disagreement(self, place: Place) -> str:
        """How the pods and the intent of a place contradict each other; empty: they do not."""
        owners = [owner for owner in self.owners() if self.kv.get(self.keys.pod(owner, *place)) is not None]
        if len(owners) > 1:
            return f"{place} has the owners {owners}"
        pair = self.kv.get(self.keys.intent(*place))
        intent = self.record(Intent, pair)
        if not owners:
            text = "" if pair is None else f"{place} has an intent and no pod"
        else:
            pod = self.at(Pod, self.keys.pod(owners[0], *place))
            if intent is None:
                over = pod is not None and pod.done
                text = "" if over else f"the pod {owners[0]} {place} has no intent"
            elif pod is not None and (intent.owner, intent.manifest) != (owners[0], pod.manifest):
                text = f"the pod {owners[0]} {place} says {pod.manifest[:8]}, its intent {intent}"
            else:
                text = ""
        if not text:
            self.tampered.discard(place)
        return "" if place in self.tampered else text
