"""What holds of every change of a daemon set's pods: where, how fast, how many at once, never by mistake.

Written from what the record promises (``store/daemonsets.py``), not from how the worker plans.
"""

from __future__ import annotations

from collections.abc import Iterable

from store.audit import Audit
from store.daemonsets import DaemonSet
from store.nodes import Agent, Node, effective_labels
from store.selectors import parse
from tests.stateful.moment import Look, Moment

MINUTE = 60.0
SETTLING_SECONDS = 300.0


def judge(look: Look, moment: Moment, audit: Audit) -> Iterable[str]:
    """Judge one transaction that changes one daemon set's pods."""
    key = look.keys.record("daemonsets", audit.id)
    daemonset = look.record(DaemonSet, moment.before[key])
    if daemonset is None:
        yield "changed pods of a daemon set that is not there or does not decode"
        return
    if daemonset.disabled:
        yield f"changed pods of {daemonset.name}, which is disabled"
    if daemonset.taken:
        yield f"changed pods of {daemonset.name}, which {daemonset.managed_by} has taken"
    if daemonset.deleting and (moment.added or moment.changed):
        yield f"changed pods of {daemonset.name}, which is being deleted"
    # The manager of a numbered one may leave two, of which its worker removes one (R14).
    if not daemonset.numbered and len({n for n, _ in look.pods(daemonset.id)}) < len(look.pods(daemonset.id)):
        yield f"{daemonset.name} has two pods on one node: {sorted(look.pods(daemonset.id))}"
    if look.troubled(moment.farm):
        return
    for _, node, _ in sorted(moment.added):
        if why := look.unfit(node, daemonset, key):
            yield f"{daemonset.name}: placed on {node}, which {why}"
    if moment.added or moment.changed:
        yield from _at_pace(look, daemonset)
        yield from _alone(look, daemonset, key)
    yield from _belonging(look, moment, daemonset, key)
    yield from _gently(look, moment, daemonset)


def _at_pace(look: Look, daemonset: DaemonSet) -> Iterable[str]:
    """So many nodes a minute, and so many on their way."""
    pods, now = look.pods(daemonset.id), look.clock.now()
    recent = [place for place, pod in pods.items() if now - MINUTE < pod.at <= now]
    if daemonset.rate and len(recent) > daemonset.rate:
        yield f"{daemonset.name}: {len(recent)} nodes changed within a minute, allowed are {daemonset.rate}"
    coming = [
        place
        for place, pod in pods.items()
        if 0 <= now - pod.at < SETTLING_SECONDS
        and pod.manifest == daemonset.manifest
        and not look.serves(daemonset.id, place)
        and look.settled(look.keys.reality(*place), *_of_node(look, place[0]))
        and _keeps(look, daemonset, place[0])
    ]
    if len(coming) > daemonset.max_in_progress:
        yield f"{daemonset.name}: {coming} are on their way, allowed are {daemonset.max_in_progress}"


def _alone(look: Look, daemonset: DaemonSet, key: str) -> Iterable[str]:
    """Nothing is added or replaced while an older one wants the same nodes."""
    born = look.kv.get(key)
    for other_key in look.under("daemonsets"):
        other, pair = look.at(DaemonSet, other_key), look.kv.get(other_key)
        if other is None or pair is None or born is None or pair.create_index >= born.create_index:
            continue
        if other.pod_id != daemonset.pod_id or not other.wants_pods or not look.settled(key, other_key):
            continue
        if other.node_selector == daemonset.node_selector or "" in (
            other.node_selector,
            daemonset.node_selector,
        ):
            yield f"{daemonset.name} changes pods, although {other.name} is older and wants the same nodes"


def _belonging(look: Look, moment: Moment, daemonset: DaemonSet, key: str) -> Iterable[str]:
    """No pod is taken off a node where it belongs."""
    if daemonset.deleting:
        return
    for _, node, _ in sorted(moment.gone):
        if look.settled(key, *_of_node(look, node)) and _keeps(look, daemonset, node):
            yield f"{daemonset.name}: removed from {node}, where it belongs"


def _gently(look: Look, moment: Moment, daemonset: DaemonSet) -> Iterable[str]:
    """By our own doing no more pods stop serving than the floor allows."""
    replaced = {pod[1:] for pod in moment.changed}
    fresh = {
        place
        for place in replaced
        if look.served(daemonset.id, place)
        and look.settled(look.keys.reality(*place), look.keys.pod(daemonset.id, *place))
    }
    standing = look.pods(daemonset.id)
    if not fresh or look.blind(*standing):
        return
    kept = [at for at in standing if _keeps(look, daemonset, at[0]) and not look.lost(at[0])]
    serving = sum(
        look.serves(daemonset.id, place) or not look.settled(look.keys.reality(*place))
        for place in kept
        if place not in replaced
    )
    if serving < daemonset.floor(len(kept)):
        yield (
            f"{daemonset.name}: {sorted(fresh)} taken down, {serving} of {len(kept)} serve,"
            f" the floor is {daemonset.floor(len(kept))}"
        )


def _keeps(look: Look, daemonset: DaemonSet, node: str) -> bool:
    record, agent = look.at(Node, look.keys.node(node)), look.at(Agent, look.keys.agent(node))
    if record is None or record.drain is not None:
        return False
    return parse(daemonset.node_selector).matches(effective_labels(record, agent))


def _of_node(look: Look, node: str) -> tuple[str, ...]:
    return look.keys.node(node), look.keys.agent(node), look.keys.work("nodes", node)
