"""``--dry-run`` tells on stdout which places pods get, which pods go, and what finds no node."""

from __future__ import annotations

import pytest
import yaml

from store import codec, manifests
from store.keys import Keys
from store.manifests import Manifest
from store.nodes import Agent, Node, Taint
from store.pods import Pod
from store.reality import Health, Reality
from tests.farmctl import Farmctl, in_cluster, put
from tests.people import hello

NODES = ("web1", "web2", "web3")
POD = Manifest(id="hello", command=["sleep", "9"])
SHA = manifests.digest(manifests.canonical(POD))


@pytest.fixture
def farmctl(address: str) -> Farmctl:
    """Three nodes with agents, of which the third takes only what tolerates its taint."""
    made = in_cluster(address, *NODES)
    for node in NODES:
        taints = [Taint(key="db")] if node == "web3" else []
        write(made, Keys(made.prefix).node(node), Node(taints=taints, labels={"name": node}))
        write(made, Keys(made.prefix).agent(node), Agent(node=node, version="1"))
    return made


def write(farmctl: Farmctl, key: str, record: object) -> None:
    put(farmctl, key.removeprefix(farmctl.prefix), codec.encode(record).decode())


def dry(farmctl: Farmctl, *arguments: str, stdin: str = "") -> list[str]:
    """The lines of stdout that tell what becomes of pods; nothing else than the hint is on stderr."""
    found = farmctl.ok(*arguments, "--dry-run", stdin=stdin)
    assert found.err == "dry run: nothing was written\n"
    return [line.strip() for line in found.out.splitlines()[1:]]


def placed(farmctl: Farmctl, *nodes: str, sick: str = "") -> str:
    """A controller with pods on nodes, as if a farm had placed them one after the other."""
    farmctl.ok("rc", "create", "-f", "-", stdin=yaml.safe_dump(hello(replicas=len(nodes))))
    rc: str = farmctl.ok("rc", "get", "hello", "-o", "json").json["id"]
    stands(farmctl, rc, *nodes, sick=sick)
    return rc


def stands(farmctl: Farmctl, owner: str, *nodes: str, sick: str = "") -> None:
    keys = Keys(farmctl.prefix)
    for number, node in enumerate(nodes, 1):
        health = Health("critical" if node == sick else "passing")
        write(farmctl, keys.pod(owner, node, "hello"), Pod(manifest=SHA, at=float(number)))
        put(farmctl, f"intent/{node}/hello", f'{{"manifest": "{SHA}", "owner": "{owner}"}}')
        reality = Reality(manifest=SHA, owner=owner, intent=10**9, started=1.0, health=health)
        write(farmctl, keys.reality(node, "hello"), reality)


def test_a_new_controller_names_the_places_and_what_finds_none(farmctl: Farmctl) -> None:
    told = dry(farmctl, "rc", "create", "-f", "-", stdin=yaml.safe_dump(hello()))
    assert told[:2] == ["adds web1/hello", "adds web2/hello"]
    assert told[2].startswith("no place: 1 of 3 pods found no place; of 3 nodes")
    assert "nearest miss web3" in told[2]


def test_a_lower_count_names_the_pods_that_go_the_sick_first_then_the_newest(farmctl: Farmctl) -> None:
    placed(farmctl, *NODES, sick="web1")
    assert dry(farmctl, "rc", "set-replicas", "hello", "2") == ["removes web1/hello"]
    assert dry(farmctl, "rc", "set-replicas", "hello", "1") == ["removes web1/hello", "removes web3/hello"]
    assert dry(farmctl, "rc", "delete", "hello", "--cascade")[1:] == [
        "removes web1/hello",
        "removes web3/hello",
        "removes web2/hello",
    ]


def test_an_update_names_the_pods_that_are_replaced_and_those_that_move(farmctl: Farmctl) -> None:
    placed(farmctl, "web1")
    newer = hello(replicas=2, pod_args=["9"], strategy="dynamic", node_selector="name in (web1,web2)")
    told = dry(farmctl, "rc", "update", "-f", "-", "--now", stdin=yaml.safe_dump(newer))
    assert told[-2:] == ["adds web2/hello", "replaces web1/hello"]
    elsewhere = newer | {"replicas": 1, "node_selector": "name=web2"}
    told = dry(farmctl, "rc", "update", "-f", "-", "--now", stdin=yaml.safe_dump(elsewhere))
    assert told[-1] == "moves web1/hello to web2/hello"


def test_a_disabled_controller_changes_no_pod(farmctl: Farmctl) -> None:
    placed(farmctl, "web1")
    farmctl.ok("rc", "disable", "hello")
    assert dry(farmctl, "rc", "set-replicas", "hello", "3") == []
    assert dry(farmctl, "rc", "enable", "hello") == []


def test_a_restart_names_the_pods_that_are_restarted(farmctl: Farmctl) -> None:
    placed(farmctl, "web1", "web2")
    assert dry(farmctl, "rc", "restart", "hello")[1:] == ["replaces web1/hello", "replaces web2/hello"]


def test_a_daemon_set_names_nodes_that_get_a_pod_lose_one_or_get_none(farmctl: Farmctl) -> None:
    logs = {"name": "logs", "pod": {"id": "hello", "command": ["sleep", "9"]}}
    told = dry(farmctl, "daemonset", "create", "-f", "-", stdin=yaml.safe_dump(logs))
    assert told == ["adds web1/hello", "adds web2/hello", "no place: no pod on 1 node (taint 1)"]
    farmctl.ok("daemonset", "create", "-f", "-", stdin=yaml.safe_dump(logs))
    stands(farmctl, farmctl.ok("daemonset", "get", "logs", "-o", "json").json["id"], "web1", "web2")
    fewer = yaml.safe_dump(logs | {"node_selector": "name=web2"})
    told = dry(farmctl, "daemonset", "update", "-f", "-", "--now", stdin=fewer)
    assert "removes web1/hello" in told
    nowhere = yaml.safe_dump(logs | {"node_selector": "name=wbe"})
    told = dry(farmctl, "daemonset", "update", "-f", "-", "--now", stdin=nowhere)
    assert not [line for line in told if line.startswith("removes")]
    assert any(line.startswith("no place: no node is eligible") for line in told)


def test_a_drain_names_each_pods_target_or_why_there_is_none(farmctl: Farmctl) -> None:
    rc = placed(farmctl, "web1")
    assert dry(farmctl, "node", "drain", "web1")[-1] == "moves web1/hello to web2/hello"
    farmctl.ok("node", "cordon", "web2")
    told = dry(farmctl, "node", "drain", "web1")[-1]
    assert told.startswith("no place: rc/hello: 1 of 1 pod found no place; of 3 nodes")
    [item] = farmctl.ok("node", "drain", "web1", "--dry-run", "-o", "json").json["items"]
    assert item["outlook"]["moves"] == []
    assert item["outlook"]["unplaced"] == [told.removeprefix("no place: ")]
    farmctl.ok("node", "uncordon", "web2")
    [item] = farmctl.ok("node", "drain", "web1", "--dry-run", "-o", "json").json["items"]
    here, there = ({"node": node, "instance": "hello"} for node in ("web1", "web2"))
    assert item["outlook"]["moves"] == [{"from": here, "to": there}]
    assert rc not in item["outlook"]["unplaced"]
