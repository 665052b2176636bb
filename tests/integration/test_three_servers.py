"""The fleet of ``docker-compose.yml`` loses one server of Consul, and then the leader.

Each farm and agent asks one server alone. Whoever asks the one that is gone waits for it; the others work on.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
import yaml

from store import codec
from store.audit import Audit
from store.entry import Entry
from tests.composed_servers import Fleet, Member, composed_servers
from tests.fault.upgrade_rig import START
from tests.fleet import KEYS, Cluster, client_of
from tests.processes import eventually

pytestmark = pytest.mark.slow
NONE_LEFT = "if one more is lost, nothing can be written"
World = dict[str, Entry]


def world(fleet: Fleet) -> World:
    """All records of the cluster, as the leader has them."""

    async def read() -> World:
        client = client_of(fleet.leader.address, fleet.token)
        try:
            return await Cluster(client).entries(KEYS.prefix)
        finally:
            await client.close()

    return asyncio.run(read())


def tree(found: World, family: str) -> set[str]:
    return {key for key in found if key.startswith(KEYS.tree(family))}


def controller(fleet: Fleet, name: str, replicas: int) -> str:
    pod = {"id": name, "command": ["sh", "-c", START], "env": {"STARTS": str(fleet.folder / "starts")}}
    return yaml.safe_dump({"name": name, "replicas": replicas, "min_healthy_time": "0s", "pod": pod})


def starts(fleet: Fleet) -> list[str]:
    return (fleet.folder / "starts").read_text().splitlines()


def works_without(fleet: Fleet, gone: Member, name: str) -> None:
    """A server is killed; people get something new meanwhile, and what was there stays as it is."""
    before, ran = world(fleet), starts(fleet)
    gone.kill()
    left = [server for server in fleet.servers.values() if server is not gone]
    eventually("a leader among those that are left", lambda: any(server.leads for server in left))
    eventually("a doctor that misses it", lambda: any(NONE_LEFT in each for each in found(fleet)))
    there = json.loads(fleet.ctl(fleet.leader).ok("node", "list", "-o", "json").out)["items"]
    far = [each["name"] for each in there if fleet.server_of(f"agent-{each['name'][-1]}") != gone.service]
    file = controller(fleet, name, len(far)) + f"node_selector: node in ({','.join(far)})\n"
    fleet.ctl(fleet.leader).ok("rc", "create", "-f", "-", "--wait", stdin=file)
    gone.launch()
    gone.await_ready()
    for program in fleet.programs.values():
        assert program.process.poll() is None
    eventually("all agents and farms", lambda: complete(fleet))
    eventually("a doctor that finds nothing", lambda: not found(fleet))
    after = world(fleet)
    assert starts(fleet)[: len(ran)] == ran
    assert len(starts(fleet)) == len(ran) + len(far)
    assert tree(before, "pods") <= tree(after, "pods")
    assert removed(after) == []


def found(fleet: Fleet) -> set[str]:
    """What the doctor finds, with the operator's token."""
    items = json.loads(fleet.ctl(fleet.leader)("doctor", "-o", "json").out)["items"]
    return {item["explanation"] for item in items}


def complete(fleet: Fleet) -> bool:
    """Whether all are present and every item has an owner, who is one of the present farms."""
    found = world(fleet)
    items = {("rcs", KEYS.last_part(key)) for key in tree(found, "rcs")}
    items |= {("nodes", KEYS.last_part(key)) for key in tree(found, "nodes")}
    sessions = {found[key].session for key in tree(found, "farms")}
    held = {item for item in items if (lock := found.get(KEYS.lock(*item))) and lock.session in sessions}
    return (len(tree(found, "farms")), len(tree(found, "agents")), held) == (2, 3, items)


def removed(found: World) -> list[str]:
    """Changes by which a farm took a pod away."""
    audits = [codec.decode(Audit, found[key].value, key) for key in tree(found, "audit")]
    return [f"{each.actor} {each.action}: {each.removed}" for each in audits if each.removed]


def test_r2_a_fleet_at_three_servers_outlives_the_loss_of_one_and_of_the_leader(tmp_path: Path) -> None:
    with composed_servers(tmp_path) as fleet:
        fleet.ctl(fleet.leader).ok("rc", "create", "-f", "-", "--wait", stdin=controller(fleet, "web", 3))
        eventually("an owner for each item", lambda: complete(fleet))
        farms = [fleet.servers[fleet.server_of(name)] for name in ("farm-1", "farm-2")]
        works_without(fleet, next(server for server in farms if not server.leads), "first")
        works_without(fleet, fleet.leader, "second")
