"""farmctl doctor on real Consul, as people type it: exit codes, output, and removal on request only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import yaml

from store import codec
from store.nodes import Node, Reserved
from store.pods import Pod
from store.reality import Intent
from store.registration import register_node
from tests.farmctl import Farmctl, Result
from tests.fleet import Cluster, cluster_on, eventually, start_farm
from tests.people import hello

GONE = "dead0000dead0000"
KINDS = ("rcs", "nodes", "housekeeping")


@pytest.fixture
async def cluster(consul_dev: str) -> AsyncIterator[Cluster]:
    async with cluster_on(consul_dev) as found:
        yield found


async def run(farmctl: Farmctl, *arguments: str, stdin: str = "") -> Result:
    """Without stopping the farm that shares this loop."""
    return await asyncio.to_thread(farmctl, *arguments, stdin=stdin)


def person(consul: str, cluster: Cluster) -> Farmctl:
    return Farmctl(consul, prefix=cluster.keys.prefix)


async def lose_an_owner(cluster: Cluster) -> None:
    """A pod and its intent, whose controller somebody deleted by hand."""
    sha = "0" * 64
    await register_node(cluster.client, cluster.keys, "n1")
    await cluster.put(cluster.keys.pod(GONE, "n1", "old"), Pod(sha))
    await cluster.put(cluster.keys.intent("n1", "old"), Intent(sha, GONE))


async def test_a_healthy_fleet_exits_0_and_shows_what_it_looked_at(consul_dev: str, cluster: Cluster) -> None:
    await cluster.add_nodes({"n1": {}})
    farm = await start_farm(cluster.client, "one", keys=cluster.keys, kinds=KINDS)
    try:
        farmctl = person(consul_dev, cluster)
        shown = await run(farmctl, "doctor")
        assert (shown.code, shown.out) == (0, ""), shown
        assert "nothing is wrong" in shown.err
        assert "farms: one (" in shown.err
        report = (await run(farmctl, "doctor", "-o", "json")).json
        assert (report["kind"], report["items"]) == ("DoctorReport", [])
        assert report["facts"]["consul version"].count(".") == 2
        assert report["facts"]["consul leader"]
        assert report["facts"]["nodes"] == "1, 1 with an agent"
    finally:
        await farm.close()


async def test_w11_orphans_are_found_and_removed_on_request_only(consul_dev: str, cluster: Cluster) -> None:
    farmctl = person(consul_dev, cluster)
    farmctl.ok("rc", "create", "-f", "-", stdin=yaml.safe_dump(hello()))
    await lose_an_owner(cluster)
    found = farmctl("doctor", "-o", "json")
    assert found.code == 1
    items = {item["code"]: item for item in found.json["items"]}
    assert items["orphan-pod"]["object"] == f"pods/{GONE}/n1/old"
    assert items["orphan-pod"]["fixable"]
    assert not items["no-farm"]["fixable"]
    assert all(item["explanation"] and item["fix"] for item in items.values())
    table = farmctl("doctor").out
    assert table.splitlines()[0].split() == ["CODE", "OBJECT", "EXPLANATION", "FIX"]
    assert f"pods/{GONE}/n1/old" in table

    unsure = farmctl("doctor", "--fix", "orphan-pod")
    assert (unsure.code, "is destructive" in unsure.err) == (2, True)
    dry = farmctl.ok("doctor", "--fix", GONE, "--dry-run")
    assert "removes intent/n1/old" in dry.out
    assert await cluster.client.read(cluster.keys.pod(GONE, "n1", "old")) is not None

    done = farmctl.ok("doctor", "--fix", GONE, "-y", "--reason", "deleted by hand")
    assert f"pod/{GONE} removed" in done.out
    assert await cluster.client.read(cluster.keys.pod(GONE, "n1", "old")) is None
    assert await cluster.client.read(cluster.keys.intent("n1", "old")) is None
    (record,) = farmctl.ok("audit", "list", "--action", "doctor.remove", "-o", "json").json["items"]
    assert (record["removed"], record["reason"]) == (["n1/old"], "deleted by hand")
    after = farmctl("doctor", "-o", "json").json["items"]
    assert "orphan-pod" not in {item["code"] for item in after}
    assert farmctl("doctor", "--fix", "orphan-pod", "-y").code == 4
    assert farmctl("doctor", "--fix", "no-farm", "-y").code == 2


async def test_an_own_intent_whose_pod_was_deleted_by_hand_is_told_and_goes_with_its_room(
    consul_dev: str, cluster: Cluster
) -> None:
    farmctl, keys = person(consul_dev, cluster), cluster.keys
    await cluster.add_nodes({"n1": {}})
    await cluster.put(keys.node("n1"), Node(capacity={"cpu": 1.0}))
    farm = await start_farm(cluster.client, "one", keys=keys, kinds=KINDS)
    try:
        spec = yaml.safe_dump(hello(replicas=1, pod_resources={"cpu": 1.0}))
        await run(farmctl, "rc", "create", "-f", "-", stdin=spec)
        (rc,) = [keys.last_part(key) for key in await eventually(lambda: cluster.entries(keys.tree("rcs")))]
        await eventually(lambda: cluster.pods(rc))
        await cluster.client.delete(keys.pod(rc, "n1", "hello"))

        async def told() -> bool:
            shown = (await run(farmctl, "rc", "get", "hello", "-o", "json")).out
            return "blocked" in shown and "farmctl doctor --fix intent/n1/hello" in shown

        await eventually(told)
        found = (await run(farmctl, "doctor", "-o", "json")).json["items"]
        assert [i["object"] for i in found if i["code"] == "intent-without-pod"] == ["intent/n1/hello"]
        done = await run(farmctl, "doctor", "--fix", "intent/n1/hello", "-y", "--reason", "deleted by hand")
        assert done.code == 0, done
        audits = await cluster.audits()
        (at,) = [at for at, one in enumerate(audits) if one.action == "doctor.remove"]
        assert (audits[at].id, audits[at].reason) == ("n1", "deleted by hand")
        await eventually(lambda: cluster.pods(rc))
        book = (await cluster.entries(keys.reserved("n1")))[keys.reserved("n1")]
        record = codec.decode(Reserved, book.value, book.key)
        # Placed, given back by the doctor, placed again.
        assert (record.instances, record.generation) == ({"hello": {"cpu": 1.0}}, 3)
    finally:
        await farm.close()


async def test_a_record_written_by_hand_is_named_with_key_and_field(
    consul_dev: str, cluster: Cluster
) -> None:
    key = cluster.keys.record("rcs", "ab01")
    await cluster.client.put(key, b'{"id":"ab01","name":"x","manifest":"m","replicas_desired":-1}')
    found = person(consul_dev, cluster)("doctor", "-o", "json")
    (item,) = [item for item in found.json["items"] if item["code"] == "record-invalid"]
    assert item["object"] == "rcs/ab01"
    assert key in item["explanation"]
    assert "replicas_desired" in item["explanation"]


async def test_without_a_cluster_it_says_so_and_exits_1(consul_dev: str) -> None:
    found = Farmctl(consul_dev, prefix="nothing-here/")("doctor", "-o", "json")
    assert found.code == 1
    assert [item["code"] for item in found.json["items"]] == ["not-registered"]


def test_without_consul_it_exits_7() -> None:
    assert Farmctl("127.0.0.1:1")("doctor").code == 7


async def test_limits_of_a_real_server_are_read(cluster: Cluster) -> None:
    limits = (await cluster.client.agent()).debug_config
    assert limits.http_max_conns_per_client > 0
    assert limits.kv_max_value_size >= 512 * 1024
