"""Named volumes by farmctl: what is shown, asked and refused; and how parts of services are refused."""

from __future__ import annotations

import json

import pytest
import yaml

from tests.farmctl import Farmctl, in_cluster, put
from tests.people import hello

SERVICE = "5e" * 8


@pytest.fixture
def farmctl(address: str) -> Farmctl:
    made = in_cluster(address, "m1", "m2")
    for node in ("m1", "m2"):
        put(made, f"nodes/{node}", "{}")
    made.inside = True
    return made


def test_a_volume_is_noted_listed_and_forgotten(farmctl: Farmctl) -> None:
    none = farmctl.ok("volume", "list")
    assert "no volumes" in none.out + none.err
    dry = farmctl.ok("volume", "create", "shop_data", "--node", "m2", "--dry-run")
    assert "volume/shop_data: create: volumes.shop_data local" in dry.out
    assert farmctl.ok("volume", "list", "-o", "json").json["items"] == []
    done = farmctl.ok(
        "volume", "create", "shop_data", "--node", "m2", "--opt", "o=bind", "--opt", "type=none"
    )
    assert done.out == "volume/shop_data created\n"
    (row,) = farmctl.ok("volume", "list", "-o", "json").json["items"]
    assert (row["name"], row["node"], row["state"], row["options"]) == (
        "shop_data",
        "m2",
        "absent",
        {"o": "bind", "type": "none"},
    )
    assert farmctl.ok("volume", "list", "-o", "name").out == "volume/shop_data\n"
    header, line = farmctl.ok("volume", "list").out.splitlines()
    assert header.split() == ["NAME", "NODE", "STATE", "DRIVER", "SERVICE"]
    assert line.split() == ["shop_data", "m2", "absent", "local", "-"]
    assert "Volumes:    shop_data\n" in farmctl.ok("node", "describe", "m2").out
    for args in (["delete", "shop_data"], ["delete", "volume/shop_data", "--node", "m2"]):
        asked = farmctl("volume", *args)
        assert asked.code == 2
        assert "-y" in asked.err
    gone = farmctl.ok("volume", "delete", "shop_data", "-y")
    assert "its data stays on m2: podman volume rm shop_data" in gone.out + gone.err
    assert farmctl("volume", "delete", "shop_data", "-y").code == 4


def test_what_cannot_be_is_one_line_and_the_exit_code_of_its_sort(farmctl: Farmctl) -> None:
    farmctl.ok("volume", "create", "shop_data", "--node", "m2")
    elsewhere = farmctl("volume", "create", "shop_data", "--node", "m1")
    assert (elsewhere.code, elsewhere.err.splitlines()[0]) == (5, "farmctl: volume 'shop_data' is on m2")
    farmctl.ok("volume", "create", "shop_data", "--node", "m1", "--beside")
    assert farmctl("volume", "delete", "shop_data", "-y").code == 5
    assert farmctl("volume", "create", "a/b", "--node", "m1").code == 2
    assert farmctl("volume", "create", "more", "--node", "m9").code == 4
    assert farmctl("volume", "create", "more", "--node", "m1", "--opt", "o").code == 2
    farmctl.ok("node", "cordon", "m1")
    refused = farmctl("node", "forget", "m1", "-y")
    assert refused.code == 5
    assert "node 'm1' has the volumes shop_data" in refused.err
    assert "farmctl volume delete --node m1 NAME..." in refused.err


def test_r14_a_part_of_a_service_is_refused_in_one_line_with_exit_5(farmctl: Farmctl) -> None:
    farmctl.ok("rc", "create", "-f", "-", stdin=yaml.safe_dump(hello(name="svc-web")))
    record = farmctl.ok("rc", "get", "svc-web", "-o", "json").json
    ident = record["id"]
    put(farmctl, f"services/{SERVICE}", json.dumps({"id": SERVICE, "name": "web", "mode": "replicated"}))
    fields = {"id": ident, "name": "svc-web", "manifest": record["manifest"], "replicas_desired": 3}
    put(farmctl, f"rcs/{ident}", json.dumps(fields | {"pod_id": "hello", "part_of": f"services/{SERVICE}"}))
    for words in (["set-replicas", "svc-web", "5"], ["disable", "svc-web"], ["delete", "svc-web", "-y"]):
        refused = farmctl("rc", *words)
        assert (refused.code, refused.err) == (
            5,
            "farmctl: rc/svc-web is part of service/web; change that:"
            " farmctl service scale|rollback|delete web, or farmctl deploy\n",
        )
    assert farmctl.ok("rc", "restart", "svc-web").code == 0
    assert "Part of:       service/web\n" in farmctl.ok("rc", "describe", "svc-web").out
