"""Small fleets for tests of placement, and hypothesis strategies for arbitrary ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from hypothesis import strategies as st

from scheduler.fleet import node_view
from scheduler.model import Assignment, FleetView, NodeView, PlacementRequest, PodView
from store import manifests, selectors
from store.entry import Stored
from store.manifests import Affinity, AntiAffinity, Constraint, Manifest, Placement, Spread, Toleration
from store.nodes import Agent, Drain, Node, Reserved, Taint

OWNER = "me"
LABELS = {"app": "web"}


def node(
    name: str,
    labels: Mapping[str, str] | None = None,
    *,
    capacity: Mapping[str, float] | None = None,
    pods: Mapping[str, PodView] | None = None,
    reserved: Mapping[str, Mapping[str, float]] | None = None,
    index: int = 0,
    absent: bool = False,
    lost: bool = False,
    features: Sequence[str] = (),
    **said: Any,
) -> NodeView:
    """One node with a present agent, unless told otherwise; ``said`` are fields of its record."""
    book = Reserved(instances={name: dict(amounts) for name, amounts in (reserved or {}).items()})
    return node_view(
        name,
        node=Node(labels=dict(labels or {}), capacity=dict(capacity or {}), **said),
        agent=None if absent or lost else Agent(node=name, version="1", features=list(features)),
        lost=lost,
        reserved=Stored(name, book, index, msgspec.json.encode(book)) if index else None,
        pods=pods,
    )


def fleet(*nodes: NodeView) -> FleetView:
    """A view of these nodes."""
    return {one.name: one for one in nodes}


def request(
    selector: str = "",
    *,
    resources: Mapping[str, float] | None = None,
    system: bool = False,
    per_node: int = 1,
    labels: Mapping[str, str] | None = None,
    placement: Placement | None = None,
    constraints: list[Constraint] | None = None,
    affinity: list[Affinity] | None = None,
    anti_affinity: list[AntiAffinity] | None = None,
    spread: list[Spread] | None = None,
    tolerations: list[Toleration] | None = None,
    **rest: Any,
) -> PlacementRequest:
    """A question about the pod ``web`` of ``OWNER``; ``rest`` are other fields of request or manifest."""
    of_manifest = ("runtime", "ports", "artifacts", "sealed", "limits")
    fields = {name: rest.pop(name) for name in of_manifest if name in rest}
    block = placement or Placement(
        constraints=constraints or [],
        affinity=affinity or [],
        anti_affinity=anti_affinity or [],
        spread=spread or [],
        tolerations=tolerations or [],
    )
    return PlacementRequest(
        manifest=Manifest(
            id="web",
            command=["x"],
            resources=dict(resources or {}),
            placement=block,
            system=system,
            **fields,
        ),
        selector=selectors.parse(selector),
        owner=OWNER,
        labels=dict(LABELS if labels is None else labels),
        replicas_per_node=per_node,
        **rest,
    )


def placed(
    view: FleetView, places: tuple[Assignment, ...], asked: PlacementRequest, index: int = 0
) -> FleetView:
    """The fleet after an allocation was committed; ``index`` is the transaction's ModifyIndex."""
    after = dict(view)
    for place in places:
        before = after[place.node]
        pods = {**before.pods, place.instance: PodView(asked.owner, asked.labels)}
        books = {name: dict(amounts) for name, amounts in before.reserved.instances.items()}
        if amounts := manifests.asked(asked.manifest):
            books[place.instance] = amounts
        book = msgspec.structs.replace(
            before.reserved, instances=books, generation=before.reserved.generation + 1
        )
        fresh = node_view(
            before.name,
            node=Node(labels=dict(before.labels), capacity=dict(before.capacity)),
            agent=Agent(node=before.name, version="1"),
            reserved=Stored(before.name, book, index or 1, b"{}"),
            pods=pods,
        )
        after[place.node] = msgspec.structs.replace(
            before,
            pods=fresh.pods,
            owners=fresh.owners,
            reserved=fresh.reserved,
            reserved_index=fresh.reserved_index,
            used=fresh.used,
        )
    return after


# -- arbitrary fleets and questions --------------------------------------------------------------

ZONES = ("a", "b", "c")
_pod = st.builds(
    PodView,
    owner=st.sampled_from([OWNER, "other", "old"]),
    labels=st.sampled_from([{"app": "web"}, {"app": "db"}, {}]),
)
_instance = st.sampled_from(["web", "web~0", "web~1", "db", "cache"])
_amount = st.sampled_from([0.1, 0.3, 0.5, 1.0, 2.0])


