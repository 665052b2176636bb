"""What the random walk found once daemon sets and blind farms had joined it, each as the shortest way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from farmd.daemonset.commands import DAEMON_SET
from farmd.nodes import commands as node_commands
from farmd.replication import commands
from farmd.runtime import tasks
from store import codec
from store.daemonsets import KIND
from store.nodes import Reserved
from store.pods import Pod
from store.reality import Intent
from store.status import Status
from tests.stateful.fleet import KEYS
from tests.stateful.scene import Scene


def logs(**fields: Any) -> dict[str, Any]:
    """A daemon set as a person would write it; ``pod_…`` fields go into the pod."""
    pod = {name.removeprefix("pod_"): fields.pop(name) for name in list(fields) if name.startswith("pod_")}
    return {
        "name": "logs",
        "min_healthy_time": 0,
        **fields,
        "pod": {"id": "log", "command": ["sleep", "9"], **pod},
    }


def daemonset(scene: Scene, **fields: Any) -> str:
    spec = DAEMON_SET.file.parse(logs(**fields), "test")
    made = scene.ask(lambda: DAEMON_SET.create(scene.call, spec))
    assert made is not None
    scene.change(KEYS.record(KIND, made.change.id), **{"x-team": "a"})
    return made.change.id


def change(scene: Scene, **fields: Any) -> None:
    spec = DAEMON_SET.file.parse(logs(**fields), "test")
    assert scene.ask(lambda: DAEMON_SET.update(scene.call, spec, now=True)) is not None


def status(scene: Scene, item: str) -> Status:
    entry = scene.read(KEYS.status(KIND, item))
    assert entry is not None
    return codec.decode(Status, entry.value, entry.key)


def test_r17_a_daemon_sets_new_manifest_is_not_put_where_it_does_not_fit(scene: Scene) -> None:
    scene.nodes(2, cpu=2.0)
    logs = daemonset(scene, pod_resources={"cpu": 1.0})
    scene.rc(name="db", replicas=1, pod_id="db", pod_resources={"cpu": 1.0})
    scene.farm()
    change(scene, pod_resources={"cpu": 2.0})
    scene.advance(10.0)
    scene.check()
    assert (status(scene, logs).state, status(scene, logs).outdated) == ("blocked", 1)
    assert "no room" in status(scene, logs).reason
    assert scene.ask(lambda: commands.set_replicas(scene.call, "db", 0)) is not None
    scene.advance(10.0)
    assert status(scene, logs).state == "converged"


def test_a_pod_that_cannot_be_replaced_keeps_no_other_node_waiting_for_its_turn(scene: Scene) -> None:
    scene.nodes(1, cpu=2.0)
    scene.rc(name="db", replicas=1, pod_id="db", pod_resources={"cpu": 1.0})
    logs = daemonset(scene, pod_resources={"cpu": 1.0}, rate=1)
    scene.farm()
    scene.advance(70.0)
    for number in (1, 2):
        scene.add_node(f"n{number}", {"zone": "a"}, 4.0)
    change(scene, pod_resources={"cpu": 2.0}, rate=1)
    scene.advance(180.0)
    assert status(scene, logs).state == "blocked"
    assert len(scene.places(logs)) == 3


def test_a_place_that_comes_free_while_a_daemon_set_reads_is_taken(scene: Scene) -> None:
    scene.nodes(1)
    rc = scene.rc(name="web", replicas=1, pod_id="log", pod_command=["sleep", "1"])
    line = scene.farm().line
    (place,) = scene.places(rc)
    line.slow_reads = "/manifests/", 10.0
    logs = daemonset(scene)
    scene.advance(5.0)
    scene.delete(KEYS.record("rcs", rc))
    scene.delete(KEYS.name("rcs", "web"))
    scene.delete(KEYS.pod(rc, *place))
    scene.delete(KEYS.intent(*place))
    scene.advance(60.0)
    assert scene.places(logs) == [("n0", "log")]


def test_r18_a_drain_goes_on_after_a_freeze_that_began_while_a_move_waited_for_its_next_try(
    scene: Scene,
) -> None:
    scene.nodes(3)
    rc = scene.rc(name="web", replicas=1, strategy="dynamic")
    scene.farm()
    ((node, _),) = scene.places(rc)
    for other in {"n0", "n1", "n2"} - {node}:
        scene.agents[other].ail("hello", sick=True)
    assert scene.ask(lambda: node_commands.drain(scene.call, node, 600.0)) is not None
    scene.advance(32.0)
    assert scene.sight.work[f"rcs/{rc}"].transfer_failures == 1
    sentinel = KEYS.sentinel(KEYS.tree("nodes"))
    value = scene.read(sentinel)
    assert value is not None
    scene.delete(sentinel)
    scene.advance(5.0)
    scene.change(KEYS.record("rcs", rc), labels={"any": "change"})
    scene.advance(5.0)
    assert scene.status(rc).state == "frozen"
    for other in scene.agents.values():
        other.ail("hello", sick=False)
    scene.put(sentinel, value.value)
    scene.converge(within=200.0)
    assert scene.places(rc)[0][0] != node


def test_a_drain_empties_a_node_that_is_not_a_daemon_sets_any_more_even_the_last_one(scene: Scene) -> None:
    scene.nodes(1)
    logs = daemonset(scene, node_selector="zone=a")
    scene.farm()
    assert scene.ask(lambda: node_commands.label(scene.call, "n0", {"zone": "b"})) is not None
    scene.advance(5.0)
    assert scene.places(logs) == [("n0", "log")], "no node is eligible: that is more often a mistake"
    assert scene.ask(lambda: node_commands.drain(scene.call, "n0", 600.0)) is not None
    scene.advance(5.0)
    assert scene.places(logs) == []


def test_r19_health_that_cannot_be_read_moves_nothing(scene: Scene) -> None:
    scene.nodes(3)
    rc = scene.rc(name="web", replicas=1, strategy="dynamic")
    scene.farm()
    stood = scene.places(rc)
    scene.agents[stood[0][0]].ail("hello", sick=True)
    scene.advance(3.0)
    sentinel = KEYS.sentinel(KEYS.tree("reality"))
    value = scene.read(sentinel)
    assert value is not None
    scene.delete(sentinel)
    scene.advance(1.0)
    scene.agents[stood[0][0]].ail("hello", sick=False)
    scene.advance(60.0)
    assert scene.places(rc) == stood
    assert scene.status(rc).state == "frozen"
    scene.put(sentinel, value.value)
    scene.advance(20.0)
    assert (scene.places(rc), scene.status(rc).state) == (stood, "converged")


@pytest.mark.parametrize(("delay", "locked"), [(0.2, False), (20.0, False), (20.0, True)])
def test_r14_a_move_that_a_rollout_finds_under_way_is_ended_first(
    scene: Scene, delay: float, locked: bool
) -> None:
    scene.nodes(2)
    rc = scene.rc(name="web", replicas=1, strategy="dynamic", pod_resources={"cpu": 1.0})
    scene.farm()
    stood = scene.places(rc)
    for agent in scene.agents.values():
        agent.delay = delay
    assert scene.ask(lambda: node_commands.drain(scene.call, stood[0][0], 600.0)) is not None
    while len(scene.places(rc)) < 2:
        scene.advance(0.01)
    if locked:
        scene.lock(KEYS.mutation_lock("rcs", rc))
    scene.change(KEYS.record("rcs", rc), managed_by="rollouts/0123456789abcdef", taken=True)
    scene.advance(5.0)
    assert scene.places(rc) == stood, "before its successor is healthy a pod stays"
    assert f"rcs/{rc}" not in scene.sight.work
    scene.check()


def arrive(scene: Scene, owner: str, place: tuple[str, str], room: dict[str, dict[str, float]]) -> None:
    """Another's pod arrives while the farm sees others' reservations, and for a moment not their pods."""
    idle = scene.rc(name="idle", replicas=1, disabled=True)
    plain = scene.sight.rcs[idle].manifest
    scene.put(KEYS.pod(idle, "n9", "hello"), codec.encode(Pod(plain)))
    scene.put(KEYS.intent("n9", "hello"), codec.encode(Intent(plain, idle)))
    scene.advance(0.1)
    manifest = scene.sight.rcs[owner].manifest
    scene.put(KEYS.reserved(place[0]), codec.encode(Reserved(room, 7)))
    scene.put(KEYS.pod(owner, *place), codec.encode(Pod(manifest)))
    scene.put(KEYS.intent(*place), codec.encode(Intent(manifest, owner)))


def test_r17_a_move_that_is_given_up_takes_no_room_of_who_came_meanwhile(scene: Scene) -> None:
    scene.nodes(2)
    rc = scene.rc(name="web", replicas=1, strategy="dynamic")
    farm = scene.farm()
    other = scene.rc(name="other", replicas=1, disabled=True, pod_resources={"cpu": 1.0})
    ((node, _),) = scene.places(rc)
    farm.line.delay = 0.3
    assert scene.ask(lambda: node_commands.drain(scene.call, node, 600.0)) is not None
    while (work := scene.sight.work.get(f"rcs/{rc}")) is None:
        scene.advance(0.05)
    assert work.transfer is not None
    new, room = work.transfer.new, {work.transfer.new_instance: {"cpu": 1.0}}
    scene.lock(KEYS.mutation_lock("rcs", rc))
    scene.advance(8.0)
    farm.line.delay = 0.0
    arrive(scene, other, new, room)
    scene.delete(KEYS.mutation_lock("rcs", rc))
    assert scene.ask(lambda: node_commands.undrain(scene.call, node)) is not None
    scene.advance(10.0)
    assert scene.sight.reserved[new[0]].instances == room
    assert f"rcs/{rc}" not in scene.sight.work or scene.sight.work[f"rcs/{rc}"].transfer is None


def test_r17_a_move_that_begins_takes_no_room_of_who_came_meanwhile(scene: Scene) -> None:
    scene.nodes(2)
    rc = scene.rc(name="web", replicas=1, strategy="dynamic")
    scene.farm()
    other = scene.rc(name="other", replicas=1, disabled=True, pod_resources={"cpu": 1.0})
    ((node, instance),) = scene.places(rc)
    (free,) = {"n0", "n1"} - {node}
    arrive(scene, other, (free, instance), {instance: {"cpu": 1.0}})
    assert scene.ask(lambda: node_commands.drain(scene.call, node, 600.0)) is not None
    scene.advance(10.0)
    assert scene.sight.reserved[free].instances == {instance: {"cpu": 1.0}}
    assert scene.places(rc) == [(node, instance)]


def test_a_drain_does_not_wait_for_what_an_unhealthy_pod_could_not_do(scene: Scene) -> None:
    scene.nodes(3)
    rc = scene.rc(name="web", replicas=1, strategy="dynamic")
    scene.farm()
    ((node, _),) = scene.places(rc)
    for agent in scene.agents.values():
        agent.ail("hello", sick=True)
    scene.advance(60.0)
    assert scene.sight.work[f"rcs/{rc}"].transfer_failures == 1
    for agent in scene.agents.values():
        agent.ail("hello", sick=False)
    assert scene.places(rc)[0][0] == node
    assert scene.ask(lambda: node_commands.drain(scene.call, node, 600.0)) is not None
    scene.advance(5.0)
    assert scene.places(rc)[0][0] != node


def test_r2_a_farm_that_stops_gives_each_of_its_parts_the_time_to_end() -> None:
    ended: list[str] = []

    async def part(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            ended.append(name)

    async def stopped() -> None:
        work = asyncio.create_task(tasks.until_one_fails([part("claims"), part("watches")]))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work

    asyncio.run(stopped())
    assert ended == ["claims", "watches"]


def test_r15_who_takes_over_a_controller_knows_what_its_pods_have_reserved(scene: Scene) -> None:
    scene.nodes(1)
    scene.farm("ash")
    scene.farm("birch")
    rc = scene.rc(name="web", replicas=0, pod_resources={"cpu": 1.0})
    scene.advance(3.0)
    sentinel = KEYS.sentinel(KEYS.tree("reserved"))
    value = scene.read(sentinel)
    assert value is not None
    scene.delete(sentinel)  # its watches tell nothing any more
    assert scene.ask(lambda: commands.set_replicas(scene.call, "web", 1)) is not None
    scene.advance(3.0)
    assert len(scene.places(rc)) == 1
    lock = scene.read(KEYS.lock("rcs", rc))
    assert lock is not None
    assert scene.ask(lambda: commands.set_replicas(scene.call, "web", 0)) is not None
    scene.evicted.add(lock.session)
    scene.run(scene.hand.destroy_session(lock.session))
    scene.advance(10.0)
    scene.check()
    scene.put(sentinel, value.value)
    scene.advance(30.0)
    assert scene.places(rc) == []
    assert scene.sight.reserved["n0"].instances == {}
