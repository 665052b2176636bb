"""What people say of nodes, by farmctl."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.farmctl import Farmctl, embedded, in_cluster, put


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with embedded() as found:
        yield found


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
    assert "node/web1: taint: taints.dedicated:no-schedule db, taints.gpu:no-schedule " in dry.err
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
    assert "Capacity:   cpu=0.5,gpu=2,memory=8589934592" in farmctl.ok("node", "describe", "web1").out
    farmctl.ok("node", "capacity", "web1", "gpu-")
    assert record(farmctl)["capacity"] == {"cpu": 0.5, "memory": 8 * 2**30}
    refused = farmctl("node", "capacity", "web1", "memory=lots")
    assert refused.code == 2
    assert refused.err.startswith(
        "farmctl: capacity.memory: found 'lots', expected an amount such as 2, 500m"
    )
    refused = farmctl("node", "capacity", "web1", "memory")
    assert "capacity: found 'memory', expected RESOURCE=VALUE to set or RESOURCE- to remove" in refused.err