@st.composite
def nodes(draw: st.DrawFn, name: str, troubles: bool = True) -> NodeView:
    """One node; without ``troubles`` nothing keeps pods away for good but labels and room."""
    labels = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "zone": st.sampled_from(ZONES),
                "rack": st.sampled_from(["r1", "r2", "r3", "r4"]),
                "disk": st.sampled_from(["ssd", "hdd"]),
                "cores": st.sampled_from(["2", "8", "many"]),
                "kernel": st.sampled_from(["5.4.0-100", "5.10.0", "6.1-rc2"]),
            },
        )
    )
    labels["host"] = name
    pods = draw(st.dictionaries(_instance, _pod, max_size=3))
    reserved = draw(st.dictionaries(_instance, st.fixed_dictionaries({"cpu": _amount}), max_size=2))
    said: dict[str, Any] = {}
    if troubles:
        said["cordoned"] = draw(st.sampled_from([False, False, False, True]))
        said["taints"] = draw(
            st.lists(
                st.builds(
                    Taint,
                    key=st.sampled_from(["gpu", "old"]),
                    effect=st.sampled_from(["no-schedule", "prefer-no-schedule"]),
                ),
                max_size=1,
            )
        )
        stage = draw(st.sampled_from([None, None, None, None, "pods", "system"]))
        said["drain"] = Drain(stage=stage) if stage else None
        absence = draw(st.sampled_from(["", "", "", "absent", "lost"]))
        said["absent"], said["lost"] = absence == "absent", absence == "lost"
    capacity = draw(st.sampled_from([{}, {"cpu": 1.0}, {"cpu": 4.0, "gpu": 2.0}]))
    return node(name, labels, capacity=capacity, pods=pods, reserved=reserved, index=7, **said)


@st.composite
def fleets(draw: st.DrawFn, least: int = 0, most: int = 12, troubles: bool = True) -> FleetView:
    """A fleet; the order of its mapping is arbitrary too."""
    count = draw(st.integers(least, most))
    names = draw(st.permutations([f"n{at:02d}" for at in range(count)]))
    return {name: draw(nodes(name, troubles)) for name in names}


_topology = st.sampled_from(["zone", "rack", "host"])
placements = st.builds(
    Placement,
    constraints=st.lists(
        st.sampled_from(
            [
                Constraint("disk", "=", ["ssd"]),
                Constraint("disk", "!=", ["hdd"]),
                Constraint("zone", "in", ["a", "b"]),
                Constraint("zone", "exists"),
                Constraint("cores", ">", ["2"]),
                Constraint("kernel", "version", [">=5.10"]),
            ]
        ),
        max_size=2,
    ),
    affinity=st.lists(
        st.builds(
            Affinity,
            label=st.just("disk"),
            values=st.sampled_from([["ssd"], ["hdd"]]),
            weight=st.sampled_from([-100, -10, 30, 100]),
        ),
        max_size=2,
    ),
    anti_affinity=st.lists(
        st.builds(
            AntiAffinity,
            selector=st.sampled_from(["app=web", "app=db", "!app"]),
            topology=st.one_of(st.just(""), _topology),
            hard=st.booleans(),
            weight=st.sampled_from([0, 10, 50]),
        ),
        max_size=2,
    ),
    spread=st.lists(
        st.builds(
            Spread,
            label=_topology,
            hard=st.booleans(),
            max_skew=st.integers(1, 2),
            weight=st.sampled_from([0, 10, 50]),
        ),
        max_size=2,
    ),
    tolerations=st.lists(st.builds(Toleration, key=st.sampled_from(["gpu", "old"])), max_size=1),
)


@st.composite
def requests(draw: st.DrawFn, simple: bool = False) -> PlacementRequest:
    """A question; ``simple`` ones carry no rule across nodes."""
    block = draw(placements)
    if simple:
        block = msgspec.structs.replace(block, spread=[], anti_affinity=[])
    return request(
        draw(st.sampled_from(["", "", "zone in (a,b)", "disk=ssd", "!disk"])),
        resources=draw(st.sampled_from([{}, {}, {"cpu": 0.1}, {"cpu": 0.5, "gpu": 1.0}])),
        per_node=draw(st.integers(1, 3)),
        labels=draw(st.sampled_from([{"app": "web"}, {}])),
        system=draw(st.booleans()),
        placement=block,
        replaces=draw(st.sampled_from([frozenset(), frozenset({"old"})])),
    )
