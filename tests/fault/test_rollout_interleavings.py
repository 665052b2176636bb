"""What happens while a transaction of a rollout is on its way, on real Consul: one of both is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import pytest

from farmd.commands.mutation import Mutation
from farmd.replication.commands import RC, set_replicas
from farmd.rollout import commands
from store import operations
from store.errors import Conflict, Locked
from store.manifests import Manifest
from store.work import Work
from tests.fault.versions import audits
from tests.fleet import CLOCK, client_of, cluster_on, eventually, farm_on, in_time
from tests.obedient import Obedient, obedient
from tests.proxy import Hold, Proxy, Seen
from tests.rolling import FIRST, KINDS, PATIENT, SECOND, Rolling, digest

THIRD = Manifest(id="web", command=["third"])


@dataclass
class Scene:
    """A controller of three pods, a farm behind a proxy, and agents."""

    rolling: Rolling
    agents: Obedient
    front: Proxy

    def hold(self, action: str, k: int = 1) -> Hold:
        """Hold the k-th transaction from now with an audit record of that action."""

        def says(seen: Seen) -> bool:
            found = audits(self.rolling.cluster.keys, seen).values()
            return any(audit.action == action for audit in found)

        return self.front.hold(says, k)

    async def refused(self, hold: Hold) -> None:
        """Let it go on; it was refused."""
        assert hold.seen is not None
        hold.release()
        await in_time(hold.finished.wait())
        dump = await self.rolling.cluster.dump()
        assert not audits(dump.keys, hold.seen).keys() & dump.entries.keys()


@pytest.fixture
async def scene(consul_dev: str) -> AsyncIterator[Scene]:
    async with cluster_on(consul_dev) as cluster, Proxy(consul_dev) as front, obedient(cluster) as agents:
        client = client_of(front.address)
        async with farm_on(client, "farm-1", keys=cluster.keys, kinds=KINDS):
            rolling = Rolling(cluster, consul_dev)
            await rolling.prepare(3)
            yield Scene(rolling, agents, front)
        await client.close()


Word = Callable[[Scene], Awaitable[Mutation]]


async def pauses(scene: Scene, ident: str) -> None:
    call = scene.rolling.call
    await scene.rolling.status(ident, "paused")
    await scene.rolling.say(await commands.resume(call, "web"))
    assert (await scene.rolling.ended(ident)).outcome == "done"
    await scene.rolling.whole(SECOND, 3)


async def reverts(scene: Scene, ident: str) -> None:
    assert (await scene.rolling.ended(ident)).outcome == "reverted"
    await scene.rolling.whole(FIRST, 3)


async def aborts(scene: Scene, ident: str) -> None:
    assert (await scene.rolling.ended(ident)).outcome == "aborted"
    for rc in (await scene.rolling.controllers()).values():
        assert (rc.managed_by, rc.taken) == ("", False)
        assert len(await scene.rolling.cluster.pods(rc.id)) == rc.replicas_desired
    assert {rc.replicas_desired for rc in (await scene.rolling.controllers()).values()} == {2, 1}
    await scene.rolling.replayed()


@pytest.mark.parametrize(
    ("word", "then"),
    [(commands.pause, pauses), (commands.revert, reverts), (commands.abort, aborts)],
    ids=["pause", "revert", "abort"],
)
async def test_r12_a_word_refuses_the_move_that_was_planned_before_it(
    scene: Scene,
    word: Callable[..., Awaitable[Mutation]],
    then: Callable[[Scene, str], Awaitable[None]],
) -> None:
    hold = scene.hold("rollout.move", 2)
    ident = await scene.rolling.update(SECOND, PATIENT)
    await in_time(hold.reached.wait())
    await scene.rolling.say(await word(scene.rolling.call, "web"))
    await scene.refused(hold)
    await then(scene, ident)


async def test_r13_of_two_words_at_once_the_second_is_refused(scene: Scene) -> None:
    hold = scene.hold("rollout.move")
    ident = await scene.rolling.update(SECOND, PATIENT)
    await in_time(hold.reached.wait())
    first = await commands.pause(scene.rolling.call, "web")
    second = await commands.revert(scene.rolling.call, "web")
    await scene.rolling.say(second)
    with pytest.raises(Conflict):
        await scene.rolling.say(first)
    await scene.refused(hold)
    await reverts(scene, ident)


@pytest.mark.parametrize("other", ["rollout", "scale", "delete", "disable"])
@pytest.mark.parametrize("first", [True, False], ids=["rollout-first", "rollout-second"])
async def test_r13_of_two_who_change_a_controller_at_once_one_is_refused(
    scene: Scene, other: str, first: bool
) -> None:
    rolling, call = scene.rolling, scene.rolling.call
    begins = await rolling.beginning(SECOND, PATIENT)
    prepared: dict[str, Callable[[], Awaitable[Mutation]]] = {
        "rollout": lambda: rolling.beginning(THIRD, PATIENT),
        "scale": lambda: set_replicas(call, "web", 2),
        "delete": lambda: RC.delete(call, "web", cascade=True),
        "disable": lambda: RC.disable(call, "web"),
    }
    both = [begins, await prepared[other]()]
    winner, loser = both if first else reversed(both)
    await rolling.say(winner)
    with pytest.raises((Conflict, Locked)):
        await rolling.say(loser)
    if winner is begins:
        await rolling.ended(begins.change.id)
        await rolling.whole(SECOND, 3)
    elif other == "rollout":
        await rolling.ended(winner.change.id)
        await rolling.whole(THIRD, 3)
    else:
        assert len(await rolling.controllers()) <= 1
        assert await rolling.cluster.entries(call.keys.tree("rollouts")) == {}


async def test_r21_a_pod_is_not_taken_from_a_node_whose_agent_is_back(scene: Scene) -> None:
    rolling, keys = scene.rolling, scene.rolling.cluster.keys
    scene.agents.broken = {digest(SECOND)}
    ident = await rolling.update(SECOND, PATIENT)
    new = next(rc for name, rc in (await rolling.controllers()).items() if name != "web")

    async def first() -> list[tuple[str, str]]:
        return await rolling.cluster.pods(new.id)

    ((node, instance),) = await eventually(first, what="a pod of the new version")
    hold = scene.hold("rollout.move")
    scene.agents.deaf.add(node)
    await rolling.cluster.lose_agents(node)
    await rolling.cluster.put(keys.work("nodes", node), Work(lost_since=CLOCK.now() - 300))
    await in_time(hold.reached.wait())
    await rolling.cluster.client.transaction([operations.delete(keys.work("nodes", node))])
    await rolling.cluster.keep_present({node: {}})
    scene.agents.deaf.clear()
    await scene.refused(hold)
    assert (node, instance) in await rolling.cluster.pods(new.id)
    scene.agents.broken = set()
    assert (await rolling.ended(ident)).outcome == "done"
    await rolling.whole(SECOND, 3)
