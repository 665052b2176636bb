"""Plans of one service: uncloud's cases (R1-R16 and G1-G9 of its strategy, orders, hooks), and properties.

Where they differ: machines are taken by load and then by name or draw, not by lot; a machine that is cordoned
or whose agent is absent keeps its pods (uncloud would remove them); a pod that fails is outdated; one port or
no room for both decides the order before the file does.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farmd.deploy.operations import (
    Names,
    ReplaceContainerOperation,
    RunContainerOperation,
    ServicePod,
    StandingService,
)
from farmd.deploy.spec import (
    BindOptions,
    Hook,
    Placement,
    Resources,
    ServiceSpec,
    TmpfsOptions,
    UpdateConfig,
    VolumeMount,
    VolumeSpec,
)
from farmd.deploy.strategy import RollingStrategy
from scheduler.cluster import ClusterState
from scheduler.errors import NoMachine
from scheduler.model import PodView
from store.manifests import Spread
from store.nodes import NodeVolume
from tests.fleets import fleet
from tests.unit.deploy.worlds import ID, applied, cluster, machine, plan, pods, spec


def told(operations: Any) -> str:
    """Short: ``+A ~B -C``; stop-first is ``!``, a stop ``x``, a hook ``h``."""
    signs = {"run": "+", "remove": "-", "stop": "x", "hook": "h"}
    words = []
    for each in operations:
        verb, _, rest = str(each).partition(" ")
        if isinstance(each, ReplaceContainerOperation):
            words.append(("~" if each.order == "start-first" else "!") + each.place[0])
        else:
            words.append(signs[verb] + rest.split(" on ")[-1].split("/")[0])
    return " ".join(words)


@pytest.mark.parametrize(
    ("case", "machines", "live", "wanted", "expected"),
    [
        ("R1", "A B C", "", spec(replicas=3), "+A +B +C"),
        ("R2", "A B C", "", spec(replicas=5), "+A +B +C +A +B"),
        ("R3", "A B C", "", spec(), "+A"),
        ("R4", "A B C", "A:o B:o C:o", spec(replicas=3), "~A ~B ~C"),
        ("R5", "A B C", "A:u B:o C:o", spec(replicas=3), "~B ~C"),
        ("R6", "A B C", "A:u B:u C:u", spec(replicas=3), ""),
        ("R7", "A B C", "A:u B:u C:u", spec(replicas=5), "+A +B"),
        ("R8", "A B C", "A:u B:u C:u", spec(replicas=1), "-B -C"),
        ("R9", "A B C", "A:u,u B:u", spec(replicas=3), "+C -A"),
        ("R10", "A B C", "A:u,u,u", spec(replicas=3), "+B +C -A -A"),
        ("R11", "A B C", "A:o B:o", spec(replicas=2, machines="C"), "+C +C -A -B"),
        ("R12", "A B C!", "A:u B:u C:u", spec(replicas=3), "+A -C"),
        ("R12, absent", "A B C?", "A:u B:u C:u", spec(replicas=3), ""),
        ("R12, back", "A B C", "A:u,u B:u C:u", spec(replicas=3), "-A"),
        ("R13", "A", "A:x", spec(), "~A"),
        ("a stopped pod holds its port", "A", "A:x", spec(replicas=2, ports="80:8080@host"), "!A"),
        ("R15", "A B C", "A:o B:o C:o", spec(replicas=5), "~A ~B ~C +A +B"),
        ("R16", "A", "A:o", spec(ports="80:8080@host"), "!A"),
        ("R17", "A", "A:x,o", spec(), "~A -A"),
        ("failing first", "A B C", "A:o B:f C:o", spec(replicas=3), "~B ~A ~C"),
        ("failing removed first", "A B C", "A:u B:u C:f", spec(replicas=2), "-C"),
        ("mine is no longer judged", "A B", "A:m B:o", spec(replicas=2), "~B"),
        ("cordoned keeps", "A- B", "A:u", spec(), ""),
        ("cordoned replaces in place", "A- B", "A:o", spec(), "!A"),
        ("cordoned takes none", "A- B", "A:u", spec(replicas=3), "+B +B"),
        ("scale to none", "A B", "A:u B:u", spec(replicas=0), "-A -B"),
        ("lost, waits", "A B!", "B:u", spec(on_lost="wait"), ""),
        ("lost, replaced", "A B!", "B:u", spec(), "+A -B"),
        ("at most one a machine", "A B", "A:u", spec(replicas=3, most=1), "+B"),
    ],
)
def test_a_replicated_service(
    case: str, machines: str, live: str, wanted: ServiceSpec, expected: str
) -> None:
    del case
    assert told(plan(machines, live, wanted)) == expected


def test_r14_recreates_what_fits_but_not_what_this_deployment_placed() -> None:
    assert told(plan("A B C", "A:u B:u C:m", spec(replicas=3), force=True)) == "~A ~B"


EVERYWHERE: dict[str, Any] = {"mode": "global"}


@pytest.mark.parametrize(
    ("case", "machines", "live", "wanted", "before", "expected"),
    [
        ("G1", "A B C", "", spec(**EVERYWHERE), "", "+A +B +C"),
        ("G2", "A B", "A:o B:o", spec(ports="80:8080@host", **EVERYWHERE), "no ports", "~A ~B"),
        ("G3", "A B", "A:o B:o", spec(ports="80:8080@host", **EVERYWHERE), "", "!A !B"),
        ("G4", "A B C", "A:o B:o", spec(machines="A C", **EVERYWHERE), "", "~A +C -B"),
        ("G5", "A B C", "A:o C:o", spec(**EVERYWHERE), "placed", "~A +B ~C"),
        ("G8", "A", "A:o,u", spec(**EVERYWHERE), "", "-A"),
        ("G9", "A", "A:x,x", spec(**EVERYWHERE), "", "+A -A -A"),
        ("lost", "A B!", "A:u B:u", spec(**EVERYWHERE), "", "-B"),
        ("absent", "A B?", "A:u B:u", spec(**EVERYWHERE), "", ""),
    ],
)
def test_a_global_service(
    case: str, machines: str, live: str, wanted: ServiceSpec, before: str, expected: str
) -> None:
    del case
    earlier = {"no ports": spec(**EVERYWHERE), "placed": spec(machines="A C", **EVERYWHERE)}.get(before)
    assert told(plan(machines, live, wanted, before=earlier)) == expected


@pytest.mark.parametrize(
    ("ports", "second", "expected"),
    [("8080:80@host 9090:90@host", "9090:90@host", "xA !A -A"), ("8080:80@host", "3000:30@host", "!A -A")],
)
def test_g6_g7_all_pods_that_hold_a_wanted_port_stop_first(ports: str, second: str, expected: str) -> None:
    wanted = spec(ports=ports, **EVERYWHERE)
    standing = tuple(
        ServicePod(place=("A", f"web~{number}"), spec=spec(ports=held, image="web:1", **EVERYWHERE))
        for number, held in enumerate(("8080:80@host", second))
    )
    service = StandingService(id=ID, name="web", mode="global", containers=standing)
    found = RollingStrategy().plan(cluster("A", standing), service, wanted)
    assert told(found) == expected


def mounting(kind: str, **fields: Any) -> ServiceSpec:
    volume = {
        "volume": VolumeSpec(name="data"),
        "bind": VolumeSpec(name="data", type="bind", bind=BindOptions(host_path="/srv")),
        "tmpfs": VolumeSpec(name="data", type="tmpfs", tmpfs=TmpfsOptions()),
    }[kind]
    mounts = [VolumeMount(volume="data", path="/data")]
    return spec(volumes=[volume], container={"mounts": mounts}, **fields)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (spec(update=UpdateConfig(order="stop-first")), "stop-first"),
        (spec(update=UpdateConfig(order="start-first")), "start-first"),
        (mounting("volume", update=UpdateConfig(order="start-first")), "start-first"),
        (mounting("volume"), "stop-first"),
        (mounting("volume", replicas=3), "start-first"),
        (mounting("bind"), "start-first"),
        (mounting("tmpfs"), "start-first"),
        (spec(), "start-first"),
        (spec(ports="80:80@host", update=UpdateConfig(order="start-first")), "stop-first"),
        (spec(container={"resources": Resources(cpu_reservation=1.0)}), "stop-first"),
    ],
)
def test_the_order_of_a_replacement(wanted: ServiceSpec, expected: str) -> None:
    standing = pods("A:o", wanted)
    view = fleet(machine("A", capacity={"cpu": 1.0}, reserved={"web~0": {"cpu": 1.0}}, index=3))
    state = ClusterState(view, {"A": {"data": NodeVolume()}})
    found = RollingStrategy().plan(state, StandingService(id=ID, name="web", containers=standing), wanted)
    replacement, *_ = found
    assert isinstance(replacement, ReplaceContainerOperation)
    assert replacement.order == expected


def test_a_pod_whose_manifest_nobody_can_read_stops_first() -> None:
    pod = ServicePod(place=("A", "web~0"), spec=None)
    found = RollingStrategy().plan(
        cluster("A", (pod,)), StandingService(id=ID, name="web", containers=(pod,)), spec()
    )
    assert told(found) == "!A"


HOOK: dict[str, Any] = {"pre_deploy": Hook(command=["migrate"])}


@pytest.mark.parametrize(
    ("live", "wanted", "expected"),
    [
        ("", spec(**HOOK), "hA +A"),
        ("A:u", spec(**HOOK), ""),
        ("A:u B:u", spec(**HOOK), "-B"),
        ("A:o B:u", spec(replicas=2, **HOOK), "hA ~A"),
        ("A:u", spec(replicas=2, **HOOK), "hB +B"),
        ("A:o", spec(), "~A"),
    ],
)
def test_a_hook_runs_once_before_the_first_pod_that_comes_or_changes(
    live: str, wanted: ServiceSpec, expected: str
) -> None:
    assert told(plan("A B", live, wanted)) == expected


@pytest.mark.parametrize(
    ("live", "replicas", "hard", "expected"),
    [
        ("", 4, False, {"a": 2, "b": 2}),
        ("A:u", 4, False, {"a": 1, "b": 2}),
        ("A:u C:u", 4, True, {"a": 0, "b": 2}),
        ("A:o", 2, False, {"a": 0, "b": 1}),
    ],
)
def test_pods_are_spread_as_their_placement_says(
    live: str, replicas: int, hard: bool, expected: dict[str, int]
) -> None:
    zones = {"A": "a", "B": "a", "C": "a", "D": "b"}
    wanted = spec(replicas=replicas, placement=Placement(spread=[Spread("zone", hard=hard, weight=100)]))
    standing = pods(live, wanted)
    view = fleet(
        *(
            machine(
                name,
                {"zone": zone},
                pods={pod.place[1]: PodView(ID) for pod in standing if pod.place[0] == name},
            )
            for name, zone in zones.items()
        )
    )
    service = StandingService(id=ID, name="web", containers=standing)
    found = RollingStrategy(new_id=ID).plan(ClusterState(view), service, wanted)
    runs = [each.machine for each in found if isinstance(each, RunContainerOperation)]
    counted = {zone: sum(zones[name] == zone for name in runs) for zone in "ab"}
    assert counted == expected
    assert not found.short


def test_volumes_leave_only_the_machines_that_have_them() -> None:
    state = ClusterState(fleet(machine("A"), machine("B")), {"B": {"data": NodeVolume()}})
    found = RollingStrategy(new_id=ID).plan(state, None, mounting("volume", replicas=3))
    assert told(found) == "+B +B +B"
    with pytest.raises(NoMachine, match="A: does not have the volumes"):
        RollingStrategy().plan(ClusterState(fleet(machine("A"))), None, mounting("volume"))


def test_pods_without_a_machine_are_told() -> None:
    wanted = spec(replicas=3, ports="80:8080@host")
    found = plan("A B", "", wanted)
    assert (told(found), found.short) == ("+A +B", ("1 of 3 pods find no machine: A: port 80/tcp is taken",))


def test_a_plan_is_shown_with_names() -> None:
    found = plan("A B", "A:o B:o", spec(replicas=1, ports="80:80@host", **HOOK))
    assert found.format(Names(machines={"A": "alpha"})).splitlines() == [
        "hook migrate on alpha, at most 300 s",
        "-/+ replace web~0 on alpha stop-first: one port for both, 80:80/tcp@host",
        "- remove web~0 on B",
    ]


kinds = st.lists(st.sampled_from("uofx"), min_size=1, max_size=3).map(",".join)
lives = st.dictionaries(st.sampled_from("ABCD"), kinds, max_size=4).map(
    lambda found: " ".join(f"{name}:{pods}" for name, pods in found.items())
)
wishes = st.builds(
    lambda replicas, everywhere, ports, machines, cpu: spec(
        replicas=replicas,
        mode="global" if everywhere else "replicated",
        ports="80:8080@host" if ports else "",
        machines=machines,
        container={"resources": Resources(cpu_reservation=cpu)},
    ),
    st.integers(0, 6),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["", "A B", "C"]),
    st.sampled_from([0.0, 1.0]),
)
clusters = st.lists(
    st.sampled_from(["A", "A-", "B", "B!", "C", "C?", "D"]), min_size=1, unique_by=lambda w: w[0]
)


@given(clusters, lives, wishes)
def test_a_plan_that_was_carried_out_leaves_nothing_to_do(
    machines: list[str], live: str, wanted: ServiceSpec
) -> None:
    standing = pods(live, wanted)
    service = StandingService(id=ID, name="web", mode=wanted.mode, containers=standing)
    text = " ".join(machines)
    facts = {"capacity": {"cpu": 9.0}}
    try:
        found = RollingStrategy().plan(cluster(text, standing, **facts), service, wanted)
    except NoMachine:
        return
    after = applied(found, service, wanted)
    again = RollingStrategy().plan(cluster(text, after.containers, **facts), after, wanted)
    assert told(again) == ""


@given(clusters, lives, wishes, st.randoms())
def test_equal_input_gives_an_equal_plan_in_any_order(
    machines: list[str], live: str, wanted: ServiceSpec, rng: Any
) -> None:
    standing = list(pods(live, wanted))
    plans = []
    for _ in range(2):
        service = StandingService(id=ID, name="web", mode=wanted.mode, containers=tuple(standing))
        try:
            found = RollingStrategy().plan(cluster(" ".join(machines), tuple(standing)), service, wanted)
            plans.append(str(found))
        except NoMachine as error:
            plans.append(error.message)
        rng.shuffle(standing)
        rng.shuffle(machines)
    assert plans[0] == plans[1]


@given(clusters, lives, wishes)
def test_a_replicated_plan_ends_with_as_many_pods_as_wanted_or_says_why(
    machines: list[str], live: str, wanted: ServiceSpec
) -> None:
    if wanted.mode == "global":
        return
    service = StandingService(id=ID, name="web", containers=pods(live, wanted))
    try:
        found = RollingStrategy().plan(cluster(" ".join(machines), service.containers), service, wanted)
    except NoMachine:
        return
    after = applied(found, service, wanted).containers
    assert len(after) == wanted.replicas or (found.short and len(after) < wanted.replicas)
    if wanted.ports:
        held = [pod.place[0] for pod in after if pod.spec == wanted]
        standing = {pod.place for pod in service.containers}
        fresh = [pod.place[0] for pod in after if pod.place not in standing]
        assert all(held.count(machine) == 1 for machine in fresh)


def test_a_plan_of_very_many_pods_keeps_the_limit_of_each_machine() -> None:
    planned = plan("A B C", "", spec(replicas=100_000, most=30_000))
    placed = Counter(each.machine for each in planned if isinstance(each, RunContainerOperation))
    assert placed == {"A": 30_000, "B": 30_000, "C": 30_000}
    assert planned.short == ("10000 of 100000 pods find no machine",)
