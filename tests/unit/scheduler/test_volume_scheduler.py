"""Where named volumes go: uncloud's vectors (``TestVolumeScheduler_Schedule``), each error, a property."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.cluster import ClusterState
from scheduler.errors import NoMachine, SchedulerError, VolumeRefused
from scheduler.model import FleetView
from scheduler.volumes import Volume, VolumeScheduler, VolumeUser
from store.manifests import Constraint
from store.nodes import NodeVolume
from tests.fleets import fleet, node, request


def cluster(text: str) -> ClusterState:
    """Machines such as ``m1 m2(v1,v2) m3!(v3)``; the one with ``!`` is lost."""
    found: dict[str, list[str]] = {}
    for word in text.split():
        name, _, volumes = word.partition("(")
        found[name] = [volume for volume in volumes.rstrip(")").split(",") if volume]
    view: FleetView = fleet(*(node(name.rstrip("!"), lost=name.endswith("!")) for name in found))
    volumes = {name.rstrip("!"): dict.fromkeys(names, NodeVolume()) for name, names in found.items()}
    return ClusterState(view, volumes)


def user(text: str, **fields: object) -> VolumeUser:
    """A service such as ``s1@m1,m2:v1+v2``, global if its name begins with g."""
    head, _, volumes = text.partition(":")
    name, _, machines = head.partition("@")
    rules = [Constraint("node", "in", machines.split(","))] if machines else []
    return VolumeUser(
        service=name,
        request=request(constraints=rules),
        volumes=[Volume(name=volume) for volume in volumes.split("+") if volume],
        everywhere=name.startswith("g"),
        **fields,  # type: ignore[arg-type]
    )


def made(machines: str, *services: str) -> dict[str, list[str]]:
    schedule = VolumeScheduler(cluster(machines), [user(text) for text in services]).schedule()
    return {machine: [volume.name for volume in volumes] for machine, volumes in schedule.create.items()}


@pytest.mark.parametrize(
    ("machines", "services", "expected"),
    [
        ("m1", "s1:v1", {"m1": ["v1"]}),
        ("m1 m2", "s1:v1 s2:v1", {"m1": ["v1"]}),
        ("m1 m2(v1)", "s1:v1", {}),
        ("m1 m2", "s1@m2:v1", {"m2": ["v1"]}),
        ("m1 m2", "s1:v1+v2 s2:v2+v3 s3:v3+v4", {"m1": ["v1", "v2", "v3", "v4"]}),
        ("m1 m2 m3", "g:v1", {"m1": ["v1"], "m2": ["v1"], "m3": ["v1"]}),
        ("m1(v1) m2 m3", "g:v1", {"m2": ["v1"], "m3": ["v1"]}),
        ("m1 m2", "g1:v g2:v", {"m1": ["v"], "m2": ["v"]}),
        ("m1 m2 m3", "g1@m1,m2:v g2@m2,m3:v", {"m1": ["v"], "m2": ["v"], "m3": ["v"]}),
        ("m1 m2", "s1: s2:", {}),
        ("m1(v1) m2(v1)", "s1:v1", {}),
        ("m1 m2(v1)", "s1:v1+v2", {"m2": ["v2"]}),
        ("m1 m2", "s1:v1 s2@m2:v1+v2", {"m2": ["v1", "v2"]}),
    ],
)
def test_volumes_are_made_where_their_services_can_be(
    machines: str, services: str, expected: dict[str, list[str]]
) -> None:
    assert made(machines, *services.split()) == expected


@pytest.mark.parametrize(
    ("machines", "services", "why", "names"),
    [
        ("m1 m2", "s1@m1:v1 s2@m2:v1", "colocate", ["s1, s2", "volume v1"]),
        ("m1(v1) m2", "s1@m2:v1", "unreachable", ["s1", "volume v1 is on m1 alone"]),
        ("m1!(v1) m2", "s1:v1", "unreachable", ["s1", "volume v1 is on m1 alone"]),
        ("m1(v1) m2(v2)", "s1:v1+v2", "unreachable", ["volume v2 is on m2 alone"]),
        ("m1 m2", "s1@m1:v1+v2 s2@m2:v2+v3", "colocate", ["s1, s2", "volume v2"]),
        ("m1 m2", "g:v s:v", "global", ["volumes.v", "service s"]),
        ("m1", "s1:v1 s1:v2", "duplicate", ["services.s1"]),
    ],
)
def test_rules_and_volumes_that_exclude_one_another_are_refused_by_name(
    machines: str, services: str, why: str, names: list[str]
) -> None:
    with pytest.raises(VolumeRefused) as caught:
        made(machines, *services.split())
    assert caught.value.fields["why"] == why
    assert all(name in caught.value.message for name in names), caught.value.message


def test_a_service_without_a_machine_is_refused_with_the_reasons() -> None:
    with pytest.raises(NoMachine, match=r"services\.s1: .*m1: needs node in \(m9\)"):
        made("m1", "s1@m9:v1")


def one(volume: Volume, existing: NodeVolume | None = None) -> None:
    state = ClusterState(fleet(node("m1")), {"m1": {volume.name: existing} if existing else {}})
    VolumeScheduler(state, [VolumeUser(service="s", request=request(), volumes=[volume])]).schedule()


SIZE = {"size": "1"}


@pytest.mark.parametrize(
    ("volume", "existing", "matches"),
    [
        (Volume(name="v", driver="local", options=SIZE), NodeVolume(driver="local", options=SIZE), True),
        (Volume(name="v", driver="", options=SIZE), NodeVolume(options=SIZE), True),
        (Volume(name="v", driver="local"), NodeVolume(driver="local", options=SIZE), False),
        (Volume(name="v", driver="custom"), NodeVolume(), False),
        (Volume(name="v"), NodeVolume(driver="custom", options=SIZE), True),
    ],
)
def test_a_volume_that_exists_must_match(volume: Volume, existing: NodeVolume, matches: bool) -> None:
    if matches:
        one(volume, existing)
        return
    with pytest.raises(VolumeRefused, match="exists on m1 with driver") as caught:
        one(volume, existing)
    assert caught.value.fields["why"] == "mismatch"


def test_one_volume_described_in_two_ways_is_refused() -> None:
    users = [
        VolumeUser(service=name, request=request(), volumes=[Volume(name="v", no_copy=name == "b")])
        for name in ("a", "b")
    ]
    with pytest.raises(VolumeRefused, match=r"volumes\.v: services a and b describe it differently"):
        VolumeScheduler(cluster("m1"), users)


def test_an_external_volume_that_is_nowhere_is_never_made() -> None:
    with pytest.raises(VolumeRefused, match=r"volumes\.v: is external and on no machine"):
        one(Volume(name="v", external=True))


def test_what_is_scheduled_again_is_scheduled_by_what_stands_then() -> None:
    state = cluster("m1 m2")
    scheduler = VolumeScheduler(state, [user("a@m1:v"), user("b:v")])
    assert scheduler.schedule().machines == {"a": state.bit("m1"), "b": state.bit("m1")}
    state.schedule("v", state.bit("m2"))
    assert scheduler.schedule().machines == {"a": state.bit("m1"), "b": state.bits(["m1", "m2"])}


def stands(machines: str, *users: VolumeUser) -> dict[str, set[str]]:
    state = cluster(machines)
    schedule = VolumeScheduler(state, users).schedule()
    return {service: set(state.listed(bits)) for service, bits in schedule.machines.items()}


def test_a_project_stands_together_on_the_machine_of_its_volume() -> None:
    users = (user("web", together="shop"), user("db:data", together="shop"))
    assert stands("m1 m2(data) m3", *users) == {"web": {"m2"}, "db": {"m2"}}


def test_a_project_stays_where_most_of_its_pods_stand() -> None:
    users = (
        user("web", together="shop", standing=["m2", "m3"]),
        user("db:data", together="shop", standing=["m3"]),
    )
    assert stands("m1 m2 m3", *users) == {"web": {"m3"}, "db": {"m3"}}


def test_a_project_moves_when_its_machine_is_lost() -> None:
    users = (user("web", together="shop", standing=["m1"]), user("db", together="shop", standing=["m1"]))
    assert stands("m1! m2", *users) == {"web": {"m2"}, "db": {"m2"}}


machines = st.lists(
    st.tuples(st.booleans(), st.sets(st.sampled_from("uvw"), max_size=2)), min_size=1, max_size=4
)
services = st.lists(
    st.tuples(
        st.sampled_from("sssg"),
        st.sets(st.integers(1, 4), max_size=3),
        st.sets(st.sampled_from("uvwxyz"), max_size=3),
    ),
    min_size=1,
    max_size=5,
)


@given(machines, services)
def test_every_pod_finds_its_volumes_and_no_volume_is_made_twice(
    found: list[tuple[bool, set[str]]], wanted: list[tuple[str, set[int], set[str]]]
) -> None:
    text = " ".join(
        f"m{at}{'!' if lost else ''}({','.join(volumes)})" for at, (lost, volumes) in enumerate(found, 1)
    )
    users = [
        user(
            f"{kind}{at}{'@' if on else ''}{','.join(f'm{n}' for n in sorted(on))}"
            f":{'+'.join(sorted(volumes))}"
        )
        for at, (kind, on, volumes) in enumerate(wanted)
    ]
    state = cluster(text)
    before = {volume: state.having(volume) for volume in "uvwxyz"}
    try:
        schedule = VolumeScheduler(state, users).schedule()
    except SchedulerError:
        return
    for each in users:
        assert schedule.machines[each.service]
        for volume in each.volumes:
            assert schedule.machines[each.service] & ~state.having(volume.name) == 0
    shared = {volume.name for each in users if each.everywhere for volume in each.volumes}
    for machine, volumes in schedule.create.items():
        for volume in volumes:
            assert volume.name in shared or not before[volume.name]
            assert not state.bits([machine]) & before[volume.name]
    once = [
        volume.name for volumes in schedule.create.values() for volume in volumes if volume.name not in shared
    ]
    assert len(once) == len(set(once))
