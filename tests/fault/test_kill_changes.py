"""A farm process killed at exactly its k-th transaction in the middle of every longer change.

``test_kill_every_step`` does it while a controller schedules; here it is a daemon set that is placed,
replaced in place or sent away, a node that is drained, and a pod that moves. What becomes of the
transaction differs from case to case; in the end the survivor has finished what was asked for, each change is
in the audit once, and playing the audit back gives exactly the pods that there are. On virtual time
``tests/stateful/test_changes_every_step.py`` takes each transaction with each fate.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import cycle
from typing import Literal

import pytest

from store import checkpoint
from store.daemonsets import DaemonSet
from store.manifests import Manifest
from store.nodes import Drain, Node
from tests.fault.farm_process import Nursery
from tests.fault.invariants import Dump, unfinished
from tests.fault.rig import ASKING, Rig, a_tenth, came, every_k, id_preferring, named, rig_on
from tests.fleet import CLOCK, in_time
from tests.proxy import Proxy

KINDS = ("rcs", "nodes", "daemonsets")
NODES = 8
AT_ONCE = 3

Fate = Literal["arrives before the take-over", "arrives after it", "never arrives", "is never answered"]
FATES: tuple[Fate, ...] = (
    "arrives before the take-over",
    "arrives after it",
    "never arrives",
    "is never answered",
)

NEWER = Manifest(id="app", command=["sleep", "2000"], resources={"cpu": 2.0})


@dataclass(frozen=True)
class Case:
    """What there is before, what a person then asks for, and at least how many transactions that takes."""

    before: Callable[[Rig], Awaitable[None]]
    change: Callable[[Rig], Awaitable[None]]
    least: int


# -- daemon sets -------------------------------------------------------------------------------------
async def daemonset(rig: Rig, selector: str = "") -> None:
    item = id_preferring("victim", "survivor")
    await rig.daemonset(id=item, manifest=ASKING, min_health="50%", node_selector=selector)


async def picky_daemonset(rig: Rig) -> None:
    for node in await rig.names():
        await rig.rewrite(rig.keys.node(node), Node, labels={"zone": "a"})
    await daemonset(rig, "zone=a")


async def nothing(rig: Rig) -> None:
    pass


async def newer_manifest(rig: Rig) -> None:
    (item,) = (await rig.cluster.dump()).daemonsets
    await rig.rewrite(rig.keys.record("daemonsets", item), DaemonSet, manifest=await rig.use(NEWER))


async def a_node_leaves_the_zone(rig: Rig) -> None:
    await rig.rewrite(rig.keys.node("node-003"), Node, labels={"zone": "b"})


# -- moves -------------------------------------------------------------------------------------------
async def controller(rig: Rig) -> None:
    for node in await rig.names():
        await rig.rewrite(rig.keys.node(node), Node, labels={"zone": "a"})
    item = id_preferring("victim", "survivor")
    await rig.rc(3, id=item, manifest=ASKING, strategy="dynamic", node_selector="zone=a")


async def both_kinds(rig: Rig) -> None:
    await controller(rig)
    await rig.daemonset(id=id_preferring("victim", "survivor"), manifest=named("logs"))


async def its_node_leaves_the_zone(rig: Rig) -> None:
    node = await occupied(rig)
    await rig.rewrite(rig.keys.node(node), Node, labels={"zone": "b"})


async def its_node_is_drained(rig: Rig) -> None:
    node, now = await occupied(rig), CLOCK.now()
    drain = Drain(since=now, deadline=now + 600, by="user/ada@desk")
    await rig.rewrite(rig.keys.node(node), Node, drain=drain, cordoned=True)


async def occupied(rig: Rig) -> str:
    """A node on which the controller has a pod."""
    dump = await rig.cluster.dump()
    return min(node for owner, node, _ in dump.pods if owner in dump.rcs)


CASES = {
    "placed on every node": Case(nothing, daemonset, 2),
    "replaced in place": Case(daemonset, newer_manifest, 3),
    "off a node": Case(picky_daemonset, a_node_leaves_the_zone, 1),
    "moved": Case(controller, its_node_leaves_the_zone, 3),
    "drained": Case(both_kinds, its_node_is_drained, 5),
}


# -- one case ----------------------------------------------------------------------------------------
async def at_rest(rig: Rig) -> None:
    """Wait until nothing is left to do, and everybody who owns pods has said so."""

    async def so() -> bool:
        dump = await rig.cluster.dump()
        states = [await rig.status(rc) for rc in dump.rcs]
        states += [await rig.status(each, "daemonsets") for each in dump.daemonsets]
        told = all(status is not None and status.state == "converged" for status in states)
        return told and not unfinished(dump) and not await unsaid(rig, dump)

    await rig.until(so, "rest")


async def unsaid(rig: Rig, dump: Dump) -> list[str]:
    """Owners whose status speaks of another version of their record."""
    lines = []
    for kind, items in (("rcs", dump.rcs), ("daemonsets", dump.daemonsets)):
        for item in items:
            status, entry = await rig.status(item, kind), dump.entries[rig.keys.record(kind, item)]
            if kind == "daemonsets" and (status is None or status.record != entry.modify_index):
                lines.append(f"{kind}/{item}")
    return lines


async def kill_at(k: int, name: str, fate: Fate, consul: str, nursery: Nursery) -> int:
    """One case; how many transactions came."""
    context, case = f"{name}, k={k}, the transaction {fate}", CASES[name]
    async with rig_on(consul, nursery, nodes=NODES) as rig, Proxy(consul) as proxy:
        rig.obeyed()
        await case.before(rig)
        victim = rig.process("victim", proxy.address, kinds=KINDS)
        await rig.present("victim")
        await at_rest(rig)
        hold = proxy.hold_transaction(k, answer=fate == "is never answered")
        await case.change(rig)
        if not await came(hold, at_rest(rig)):
            return hold.count
        await rig.farm("survivor", kinds=KINDS)
        await victim.end()
        if fate in ("never arrives", "is never answered"):
            hold.drop()
        elif fate == "arrives before the take-over":
            hold.release()
            await in_time(hold.finished.wait())
        await rig.expire("victim")
        await settled(rig, context)
        if fate == "arrives after it":
            hold.release()
            await in_time(hold.finished.wait())
            await settled(rig, context)
    return k


async def settled(rig: Rig, context: str) -> None:
    """Everything is done, every invariant holds, and the audit log says exactly which pods there are."""
    dump = await rig.settled(context)
    said = (await checkpoint.replayed(rig.client, rig.keys)).pods
    assert {(pod.owner, pod.node, pod.instance) for pod in said} == dump.pods.keys(), context
    for kind, items in (("rcs", dump.rcs), ("daemonsets", dump.daemonsets)):
        if items:
            await rig.owned_by("survivor", *items, kind=kind)


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("name", CASES)
async def test_r12_what_was_under_way_is_finished_once(
    consul_dev: str, nursery: Nursery, name: str, first: int
) -> None:
    """The fates take turns."""
    fates = cycle(FATES[first::2])
    steps = await every_k(
        lambda k: kill_at(k, name, next(fates), consul_dev, nursery), AT_ONCE, chosen=a_tenth
    )
    assert steps >= CASES[name].least
