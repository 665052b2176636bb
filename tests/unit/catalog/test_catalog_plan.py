"""What the plan of a service in Consul's catalogue writes, for each thing that may stand there."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from farmd.catalog import plan as planning
from farmd.catalog.facts import Plan, Snapshot
from farmd.services.endpoints import Endpoint, Sighting
from store import catalog
from store.catalog import Node, Standing
from store.services import Catalog, Service

CLUSTER, SERVICE = "0123456789abcdef", "5e"
OWNER, NEW = "rcs/1", "rcs/2"


def seen(node: str, port: int = 80, *, available: bool = True, owner: str = OWNER, **more: Any) -> Sighting:
    return Sighting(Endpoint(node, "web", owner, f"{node}.test", port), available, manifest="f" * 64, **more)


def ident(node: str) -> str:
    return catalog.service_id(CLUSTER, SERVICE, node, "web")


def own(node: str, **fields: Any) -> Node:
    name = catalog.node_name(CLUSTER, node)
    return Node(**{"node": name, "address": f"{node}.test", "meta": {catalog.MARK: CLUSTER}} | fields)


def planned(
    *sightings: Sighting,
    asked: Catalog | None = None,
    standing: dict[str, Standing] | None = None,
    nodes: tuple[Node, ...] = (),
    new: frozenset[str] = frozenset(),
) -> Plan:
    there = standing or {}
    pods = planning.pods(CLUSTER, SERVICE, sightings, there, new)
    service = Service(id=SERVICE, name="web", port="http", catalog=asked or Catalog())
    return planning.decide(Snapshot(CLUSTER, service, pods, there, {each.node: each for each in nodes}))


def after(plan: Plan, index: int = 7) -> tuple[dict[str, Standing], tuple[Node, ...]]:
    """What stands once a plan was committed at that index."""
    standing = {change.after.service.id: change.committed(index) for change in plan.changes if change.after}
    return standing, tuple(own(catalog.parts(CLUSTER, each)[1]) for each in standing)  # type: ignore[index]


def verbs(plan: Plan) -> list[list[tuple[str, str, int]]]:
    """The table, the verb and the index of each operation."""
    found = []
    for change in plan.changes:
        node = change.after.node if change.after is not None else ""
        operations = change.operations(CLUSTER, Node(node, modify_index=3) if node else None)
        found.append(
            [(each.table, each.verb.value, each.body[each.table]["ModifyIndex"]) for each in operations]
        )
    return found


def test_a_pod_is_written_with_its_node_and_its_check_once_it_is_available_and_then_no_more() -> None:
    plan = planned(seen("n1"), seen("n2", available=False))
    assert [change.word for change in plan.changes] == ["added"]
    (change,) = plan.changes
    operations = change.operations(CLUSTER, None)
    assert [(each.table, each.verb.value) for each in operations] == [
        ("Node", "cas"),
        ("Service", "cas"),
        ("Check", "cas"),
    ]
    assert all(each.body[each.table]["ModifyIndex"] == 0 for each in operations)
    standing, nodes = after(plan)
    assert planned(seen("n1"), seen("n2", available=False), standing=standing, nodes=nodes).empty


def test_what_serves_no_more_is_critical_and_first_and_what_is_gone_is_removed() -> None:
    standing, nodes = after(planned(seen("n1"), seen("n2")))
    plan = planned(seen("n3"), seen("n2", 0, available=False), standing=standing, nodes=nodes)
    assert [change.word for change in plan.changes] == ["removed", "changed", "added"]
    changed = plan.changes[1].after
    assert changed is not None
    assert changed.check is not None
    assert (changed.service.port, changed.check.status, changed.check.output) == (
        80,
        "critical",
        planning.FAILING,
    )
    assert verbs(plan)[:2] == [[("Service", "delete-cas", 7)], [("Check", "cas", 7)]]


def test_r21_agents_that_are_absent_take_the_last_endpoint_away_from_nobody_also_after_a_take_over() -> None:
    standing, nodes = after(planned(seen("n1"), seen("n2")))
    absent = [seen(node, 0, available=False, unknown=True) for node in ("n1", "n2")]
    assert planned(*absent, standing=standing, nodes=nodes).empty
    plan = planned(absent[0], seen("n2"), standing=standing, nodes=nodes)
    (change,) = plan.changes
    assert change.after is not None
    assert change.after.check is not None
    assert (change.after.service.id, change.after.check.output) == (ident("n1"), planning.ABSENT)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"service": {"port": 1}}, [("Service", "cas", 9)]),
        ({"service": {"address": "1.2.3.4"}}, [("Service", "cas", 9)]),
        ({"service": {"tags": ["x"]}}, [("Service", "cas", 9)]),
        ({"service": {"meta": {}}}, [("Service", "cas", 9)]),
        (
            {"service": {"service": "x"}},
            [("Service", "delete-cas", 9), ("Service", "cas", 0), ("Check", "cas", 0)],
        ),
        ({"check": {"status": "warning"}}, [("Check", "cas", 9)]),
        ({"check": {"service_name": "x"}}, [("Check", "cas", 9)]),
        ({"check": None}, [("Check", "cas", 0)]),
    ],
)
def test_what_somebody_changed_is_written_over_the_version_that_was_read(
    changed: dict[str, Any], expected: list[tuple[str, str, int]]
) -> None:
    standing, nodes = after(planned(seen("n1")))
    entry = standing[ident("n1")]
    assert entry.check is not None
    service = replace(entry.service, modify_index=9, **changed.get("service", {}))
    check = changed.get("check", {})
    found = None if check is None else replace(entry.check, modify_index=9, **check)
    plan = planned(seen("n1"), standing={ident("n1"): Standing(entry.node, service, found)}, nodes=nodes)
    assert verbs(plan) == [expected]


@pytest.mark.parametrize("theirs", [{"meta": {catalog.MARK: "other"}}, {"serf": True}, {"id": "an agent's"}])
def test_a_node_of_others_is_told_and_left_alone(theirs: dict[str, Any]) -> None:
    plan = planned(seen("n1"), seen("n2"), nodes=(own("n1", **theirs),))
    assert [change.after.node for change in plan.changes if change.after] == [
        catalog.node_name(CLUSTER, "n2")
    ]
    assert plan.blocked is not None
    assert "farmd-01234567-n1" in plan.blocked.text
    assert plan.after == planning.FOREIGN_SECONDS


def test_a_node_that_lost_its_mark_is_written_again_also_where_its_pod_fails() -> None:
    standing, nodes = after(planned(seen("n1")))
    bare = replace(nodes[0], meta=None)
    assert verbs(planned(seen("n1"), standing=standing, nodes=(bare,))) == [[("Node", "cas", 3)]]
    failing = planned(seen("n1", available=False), standing=standing, nodes=(bare,))
    assert verbs(failing) == [[("Node", "cas", 3), ("Check", "cas", 7)]]


def test_an_entry_on_a_node_of_others_stays_while_it_is_right_and_goes_with_its_pod() -> None:
    standing, _ = after(planned(seen("n1"), seen("n2")))
    taken = own("n1", meta={catalog.MARK: "other"})
    there = (taken, own("n2"))
    assert verbs(planned(seen("n1"), seen("n2"), standing=standing, nodes=there)) == []
    for sightings in ([seen("n1", available=False), seen("n2")], [seen("n2")], [seen("n1", 81), seen("n2")]):
        plan = planned(*sightings, standing=standing, nodes=there)
        assert verbs(plan) == [[("Service", "delete-cas", 7)]]


def test_a_node_that_moved_is_written_with_its_new_address() -> None:
    standing, nodes = after(planned(seen("n1")))
    plan = planned(seen("n1"), standing=standing, nodes=(replace(nodes[0], address="old.test"),))
    assert verbs(plan) == [[("Node", "cas", 3)]]


def test_the_new_pods_of_a_rollout_have_the_tags_of_a_canary() -> None:
    asked = Catalog(tags=["a"], canary_tags=["canary"])
    plan = planned(seen("n1"), seen("n2", owner=NEW), asked=asked, new=frozenset({NEW}))
    assert [change.after.service.tags for change in plan.changes if change.after] == [["a"], ["canary"]]
    assert planned(seen("n1", owner=NEW), asked=Catalog(tags=["a"]), new=frozenset({NEW})).changes[
        0
    ].after.service.tags == ["a"]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        (Catalog(name="a.b"), "catalog.name"),
        (Catalog(name="A"), "catalog.name"),
        (Catalog(name="x" * 64), "catalog.name"),
        (Catalog(name="consul"), "catalog.name"),
        (Catalog(name=catalog.AGENTS), "catalog.name"),
        (Catalog(tags=[""]), "catalog.tags"),
        (Catalog(canary_tags=["x" * 129]), "catalog.canary_tags"),
        (Catalog(tags=["x"] * 33), "catalog.tags"),
        (Catalog(meta={"a.b": ""}), "catalog.meta"),
        (Catalog(meta={"consul-x": ""}), "catalog.meta"),
        (Catalog(meta={"owner": ""}), "catalog.meta"),
        (Catalog(meta={"a": "x" * 513}), "catalog.meta.a"),
        (Catalog(meta={f"k{n}": "" for n in range(61)}), "catalog.meta"),
    ],
)
def test_what_consul_would_take_and_nobody_could_ask_for_is_blocked(asked: Catalog, field: str) -> None:
    plan = planned(seen("n1"), asked=asked)
    assert plan.empty
    assert plan.blocked is not None
    assert plan.blocked.text.startswith(f"{field}: found ")
