"""Consul goes back to a snapshot while farms and agents run: all act on what it says (R15, R16, R23)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from farmd.commands.mutation import Call, commit
from farmd.nodes import commands
from farmd.runtime.clock import SystemIds
from store import manifests
from store.manifests import Manifest
from store.nodes import Node, Reserved
from store.presence import start_ticks
from store.rcs import ReplicationController
from store.reality import Reality
from tests.agents import Agents, agents_on, sha_of, shell
from tests.fault.invariants import Dump, unfinished, violations
from tests.fleet import CLOCK, LIMIT, RunningFarm, client_of, eventually, in_time, start_farm
from tests.proxy import Proxy
from tests.servers import ConsulServer

NODES = ("n1", "n2", "n3")
# Less than the 55 s after which a parked query ends by itself: whoever waits for that has missed the restore.
AFTER_RESTORE = 45.0
TRIES = 10
OLD = shell("exec sleep 1000")
NEW = shell("exec sleep 2000")
ASKING = shell("exec sleep 1000", resources={"cpu": 0.1})


class Scene:
    """Three real agents and farms, all in this process, on a Consul that can be restored."""

    def __init__(self, consul: ConsulServer, address: str, rig: Agents, stack: AsyncExitStack) -> None:
        self.consul = consul
        self._address = address
        self.rig = rig
        self.keys = rig.keys
        self._stack = stack

    async def farm(self, name: str) -> RunningFarm:
        client = client_of(self._address)
        self._stack.push_async_callback(client.close)
        farm = await start_farm(client, name, keys=self.keys, kinds=("rcs", "nodes"))

        async def end() -> None:
            farm.task.cancel()
            await asyncio.gather(farm.task, return_exceptions=True)

        self._stack.push_async_callback(end)
        return farm

    async def snapshot(self) -> bytes:
        return await asyncio.to_thread(self.consul.snapshot)

    async def restore(self, snapshot: bytes) -> None:
        await asyncio.to_thread(self.consul.restore, snapshot)

    async def lose_session(self, node: str) -> None:
        """End the session of an agent, and wait until it is there under another."""
        before = await self.rig.presence(node)
        assert before is not None
        await self.rig.client.destroy_session(before[1])
        await eventually(lambda: self.rig.presence(node), what=f"presence of {node} under another session")

    async def settled(self, within: float = LIMIT) -> Dump:
        """Wait until all processes, realities, statuses and locks are what the store wants."""
        last: list[str] = []

        async def so() -> Dump | None:
            nonlocal last
            dump = await self.rig.dump()
            last = [*unfinished(dump), *violations(dump), *await self._astray(dump)]
            return None if last else dump

        try:
            found = await eventually(so, within=within, what="a fleet that acts on what the store says")
        except AssertionError as error:
            raise AssertionError(f"{error}: {last}") from None
        assert isinstance(found, Dump)
        return found

    async def _astray(self, dump: Dump) -> list[str]:
        lines = []
        realities = {
            self.keys.reality_parts(key): reality
            for key, (_, reality) in dump.tree("reality", Reality).items()
        }
        wanted = {
            place: (entry.modify_index, i.manifest, "running") for place, (entry, i) in dump.intents.items()
        }
        for place in wanted.keys() | realities.keys():
            real = realities.get(place)
            runs = real and (real.intent, real.manifest, real.phase)
            if runs != wanted.get(place):
                lines.append(f"{place}: found {runs}, expected {wanted.get(place)}")
        alive = {each.pid for each in self.rig.identities() if start_ticks(each.pid) == each.ticks}
        if alive != {real.pid for real in realities.values()}:
            lines.append(f"processes {sorted(alive)} are not those of the realities")
        farms = {
            entry.session for key, entry in dump.entries.items() if key.startswith(self.keys.tree("farms"))
        }
        for rc in dump.rcs.values():
            status = await self.rig.status(rc)
            if (status.state, status.placed) != ("converged", rc.replicas_desired):
                lines.append(f"{rc.name}: its status is {status.state} with {status.placed} pods")
            lock = dump.entries.get(self.keys.lock("rcs", rc.id))
            if lock is None or lock.session not in farms:
                lines.append(f"{rc.name}: no farm that is there holds its lock")
        return lines

    def call(self) -> Call:
        return Call(self.rig.client, self.keys, CLOCK, SystemIds(), "user/ada@desk")


@asynccontextmanager
async def scene_on(consul: ConsulServer, root: Path, proxy: str = "") -> AsyncIterator[Scene]:
    """Farms and agents talk to Consul through ``proxy`` if given."""
    async with agents_on(consul.address, root) as rig, AsyncExitStack() as stack:
        for node in NODES:
            await rig.agent(node, consul=proxy or consul.address)
        yield Scene(consul, proxy or consul.address, rig, stack)


@pytest.fixture
def consul() -> Iterator[ConsulServer]:
    with ConsulServer(dev=False) as server:
        yield server


@pytest.fixture
async def scene(consul: ConsulServer, tmp_path: Path) -> AsyncIterator[Scene]:
    async with scene_on(consul, tmp_path) as made:
        await made.farm("alive")
        yield made


async def created(scene: Scene, replicas: int, manifest: Manifest = OLD) -> ReplicationController:
    rc = await scene.rig.create_rc("web", replicas, manifest=manifest)
    await scene.settled()
    return rc


async def updated(scene: Scene, rc: ReplicationController, manifest: Manifest) -> ReplicationController:
    """Another manifest for all pods of a controller."""
    await scene.rig.client.put(scene.keys.manifest(sha_of(manifest)), manifests.canonical(manifest))
    changed = await scene.rig.change_rc(rc, manifest=sha_of(manifest))
    await scene.settled()
    return changed


async def test_r23_a_restore_ends_a_parked_query_with_the_index_that_it_began_with(scene: Scene) -> None:
    """What all that follows rests on: it is measured here, and documented nowhere.

    A query that reached Consul only after the restore is parked there until the next write, which it is
    answered with: it says nothing of the restore, and is tried again.
    """
    client, key = scene.rig.client, scene.keys.prefix + "x"
    snapshot = await scene.snapshot()
    for _ in range(TRIES):
        await client.put(key, b"1")
        before = await client.list(key)
        parked = asyncio.create_task(client.list(key, index=before.index, wait=600.0))
        await client.read(key, mode="consistent")
        await scene.restore(snapshot)
        await client.put(key + "-late", b"")
        ended = await in_time(parked)
        if ended.index == before.index:
            break
    assert ended.index == before.index, f"{TRIES} queries ended with another index"
    assert await client.read(key, mode="consistent") is None
    await client.put(key, b"2")
    after = await client.list(key)
    assert after.index > before.index, "new writes hide that the store went back"


async def test_r16_all_go_back_to_an_older_manifest(scene: Scene) -> None:
    rc = await created(scene, 3)
    snapshot = await scene.snapshot()
    await updated(scene, rc, NEW)
    await scene.restore(snapshot)
    dump = await scene.settled(AFTER_RESTORE)
    assert {intent.manifest for _, intent in dump.intents.values()} == {sha_of(OLD)}


async def test_r15_what_was_created_after_the_snapshot_ends(scene: Scene) -> None:
    snapshot = await scene.snapshot()
    await created(scene, 3)
    await scene.restore(snapshot)
    dump = await scene.settled(AFTER_RESTORE)
    assert not dump.pods


async def test_r23_an_edit_right_after_the_restore_hides_nothing(scene: Scene) -> None:
    rc = await created(scene, 2)
    snapshot = await scene.snapshot()
    await updated(scene, rc, NEW)
    await scene.restore(snapshot)
    await scene.rig.change_rc(rc, replicas_desired=3)
    dump = await scene.settled(AFTER_RESTORE)
    assert {intent.manifest for _, intent in dump.intents.values()} == {sha_of(OLD)}
    assert len(dump.pods) == 3


async def test_r17_reservations_of_before_the_restore_do_not_count(scene: Scene) -> None:
    rc = await created(scene, 1, ASKING)
    snapshot = await scene.snapshot()
    await scene.rig.change_rc(rc, replicas_desired=3)
    await scene.settled()
    await scene.restore(snapshot)
    await scene.settled(AFTER_RESTORE)
    await scene.rig.change_rc(rc, replicas_desired=3)
    dump = await scene.settled(AFTER_RESTORE)
    reserved = {
        (dump.keys.last_part(key), instance)
        for key, (_, record) in dump.tree("reserved", Reserved).items()
        for instance in record.instances
    }
    assert reserved == dump.intents.keys()


async def test_a_drain_that_began_after_the_snapshot_is_off(scene: Scene) -> None:
    await created(scene, 2)
    snapshot = await scene.snapshot()
    before = await scene.rig.dump()
    node = min(node for node, _ in before.intents)
    await drained(scene, node)
    await scene.restore(snapshot)
    dump = await scene.settled(AFTER_RESTORE)
    assert dump.intents.keys() == before.intents.keys()
    assert dump.tree("nodes", Node)[scene.keys.node(node)][1].drain is None


async def test_a_drain_that_was_ended_after_the_snapshot_is_on_again(scene: Scene) -> None:
    await created(scene, 2)
    await drained(scene, "n1")
    snapshot = await scene.snapshot()
    await commit(scene.call(), await commands.undrain(scene.call(), "n1"))
    await scene.rig.change_rc(rc := next(iter((await scene.rig.dump()).rcs.values())), replicas_desired=3)
    await scene.settled()
    await scene.restore(snapshot)
    await scene.rig.change_rc(rc, replicas_desired=2)
    dump = await scene.settled(AFTER_RESTORE)
    assert {node for node, _ in dump.intents} == {"n2", "n3"}


async def test_r16_who_was_out_of_contact_during_the_restore_follows_it_too(
    consul: ConsulServer, tmp_path: Path
) -> None:
    async with Proxy(consul.address) as proxy, scene_on(consul, tmp_path, proxy.address) as scene:
        await scene.farm("alive")
        rc = await created(scene, 2)
        snapshot = await scene.snapshot()
        await updated(scene, rc, NEW)
        proxy.refuse()
        await scene.restore(snapshot)
        await scene.rig.change_rc(rc, replicas_desired=3)
        proxy.accept()
        dump = await scene.settled(AFTER_RESTORE)
        assert {intent.manifest for _, intent in dump.intents.values()} == {sha_of(OLD)}


@pytest.mark.slow
@pytest.mark.parametrize("former", ["gone", "alive"])
async def test_r1_sessions_and_locks_of_the_past_end(
    consul: ConsulServer, tmp_path: Path, former: str
) -> None:
    """Those of farms that are no more end by their TTL, those of this very process at once."""
    async with scene_on(consul, tmp_path) as scene:
        farm = await scene.farm(former)
        rc = await created(scene, 2)
        snapshot = await scene.snapshot()
        await farm.close()
        alive = await scene.farm("alive")
        await scene.lose_session("n1")
        await updated(scene, rc, NEW)
        await scene.restore(snapshot)
        await scene.rig.change_rc(rc, replicas_desired=3)
        dump = await scene.settled(AFTER_RESTORE)
        assert alive.owned >= {rc.id}
        assert {intent.manifest for _, intent in dump.intents.values()} == {sha_of(OLD)}


async def test_r15_restores_in_a_row_are_all_followed(scene: Scene) -> None:
    rc = await created(scene, 1)
    older = await scene.snapshot()
    rc = await scene.rig.change_rc(rc, replicas_desired=3)
    await updated(scene, rc, NEW)
    newer = await scene.snapshot()
    await scene.restore(older)
    await scene.restore(newer)
    assert len((await scene.settled(AFTER_RESTORE)).pods) == 3
    await scene.restore(older)
    dump = await scene.settled(AFTER_RESTORE)
    assert [intent.manifest for _, intent in dump.intents.values()] == [sha_of(OLD)]


async def drained(scene: Scene, node: str) -> None:
    await commit(scene.call(), await commands.drain(scene.call(), node, 600.0))
    dump = await scene.settled()
    assert node not in {place for place, _ in dump.intents}
