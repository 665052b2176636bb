"""A farm killed at every transaction of what a person asked for; another farm finishes it.

``rc delete --cascade`` removes all pods and then the controller; ``rc update --now`` replaces pods in place,
one at a time. The commands go on in a person's hands while farms come and go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Literal

import pytest

from farmd.commands import waiting
from farmd.commands.mutation import commit
from farmd.replication.commands import RC
from store.keys import is_sentinel
from tests.fault.farm_process import Nursery
from tests.fault.invariants import Dump
from tests.fault.rig import Rig, every_k, rig_on
from tests.fleet import LIMIT, eventually
from tests.people import hello
from tests.proxy import Hold, Proxy

PODS = 4
AT_ONCE = 5

Fate = Literal["arrives", "never arrives", "is never answered"]
FATES: tuple[Fate, ...] = ("arrives", "never arrives", "is never answered")


async def delete(rig: Rig, name: str) -> None:
    """``rc delete --cascade --wait``."""
    call = rig.call()
    mutation = await RC.delete(call, name, cascade=True)
    await commit(call, mutation)
    await waiting.deletion(call, RC, mutation.change.id, LIMIT, lambda _: None)


async def update(rig: Rig, name: str) -> None:
    """``rc update --now --wait``."""
    call = rig.call()
    spec = RC.file.parse(hello(name=name, replicas=PODS, pod_args=["second"]), "test")
    mutation = await RC.update(call, spec, now=True)
    await commit(call, mutation)
    await waiting.convergence(call, RC, mutation.change.id, LIMIT, lambda _: None)


async def kill_at(
    k: int, fate: Fate, consul: str, nursery: Nursery, ask: Callable[[Rig, str], Awaitable[None]]
) -> int:
    """One case; how many transactions came."""
    context = f"{ask.__name__}: k={k}, the transaction {fate}"
    async with rig_on(consul, nursery, nodes=PODS + 1) as rig, Proxy(consul) as proxy:
        rig.obeyed()
        call = rig.call()
        creation = await RC.create(call, RC.file.parse(hello(replicas=PODS), "test"))
        await commit(call, creation)
        victim = rig.process("victim", proxy.address)
        await converged(rig, creation.change.id)
        hold = proxy.hold_transaction(k, answer=fate == "is never answered")
        asked = asyncio.ensure_future(ask(rig, "hello"))
        if await first(hold, asked):
            await rig.farm("survivor")
            await victim.end()
            (hold.release if fate == "arrives" else hold.drop)()
            await rig.expire("victim")
        await asked
        dump = await rig.settled(context)
        assert bool(dump.rcs) == (ask is update), context
        assert replaced_one_at_a_time(dump) == [], context
        if ask is delete:
            await until_nothing_is_left(rig, creation.change.id, context)
    return hold.count


async def converged(rig: Rig, rc_id: str) -> None:
    async def so() -> bool:
        status = await rig.status(rc_id)
        return status is not None and status.state == "converged"

    await eventually(so, what="the first convergence")


async def first(hold: Hold, asked: asyncio.Future[None]) -> bool:
    """Whether the k-th transaction came before all was done."""
    reached = asyncio.create_task(hold.reached.wait())
    await asyncio.wait([reached, asked], return_when=asyncio.FIRST_COMPLETED)
    reached.cancel()
    await asyncio.gather(reached, return_exceptions=True)
    return hold.reached.is_set()


async def until_nothing_is_left(rig: Rig, rc_id: str, context: str) -> None:
    """Of a deleted controller only the audit speaks."""

    async def left() -> list[str]:
        dump = await rig.cluster.dump()
        audit = rig.keys.tree("audit")
        return [
            key
            for key in dump.entries
            if not is_sentinel(key)
            and (rc_id in key or key == rig.keys.name("rcs", "hello"))
            and not key.startswith(audit)
        ]

    async def nothing() -> bool:
        return not await left()

    try:
        await eventually(nothing, what="the end of all its keys")
    except AssertionError as error:
        raise AssertionError(f"{context}: {error}: {await left()}") from None


def replaced_one_at_a_time(dump: Dump) -> list[str]:
    """Each replacement waited until the one before it was up and healthy (max-unavailable 1, R22)."""
    replacements = [(index, audit.relabelled) for index, audit in dump.audits if audit.relabelled]
    found = [f"at {index}: {places}" for index, places in replacements if len(places) > 1]
    for (_, earlier), (index, _) in pairwise(replacements):
        for place in earlier:
            node, _, instance = place.partition("/")
            up = dump.entries[dump.keys.reality(node, instance)].modify_index
            if up > index:
                found.append(f"{place} was up at {up}, the next was taken at {index}")
    return found


@pytest.mark.parametrize("fate", FATES)
@pytest.mark.parametrize("ask", [delete, update])
async def test_another_farm_finishes_what_was_asked_for(
    consul_dev: str, nursery: Nursery, ask: Callable[[Rig, str], Awaitable[None]], fate: Fate
) -> None:
    steps = await every_k(lambda k: kill_at(k, fate, consul_dev, nursery, ask), AT_ONCE)
    assert steps >= (PODS if ask is update else 1), "one transaction a replacement at least"
