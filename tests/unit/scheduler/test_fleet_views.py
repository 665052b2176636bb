"""The fleet as placement sees it: who wins, what is rebuilt, and that old views stay as they were."""

from __future__ import annotations

from scheduler.constraints import compile_request, next_instance
from scheduler.feasibility import room_reasons, standing_reasons
from scheduler.fleet import Fleet, node_views
from scheduler.model import PodView
from scheduler.rules import domain_reasons, domain_rules
from store.entry import Stored
from store.manifests import AntiAffinity
from store.nodes import Agent, Drain, Node, NodeVolume, Reserved, Taint
from store.pods import Pod, PodKey
from tests.fleets import request

AGENT = Agent(
    node="n1", version="1", labels={"os": "linux", "az": "agent"}, capacity={"cpu": 8, "memory": 32}
)
STATED = {**AGENT.labels, "node": "n1"}
NODE = Node(labels={"az": "people"}, capacity={"cpu": 4}, taints=[Taint("gpu")], drain=Drain("system"))


def book(**instances: dict[str, float]) -> Stored[Reserved]:
    return Stored("k", Reserved(instances=instances, generation=3), 42, b"raw")


def test_people_win_over_the_agents_facts() -> None:
    view = node_views({"n1": NODE}, {"n1": AGENT}, {}, {})["n1"]
    assert view.labels == {"os": "linux", "az": "people", "node": "n1"}
    assert view.capacity == {"cpu": 4, "memory": 32}
    assert (view.taints, view.drain, view.presence) == ((Taint("gpu"),), "system", "present")


def test_a_nodes_name_and_volumes_are_labels_also_while_its_agent_is_absent() -> None:
    view = node_views({"n1": Node(labels={"node": "x"}, volumes={"data": NodeVolume()})}, {}, {}, {})["n1"]
    assert (view.presence, view.labels) == ("unknown", {"node": "n1", "volume/data": ""})


def test_r21_an_absent_agent_is_unknown_until_it_is_given_up() -> None:
    views = node_views(
        {"a": Node(), "b": Node()}, {"c": Agent(node="c", version="1")}, {}, {}, lost=["b", "c"]
    )
    assert {name: view.presence for name, view in views.items()} == {
        "a": "unknown",
        "b": "lost",
        "c": "present",
    }


def test_reservations_are_summed_and_their_index_kept() -> None:
    reserved = {"n1": book(x={"cpu": 1, "gpu": 1}, y={"cpu": 0.5})}
    view = node_views({"n1": NODE}, {}, reserved, {})["n1"]
    assert view.used == {"cpu": 1.5, "gpu": 1}
    assert (view.reserved_index, view.reserved_raw, view.reserved.generation) == (42, b"raw", 3)


def test_pods_are_counted_by_owner_and_unknown_nodes_left_out() -> None:
    pods = {
        PodKey("rc1", "n1", "web~0"): Pod("sha", {"app": "web"}),
        PodKey("rc1", "n1", "web~1"): Pod("sha"),
        PodKey("rc2", "n1", "db"): Pod("sha"),
        PodKey("rc2", "gone", "db"): Pod("sha"),
    }
    views = node_views({"n1": NODE}, {}, {}, pods)
    assert list(views) == ["n1"]
    assert views["n1"].owners == {"rc1": 2, "rc2": 1}
    assert views["n1"].pods["web~0"] == PodView("rc1", {"app": "web"})


def test_r29_a_pod_that_is_done_keeps_its_name_and_weighs_nothing() -> None:
    pods = {
        PodKey("job1", "n1", "web~0"): Pod("sha", {"app": "web"}, done=True),
        PodKey("rc2", "n1", "db"): Pod("sha"),
    }
    views = node_views({"n1": Node(), "n2": Node()}, {}, {}, pods)
    here = views["n1"]
    assert (here.owners, here.live, here.pods["web~0"]) == ({"rc2": 1}, 1, PodView("job1", done=True))
    apart = request(per_node=2, anti_affinity=[AntiAffinity("app=web")])
    assert room_reasons(compile_request(apart), here) == []
    assert [
        domain_reasons(domain_rules(compile_request(apart), views, 1), node) for node in views.values()
    ] == [
        [],
        [],
    ]
    assert next_instance(compile_request(apart), here, 0) == ("web~1", 2)
    fleet = Fleet()
    fleet.set_node("n1", Node())
    fleet.set_pod(PodKey("job1", "n1", "web~0"), Pod("sha"))
    before = fleet.view()["n1"].live
    fleet.set_pod(PodKey("job1", "n1", "web~0"), Pod("sha", done=True))
    assert (before, fleet.view()["n1"].live, fleet.owner_at("n1", "web~0")) == (1, 0, "job1")


