"""Every rule that keeps a pod off a node, and that all of them are told, never just the first."""

from __future__ import annotations

import pytest

from scheduler.decide import allocation, eligibility, explanation
from scheduler.explain import text
from scheduler.model import NodeView, PlacementRequest, PodView
from store.artifacts import Artifact
from store.containers import Limits
from store.manifests import AntiAffinity, Constraint, Port, Spread, Toleration
from store.nodes import Drain, Taint
from store.secrets import Sealed
from tests.fleets import OWNER, fleet, node, request

GPU = Taint("gpu", "a100")
SOFT = Taint("old", effect="prefer-no-schedule")

MINE, OTHERS = f"age1{'q' * 58}", f"age1{'p' * 58}"
SEALED = Sealed(version=1, group="prod", recipients=[f"age1{'z' * 58}", MINE], body="")


def other(labels: dict[str, str] | None = None) -> PodView:
    return PodView("other", labels or {})


CASES: list[tuple[str, NodeView, PlacementRequest, list[str]]] = [
    ("nothing against it", node("n"), request(), []),
    ("selector", node("n", {"az": "b"}), request("az=a"), ["selector"]),
    ("each unmet part of a selector", node("n"), request("az=a,disk"), ["selector", "selector"]),
    ("constraint", node("n"), request(constraints=[Constraint("disk", "exists")]), ["constraint"]),
    ("taint", node("n", taints=[GPU]), request(), ["taint"]),
    ("soft taint", node("n", taints=[SOFT]), request(), []),
    ("tolerated", node("n", taints=[GPU]), request(tolerations=[Toleration("gpu")]), []),
    (
        "other value",
        node("n", taints=[GPU]),
        request(tolerations=[Toleration("gpu", value="h100")]),
        ["taint"],
    ),
    (
        "other effect",
        node("n", taints=[GPU]),
        request(tolerations=[Toleration("gpu", effect="prefer-no-schedule")]),
        ["taint"],
    ),
    ("cordoned", node("n", cordoned=True, cordon_reason="disk swap"), request(), ["cordoned"]),
    ("drain", node("n", drain=Drain()), request(), ["draining"]),
    ("drain, system pod waits", node("n", drain=Drain()), request(system=True), ["drain_waiting"]),
    ("drain, system stage", node("n", drain=Drain("system")), request(system=True), ["draining"]),
    ("R21 absent within grace", node("n", absent=True), request(), ["agent_unknown"]),
    ("R21 lost", node("n", lost=True), request(), ["agent_lost"]),
    ("R21 unknown label", node("n", absent=True), request("az=a,disk"), ["agent_unknown"]),
    ("R21 unknown label of a lost node", node("n", lost=True), request("az=a"), ["agent_lost"]),
    ("people say it", node("n", {"az": "b"}, absent=True), request("az=a"), ["selector", "agent_unknown"]),
    (
        "R21 constraint on an unknown label",
        node("n", absent=True),
        request(constraints=[Constraint("disk", "exists")]),
        ["agent_unknown"],
    ),
    ("R21 unknown amount", node("n", absent=True), request(resources={"gpu": 1}), ["agent_unknown"]),
    (
        "R17 a fixed port that another instance has",
        node("n", reserved={"db": {"port/8077/tcp": 1.0}}, index=1),
        request(ports={"http": Port(8077)}),
        ["port"],
    ),
    (
        "R17 the same port of the other protocol",
        node("n", reserved={"db": {"port/8077/udp": 1.0}}, index=1),
        request(ports={"http": Port(8077)}),
        [],
    ),
    (
        "R17 its own reservation is taken over",
        node("n", reserved={"web": {"port/8077/tcp": 1.0}}, index=1),
        request(ports={"http": Port(8077)}),
        [],
    ),
    ("R11 no such runtime", node("n", features=["process"]), request(runtime="container"), ["runtime"]),
    (
        "R11 no groups for limits",
        node("n", features=["process"]),
        request(limits=Limits(memory=64 << 20)),
        ["limits"],
    ),
    (
        "R11 groups for limits",
        node("n", features=["process", "runtime.limits"]),
        request(limits=Limits(memory=64 << 20)),
        [],
    ),
    ("R11 that runtime", node("n", features=["runtime.container"]), request(runtime="container"), []),
    (
        "R11 an older agent fetches no artifacts",
        node("n", features=["process", "leaving.1", "registry.main"]),
        request(artifacts=[Artifact(source="registry://main/x", sha256="0" * 64, to="x")]),
        ["feature"],
    ),
    (
        "R11 another registry",
        node("n", features=["process", "artifacts.1", "registry.other"]),
        request(artifacts=[Artifact(source="registry://main/x", sha256="0" * 64, to="x")]),
        ["registry"],
    ),
    (
        "R40 an older agent opens no secrets",
        node("n", features=["process", f"identity.{MINE}"]),
        request(sealed={"db@1": SEALED}),
        ["feature"],
    ),
    (
        "R40 no identity of the group",
        node("n", features=["process", "secrets.1", f"identity.{OTHERS}"]),
        request(sealed={"db@1": SEALED}),
        ["identity"],
    ),
    (
        "R40 one identity of the group",
        node("n", features=["process", "secrets.1", f"identity.{MINE}"]),
        request(sealed={"db@1": SEALED}),
        [],
    ),
    ("R11 every agent runs processes", node("n"), request(), []),
    (
        "R21 unknown features",
        node("n", absent=True),
        request(runtime="container"),
        ["agent_unknown"],
    ),
    ("held", node("n", pods={"web": other()}), request(), ["held"]),
    ("other instance", node("n", pods={"db": other()}), request(), []),
    ("replaced", node("n", pods={"web": other()}), request(replaces=frozenset({"other"})), []),
    ("numbered beside a foreign one", node("n", pods={"web": other()}), request(numbered=True), []),
    ("already there", node("n", pods={"web": PodView(OWNER)}), request(), ["full"]),
    ("room for a second", node("n", pods={"web~0": PodView(OWNER)}), request(per_node=2), []),
    (
        "no room for a third",
        node("n", pods={"web~0": PodView(OWNER), "web~1": PodView(OWNER)}),
        request(per_node=2),
        ["full"],
    ),
    ("no such resource", node("n"), request(resources={"gpu": 1}), ["capacity"]),
    ("zero asks for nothing", node("n"), request(resources={"gpu": 0}), []),
    (
        "each short resource",
        node("n", capacity={"cpu": 2, "memory": 1}, reserved={"db": {"cpu": 1.5}}, index=1),
        request(resources={"cpu": 1, "memory": 2}),
        ["capacity", "capacity"],
    ),
    (
        "ten tenths fit into one",
        node("n", capacity={"cpu": 1}, reserved={f"db~{n}": {"cpu": 0.1} for n in range(9)}, index=1),
        request(resources={"cpu": 0.1}),
        [],
    ),
    (
        "a replaced pod's room counts",
        node("n", capacity={"cpu": 1}, pods={"web": other()}, reserved={"web": {"cpu": 1}}, index=1),
        request(resources={"cpu": 1}, replaces=frozenset({"other"})),
        [],
    ),
    (
        "anti-affinity on the node",
        node("n", pods={"db": other({"app": "db"})}),
        request(anti_affinity=[AntiAffinity("app=db")]),
        ["anti_affinity"],
    ),
    (
        "soft anti-affinity",
        node("n", pods={"db": other({"app": "db"})}),
        request(anti_affinity=[AntiAffinity("app=db", hard=False)]),
        [],
    ),
    (
        "a leaving pod does not count",
        node("n", pods={"db": other({"app": "db"})}),
        request(anti_affinity=[AntiAffinity("app=db")], leaving=frozenset({("n", "db")})),
        [],
    ),
    ("hard spread without the label", node("n"), request(spread=[Spread("zone", hard=True)]), ["spread"]),
    ("soft spread without the label", node("n"), request(spread=[Spread("zone")]), []),
    (
        "everything at once",
        node(
            "n",
            {"az": "b", "disk": "hdd"},
            taints=[GPU],
            cordoned=True,
            drain=Drain(),
            capacity={"cpu": 0.5},
            lost=True,
            pods={"web": other({"app": "db"})},
        ),
        request(
            "az=a",
            constraints=[Constraint("disk", "=", ["ssd"])],
            resources={"cpu": 1},
            anti_affinity=[AntiAffinity("app=db")],
        ),
        [
            "selector",
            "constraint",
            "taint",
            "cordoned",
            "draining",
            "agent_lost",
            "held",
            "capacity",
            "anti_affinity",
        ],
    ),
]


