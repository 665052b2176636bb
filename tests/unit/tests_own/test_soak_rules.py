"""Each rule of the soak notices the very fault that it is there for, and nothing that is right."""

from __future__ import annotations

from typing import Any

import pytest

from store import codec
from store.audit import Audit
from store.entry import Entry
from store.keys import Keys
from store.manifests import Manifest
from store.nodes import Drain, Node, Taint
from store.pods import Pod
from store.rcs import ReplicationController
from store.reality import Exit, Health, Intent, Reality
from tests.fault.invariants import Dump
from tests.soak import causes, continuity, processes
from tests.soak.floors import Floors
from tests.soak.processes import Workload
from tests.soak.sight import Sight

KEYS = Keys()
OLD, NEW = "a" * 64, "b" * 64
PLACES = [("n1", "web"), ("n2", "web"), ("n3", "web")]
PROCESSES = [Workload(number, 1, place, "1") for number, place in enumerate(PLACES, start=100)]
RC: dict[str, Any] = {"id": "0f", "name": "web", "manifest": OLD, "pod_id": "web", "node_selector": "zone=a"}


class World:
    """Three pods of one controller that serve since 100; ``look`` shows it as it is."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.well_for = {node: 500.0 for node, _ in PLACES}
        self.running = list(PROCESSES)
        self.rc()
        for sha, version in ((OLD, "1"), (NEW, "2")):
            self.put(
                KEYS.manifest(sha),
                Manifest(id="web", command=["sleep", "7200"], env={"SOAK_VERSION": version}),
                1,
            )
        for place in PLACES:
            self.put(KEYS.node(place[0]), Node(), 1)
            self.pod(place, OLD, 10)
            self.real(place, OLD, 10, since=100.0)

    def put(self, key: str, record: object, index: int) -> None:
        self.entries[key] = Entry(
            key=key, value=codec.encode(record), modify_index=index, create_index=index, flags=0, session=""
        )

    def rc(self, **fields: Any) -> None:
        given = {"replicas_desired": 3, "min_healthy_time": 5.0, "strategy": "dynamic"}
        self.put(KEYS.record("rcs", "0f"), ReplicationController(**(RC | given | fields)), 2)

    def pod(self, place: tuple[str, str], sha: str, index: int, owner: str = "0f") -> None:
        self.put(KEYS.pod(owner, *place), Pod(manifest=sha), index)
        self.put(KEYS.intent(*place), Intent(manifest=sha, owner=owner), index)

    def real(self, place: tuple[str, str], sha: str, index: int, *, since: float, **fields: Any) -> None:
        health = fields.pop("health", "passing")
        reality = Reality(manifest=sha, intent=index, started=since, health=Health(health, since), **fields)
        self.put(KEYS.reality(*place), reality, index + 1)

    def look(self, at: float) -> Sight:
        zones = {node: "a" for node, _ in PLACES}
        return Sight(at, Dump(KEYS, dict(self.entries)), list(self.running), zones, dict(self.well_for))


def record(at: float = 200.0, pods: int = 3, **fields: Any) -> Audit:
    given = {"actor": "farm/f1", "action": "pods", "kind": "rcs", "id": "0f", "before": {"pods": pods}}
    return Audit(at=at, **(given | fields))


# -- causes ------------------------------------------------------------------------------------
def gone(world: World) -> list[str]:
    return list(causes.groundless(record(removed=["n1/web"]), [world.look(195.0), world.look(201.0)]))


def test_a_removal_without_a_cause_is_noticed() -> None:
    assert len(gone(World())) == 1


@pytest.mark.parametrize(
    "node",
    [Node(labels={"zone": "b"}), Node(drain=Drain())],
    ids=["another label", "a drain"],
)
def test_what_people_say_of_a_node_is_a_cause(node: Node) -> None:
    world = World()
    world.put(KEYS.node("n1"), node, 3)
    assert gone(world) == []


def test_a_taint_moves_no_pod_of_a_controller() -> None:
    world = World()
    world.put(KEYS.node("n1"), Node(taints=[Taint("soak")]), 3)
    assert len(gone(world)) == 1


def test_fewer_desired_pods_ill_health_and_a_lost_agent_are_causes() -> None:
    fewer, ill, lost = World(), World(), World()
    fewer.rc(replicas_desired=2)
    ill.real(PLACES[0], OLD, 10, since=100.0, health="critical")
    lost.well_for["n1"] = 0.0
    assert gone(fewer) == gone(ill) == gone(lost) == []


# -- floors ------------------------------------------------------------------------------------
def replaced(world: World, floors: Floors, at: float, index: int, *places: tuple[str, str]) -> list[str]:
    """What is told of a transaction that gives these pods the new manifest."""
    before = world.look(at - 0.5)
    for place in places:
        world.pod(place, NEW, index)
    told = record(at, relabelled=[f"{node}/{name}" for node, name in places])
    return list(floors.judge(index, told, before, world.look(at + 0.5)))


def test_r22_two_pods_at_once_are_noticed_where_one_may_be_down() -> None:
    assert len(replaced(World(), Floors(), 200.0, 20, *PLACES[:2])) == 1


@pytest.mark.parametrize(("since", "found"), [(None, 1), (199.0, 1), (190.0, 0)])
def test_r22_the_next_pod_waits_until_the_last_one_is_available(since: float | None, found: int) -> None:
    world, floors = World(), Floors()
    assert replaced(world, floors, 180.0, 20, PLACES[0]) == []
    if since is not None:
        world.real(PLACES[0], NEW, 20, since=since)
    assert len(replaced(world, floors, 200.0, 30, PLACES[1])) == found


def test_pods_that_did_not_serve_may_be_replaced_at_once() -> None:
    ill, ended = World(), World()
    for place in PLACES[:2]:
        ill.real(place, OLD, 10, since=100.0, health="critical")
    assert replaced(ill, Floors(), 200.0, 20, *PLACES[:2]) == []
    before = ended.look(199.0)
    for place in PLACES[:2]:
        ended.pod(place, NEW, 20)
        ended.real(place, NEW, 20, since=200.2, exits=[Exit(at=199.5, code=-9)])
    told = record(relabelled=["n1/web", "n2/web"])
    assert list(Floors().judge(20, told, before, ended.look(200.5))) == []


# -- processes ---------------------------------------------------------------------------------
def ended(world: World, **changes: Any) -> list[str]:
    earlier, before = world.look(198.0), world.look(199.0)
    world.running = PROCESSES[1:]
    return list(continuity.broken(earlier, before, world.look(200.0), **{"killed": set(), **changes}))


def test_r27_a_process_that_ends_by_nobodys_wish_is_noticed() -> None:
    assert len(ended(World())) == 1
    assert ended(World(), killed={(PROCESSES[0].pid, 1)}) == []


def test_r27_a_process_may_end_once_its_intent_changed() -> None:
    world = World()
    earlier = world.look(198.0)
    world.pod(PLACES[0], NEW, 20)
    before = world.look(199.0)
    world.running = PROCESSES[1:]
    assert list(continuity.broken(earlier, before, world.look(200.0), killed=set())) == []


def test_two_processes_of_one_pod_are_noticed() -> None:
    assert processes.twice(PROCESSES) == []
    assert len(processes.twice([*PROCESSES, Workload(7, 1, PLACES[0], "1")])) == 1