def test_only_what_changed_is_rebuilt_and_an_old_view_stays_as_it_was() -> None:
    fleet = Fleet()
    for name in ("b", "a"):
        fleet.set_node(name, Node())
    first = fleet.view()
    assert list(first) == ["a", "b"]
    assert fleet.view() is first
    fleet.set_pod(PodKey("rc1", "a", "web"), Pod("sha"))
    second = fleet.view()
    assert second["b"] is first["b"]
    assert (first["a"].pods, second["a"].owners) == ({}, {"rc1": 1})
    fleet.set_pod(PodKey("rc1", "a", "web"), None)
    fleet.set_node("b", None)
    assert fleet.view()["a"].pods == {}
    assert list(fleet.view()) == ["a"]
    assert list(second) == ["a", "b"]


def test_a_move_between_owners_may_arrive_in_either_order() -> None:
    old, new = PodKey("old", "a", "web"), PodKey("new", "a", "web")
    for order in ((old, None), (new, Pod("sha"))), ((new, Pod("sha")), (old, None)):
        fleet = Fleet()
        fleet.set_node("a", Node())
        fleet.set_pod(old, Pod("sha"))
        for key, pod in order:
            fleet.set_pod(key, pod)
        assert fleet.view()["a"].owners == {"new": 1}


def spoken_for() -> Fleet:
    """A fleet of one node that people and its agent speak of."""
    fleet = Fleet()
    fleet.set_node("n1", Node())
    fleet.set_agent("n1", AGENT)
    return fleet


def test_r21_what_an_absent_agent_stated_stays_true_until_its_node_is_lost() -> None:
    fleet = spoken_for()
    fleet.set_agent("n1", None)
    absent = fleet.view()["n1"]
    assert (absent.presence, absent.labels, absent.capacity) == ("unknown", STATED, AGENT.capacity)
    assert absent.facts_known
    fleet.set_lost("n1", True)
    lost = fleet.view()["n1"]
    assert (lost.presence, lost.labels, lost.capacity, lost.facts_known) == (
        "lost",
        {"node": "n1"},
        {},
        False,
    )
    fleet.set_lost("n1", False)
    assert not fleet.view()["n1"].facts_known


def test_r21_an_agent_that_is_back_states_its_facts_anew() -> None:
    fleet = spoken_for()
    fleet.set_agent("n1", None)
    fleet.set_agent("n1", Agent(node="n1", version="2", labels={"os": "plan9"}))
    view = fleet.view()["n1"]
    assert (view.presence, view.labels, view.capacity, view.facts_known) == (
        "present",
        {"os": "plan9", "node": "n1"},
        {},
        True,
    )


def test_r21_a_node_that_only_its_agent_spoke_of_stays_while_the_agent_is_absent() -> None:
    fleet = Fleet()
    fleet.set_agent("n1", AGENT)
    fleet.set_agent("n1", None)
    assert fleet.view()["n1"].labels == STATED


def test_nothing_is_kept_of_a_node_that_is_forgotten() -> None:
    fleet = spoken_for()
    fleet.set_agent("n1", None)
    fleet.set_node("n1", None)
    assert not fleet.view()
    fleet.set_node("n1", Node())
    assert not fleet.view()["n1"].facts_known


def test_r21_the_facts_of_an_agent_that_was_given_up_go_with_its_next_absence() -> None:
    fleet = spoken_for()
    fleet.set_lost("n1", True)
    assert fleet.view()["n1"].facts_known
    fleet.set_agent("n1", None)
    assert not fleet.view()["n1"].facts_known


def test_r20_an_agent_that_starts_no_pod_keeps_those_that_are_there_and_gets_no_others() -> None:
    agent = Agent(node="n1", version="1", closed="its intents are not proven")
    one = node_views({"n1": Node()}, {"n1": agent}, {}, {})["n1"]
    reasons = standing_reasons(compile_request(request()), one)
    assert [(each.code, each.text) for each in reasons] == [
        ("cordoned", "closed to new pods: its intents are not proven")
    ]