@pytest.mark.parametrize(("view", "asked", "codes"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_reasons(view: NodeView, asked: PlacementRequest, codes: list[str]) -> None:
    told = explanation(asked, fleet(view)).verdicts[0]
    assert [reason.code for reason in told.reasons] == codes
    assert all(reason.text and "\n" not in reason.text for reason in told.reasons)
    assert bool(allocation(asked, 1, fleet(view)).assignments) == (not codes)


@pytest.mark.parametrize(
    ("trouble", "stays"),
    [
        ({"cordoned": True}, True),
        ({"taints": [GPU]}, True),
        ({"absent": True}, True),
        ({"drain": Drain()}, False),
        ({"lost": True}, False),
        ({"labels": {"az": "b"}}, False),
    ],
)
def test_what_keeps_new_pods_out_does_not_always_send_standing_ones_away(
    trouble: dict[str, object], stays: bool
) -> None:
    said = {"labels": {"az": "a"}, **trouble}
    view = fleet(node("n", pods={"web": PodView(OWNER)}, **said))  # type: ignore[arg-type]
    answer = eligibility(request("az=a"), view)
    assert answer.eligible == ()
    assert (answer.retained == ("n",)) is stays


def test_a_node_that_holds_our_pod_stays_eligible_though_it_is_full() -> None:
    view = fleet(
        node("n", pods={"web": PodView(OWNER)}, capacity={"cpu": 1}, reserved={"web": {"cpu": 1}}, index=1)
    )
    asked = request(resources={"cpu": 1})
    assert eligibility(asked, view).eligible == ("n",)
    assert allocation(asked, 1, view).missing == 1


def test_among_limits_the_question() -> None:
    view = fleet(node("a"), node("b"), node("c"))
    asked = request(among=frozenset({"b", "nowhere"}))
    assert eligibility(asked, view).eligible == ("b",)
    assert [place.node for place in allocation(asked, 3, view).assignments] == ["b"]


def test_why_counts_the_nodes_by_reason_and_names_the_nearest_miss() -> None:
    view = fleet(
        node("a", {"az": "a"}),
        node("b", {"az": "a"}, cordoned=True, cordon_reason="disk swap"),
        node("c", cordoned=True),
        node("d"),
    )
    answer = allocation(request("az=a"), 3, view)
    assert answer.refusals == {"cordoned": 2, "full": 1, "selector": 2}
    assert answer.why == (
        "2 of 3 pods found no place; of 4 nodes 2 cordoned, 2 outside the node selector, 1 full; "
        "nearest miss b: closed to new pods: disk swap"
    )
    assert allocation(request(), 2, {}).why == "2 of 2 pods found no place: there are no nodes"


def test_why_counts_each_node_once_and_names_amounts_as_people_write_them() -> None:
    view = fleet(
        *(node(name, capacity={"cpu": 0.25, "memory": 23.5 * 2**30}, index=1) for name in ("a", "b", "c"))
    )
    answer = allocation(request(resources={"cpu": 0.5, "memory": 2**40}), 1, view)
    assert answer.refusals == {"capacity": 3}
    assert answer.why == (
        "1 of 1 pod found no place; of 3 nodes 3 short of capacity; nearest miss a: "
        "asks for 0.5 cores, 0.25 of 0.25 free; asks for 1Ti memory, 23.5Gi of 23.5Gi free"
    )


def test_why_names_replicas_per_node_where_that_alone_is_in_the_way() -> None:
    view = fleet(node("a", pods={"web": PodView(OWNER)}), node("b"))
    assert allocation(request(), 3, view).why == (
        "2 of 3 pods found no place: 2 of 2 nodes have one already: raise replicas_per_node or add nodes"
    )


def test_an_explanation_speaks_of_pods_that_must_leave_only_where_there_are_some() -> None:
    view = fleet(node("a", {"az": "b"}), node("b", {"az": "b"}, pods={"web": PodView(OWNER)}))
    lines = text(explanation(request("az=a"), view))
    assert "    - a  refused" in lines
    assert "    - b  placed, pods there must leave" in lines
