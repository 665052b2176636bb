"""What people say of nodes, and what stands on one, by farmctl."""

from __future__ import annotations

import json

import pytest
import yaml

from store.keys import Keys
from tests.farmctl import Farmctl, in_cluster, put
from tests.people import hello


@pytest.fixture
def farmctl(address: str) -> Farmctl:
    made = in_cluster(address, "web1")
    put(made, "nodes/web1", "{}")
    made.inside = True
    return made


def record(farmctl: Farmctl) -> dict[str, object]:
    found: dict[str, object] = farmctl.ok("node", "describe", "web1", "-o", "json").json["record"]
    return found


def test_taints_are_set_shown_and_removed(farmctl: Farmctl) -> None:
    dry = farmctl.ok("node", "taint", "web1", "dedicated=db:no-schedule", "gpu", "--dry-run")
    assert "node/web1: taint: taints.dedicated:no-schedule db, taints.gpu:no-schedule " in dry.out
    assert record(farmctl)["taints"] == []
    done = farmctl.ok("node", "taint", "node/web1", "dedicated=db:no-schedule", "gpu")
    assert done.out == "node/web1 tainted\n"
    assert (
        "Taints:     dedicated=db:no-schedule,gpu:no-schedule" in farmctl.ok("node", "describe", "web1").out
    )
    assert farmctl.ok("node", "untaint", "web1", "gpu").out == "node/web1 untainted\n"
    assert record(farmctl)["taints"] == [{"key": "dedicated", "value": "db", "effect": "no-schedule"}]
    refused = farmctl("node", "taint", "web1", "dedicated=db:evict")
    assert refused.code == 2
    assert refused.err.startswith("farmctl: taints.dedicated: found effect 'evict', expected no-schedule or")


def test_capacity_is_written_as_in_a_file(farmctl: Farmctl) -> None:
    done = farmctl.ok("node", "capacity", "web1", "cpu=500m", "memory=8Gi", "gpu=2")
    assert done.out == "node/web1 changed\n"
    assert "Capacity:   cpu=0.5,gpu=2,memory=8Gi" in farmctl.ok("node", "describe", "web1").out
    farmctl.ok("node", "capacity", "web1", "gpu-")
    assert record(farmctl)["capacity"] == {"cpu": 0.5, "memory": 8 * 2**30}
    refused = farmctl("node", "capacity", "web1", "memory=lots")
    assert refused.code == 2
    assert refused.err.startswith(
        "farmctl: capacity.memory: found 'lots', expected an amount such as 2, 500m"
    )
    refused = farmctl("node", "capacity", "web1", "memory")
    assert "capacity: found 'memory', expected RESOURCE=VALUE to set or RESOURCE- to remove" in refused.err


def test_a_pod_is_described_wherever_its_name_is_taken(farmctl: Farmctl) -> None:
    farmctl.ok("rc", "create", "-f", "-", stdin=yaml.safe_dump(hello()))
    row = farmctl.ok("rc", "get", "hello", "-o", "json").json
    sha, said = (
        row["manifest"],
        {"manifest": row["manifest"], "owner": row["id"], "intent": 9, "started": 5.0},
    )
    keys, exits = Keys(""), {"exits": [{"at": 4.0, "code": 3}]}
    put(farmctl, keys.pod(row["id"], "web1", "hello"), json.dumps({"manifest": sha}))
    put(farmctl, keys.intent("web1", "hello"), json.dumps({"manifest": sha, "owner": row["id"]}))
    put(farmctl, keys.reality("web1", "hello"), json.dumps(said | exits))
    for name in ("web1/hello", "hello", "pod/web1/hello"):
        assert farmctl.ok("pod", "describe", name, "-o", "name").out == "pod/web1/hello\n"
    told = farmctl.ok("pod", "describe", "hello").out
    assert "Owner:         rc/hello\n" in told
    assert "exited with code 3\n" in told
    assert "Command:       sleep 9\n" in told
    assert "Command:       sleep 9\n" in farmctl.ok("rc", "describe", "hello").out
    pod = farmctl.ok("pod", "describe", "hello", "-o", "json").json
    assert (pod["kind"], pod["owner_name"], pod["exits"][0]["code"]) == ("Pod", "hello", 3)
    assert pod["runs"]["command"] == ["sleep", "9"]
    assert yaml.safe_load(farmctl.ok("pod", "describe", "hello", "-o", "yaml").out) == pod
    refused = farmctl("pod", "describe", "web1/other")
    assert (refused.code, refused.err) == (4, "farmctl: pod web1/other does not exist\n")
