"""farmctl and several datacenters: two real Consuls that are federated on loopback."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from farmd.runtime.clock import SystemIds
from store.keys import Keys
from store.locks import Holder, MutationLocker
from store.registration import register_cluster, register_node
from tests.farmctl import Farmctl, in_cluster
from tests.fleet import client_of
from tests.ports import pod_ports
from tests.processes import Program, eventually, stopped_at_the_end
from tests.servers import ConsulServer

pytestmark = pytest.mark.slow
WEB = "apiVersion: farmd/v1\nkind: rc\nname: web\nreplicas: 0\npod: {id: web, command: [/srv/web]}\n"


OWNER = "00000000-1111-2222-3333-444444444444"
ACL = {
    "primary_datacenter": "dc1",
    "acl": {
        "enabled": True,
        "default_policy": "deny",
        "enable_token_replication": True,
        "tokens": {"master": OWNER, "agent": OWNER, "replication": OWNER},
    },
}


def server(name: str, number: int, *join: ConsulServer, **more: Any) -> ConsulServer:
    join_wan = [f"{each.host}:{each.wan_port}" for each in join]
    config = {"datacenter": name, "retry_join_wan": join_wan, **more}
    return ConsulServer(host=f"127.0.0.{number}", node=f"server-{name}", wan=True, config=config)


@pytest.fixture
def pair() -> Iterator[tuple[ConsulServer, ConsulServer]]:
    """dc1 and dc2, which know each other."""
    with server("dc1", 21) as one, server("dc2", 22, one) as two:
        for each in (one, two):
            farmctl = Farmctl(each.address, inside=True)
            other = "dc2" if each is one else "dc1"
            eventually("a way to each other", lambda f=farmctl, o=other: answers(f, o))
        yield one, two


def answers(farmctl: Farmctl, name: str) -> bool:
    """Whether a datacenter answers, if only that no cluster is there."""
    return farmctl("--dc", name, "rc", "list").code == 4


@pytest.fixture
def both(pair: tuple[ConsulServer, ConsulServer]) -> tuple[Farmctl, Farmctl]:
    """farmctl at each Consul, in clusters of one prefix."""
    here = in_cluster(pair[0].address)
    asyncio.run(_register(pair[1].address, here.prefix))
    return here, Farmctl(pair[1].address, here.prefix, inside=True)


async def _register(address: str, prefix: str) -> None:
    client = client_of(address)
    try:
        await register_cluster(client, Keys(prefix), SystemIds())
    finally:
        await client.close()


async def lock(address: str, prefix: str, item: str) -> None:
    """Hold the mutation lock of a controller, as somebody in that datacenter does."""
    client = client_of(address)
    try:
        session = await client.create_session(name="test", ttl=60)
        await MutationLocker(client, Keys(prefix), "rcs").take(item, session, Holder("user", "eve", "n@1"))
    finally:
        await client.close()


def web(tmp_path: Path) -> str:
    path = tmp_path / "web.yaml"
    path.write_text(WEB)
    return str(path)


def test_another_datacenter_is_read_and_changed_from_here(both, tmp_path):
    here, there = both
    here.ok("--dc", "dc2", "rc", "create", "-f", web(tmp_path))
    assert here.ok("rc", "list", "-o", "name").out == ""
    assert there.ok("rc", "list", "-o", "name").out == "rc/web\n"
    by_variable = Farmctl(here.address, here.prefix, inside=True, variables={"CONSUL_HTTP_DC": "dc2"})
    (row,) = by_variable.ok("rc", "list", "-o", "json").json["items"]
    asyncio.run(lock(there.address, there.prefix, row["id"]))
    locked = here("--dc", "dc2", "rc", "disable", "web", "--reason", "test")
    assert (locked.code, "locked by user/eve" in locked.err) == (5, True), locked
    here.ok("--dc", "dc2", "rc", "disable", "web", "--force", "--reason", "test", "-y")
    assert there.ok("audit", "list", "-o", "json").json["items"][0]["action"] == "rc.disable"

    unknown = here("--dc", "dc3", "rc", "list")
    assert unknown.code == 2
    assert unknown.err.startswith("farmctl: datacenter: found 'dc3', expected one of dc1, dc2\n")


def test_a_watch_sees_another_datacenter_change(both, tmp_path):
    here, there = both
    watch = here.start("--dc", "dc2", "rc", "list", "--watch", "-o", "json")
    try:
        assert json.loads(watch.stdout.readline())["items"] == []
        there.ok("rc", "create", "-f", web(tmp_path))
        assert json.loads(watch.stdout.readline())["items"][0]["name"] == "web"
    finally:
        watch.kill()
        watch.communicate()


def test_lists_of_all_name_those_that_are_dead_frozen_or_left(both, pair, tmp_path):
    here, there = both
    there.ok("rc", "create", "-f", web(tmp_path))
    shown = here.ok("rc", "list", "--all-dcs")
    assert [line.split()[:2] for line in shown.out.splitlines()] == [["DC", "NAME"], ["dc2", "web"]]
    found = here.ok("rc", "list", "--all-dcs", "-o", "json").json
    assert [(row["dc"], row["name"]) for row in found["items"]] == [("dc2", "web")]
    assert found["unanswered"] == []
    fleets = here.ok("top", "--all-dcs", "-o", "json").json
    assert [each["dc"] for each in fleets["items"]] == ["dc1", "dc2"]
    assert [line.split()[0] for line in here.ok("top", "--all-dcs").out.splitlines()[:3]] == [
        "DC",
        "dc1",
        "dc2",
    ]

    here.ok("rc", "create", "-f", web(tmp_path))
    pair[1].pause()
    silent(here, "frozen")
    pair[1].resume()
    eventually("dc2 is back", lambda: here("rc", "list", "--all-dcs").code == 0)
    pair[1].kill()
    silent(here, "killed")
    pair[1].start()
    eventually("dc2 is back", lambda: here("--dc", "dc2", "rc", "list").code in (0, 4))
    pair[1].leave()
    eventually("dc2 is forgotten", lambda: here("--dc", "dc2", "rc", "list").code == 2)
    gone = here.ok("rc", "list", "--all-dcs", "-o", "json").json
    assert [row["dc"] for row in gone["items"]] == ["dc1"]


def silent(here: Farmctl, how: str) -> None:
    """dc2 does not answer; what dc1 has is shown all the same."""
    shown = here("rc", "list", "--all-dcs")
    assert shown.code == 7, (how, shown)
    assert shown.out.splitlines()[1].split()[:2] == ["dc1", "web"], (how, shown)
    assert shown.err.startswith("farmctl: datacenter dc2: did not answer: "), (how, shown)
    programs = here("rc", "list", "--all-dcs", "-o", "json").json
    assert [each["dc"] for each in programs["unanswered"]] == ["dc2"]
    asked = here("--dc", "dc2", "rc", "list")
    assert asked.code == 7, (how, asked)
    assert asked.err.startswith("farmctl: datacenter dc2 did not answer: "), (how, asked)


def test_an_app_goes_from_datacenter_to_datacenter_and_stops_at_the_first_that_fails(both, tmp_path):
    here, there = both
    web_file = web(tmp_path)
    apply = ("apply", "-f", web_file, "--app", "shop", "-y", "--dcs")
    planned = here.ok(*apply, "dc2,dc1", "--dry-run", "-o", "json").json
    assert [(each["dc"], each["acts"][0]["object"]) for each in planned["items"]] == [
        ("dc2", "rc/web"),
        ("dc1", "rc/web"),
    ]
    assert here("app", "list", "--all-dcs", "-o", "name").out == ""
    folders = [tmp_path / name for name in ("f1", "f2")]
    for folder in folders:
        folder.mkdir()
    where = {"FARMD_STORE__PREFIX": here.prefix}
    with (
        Program("run", "--port", "0", folder=folders[0], CONSUL_HTTP_ADDR=here.address, **where) as one,
        Program("run", "--port", "0", folder=folders[1], CONSUL_HTTP_ADDR=there.address, **where) as two,
    ):
        for farm in (one, two):
            farm.wait_for("process.ready")
        done = here.ok(*apply, "dc2,dc1", "--bake", "2s", "-o", "json").json
        assert [each["outcome"] for each in done["datacenters"]] == ["ready at revision 1"] * 2
        assert [each["dc"] for each in done["items"]] == ["dc2", "dc1"]

        (tmp_path / "web.yaml").write_text(WEB.replace("web", "db").replace("0", "1"))
        there.ok("rc", "create", "-f", web_file)
        (tmp_path / "web.yaml").write_text(WEB + "---\n" + WEB.replace("web", "db"))
        stopped = here(*apply, "dc2,dc1")
        assert stopped.code == 5, stopped
        assert "farmctl: datacenter dc2: app 'shop': rc/db: " in stopped.err
        assert "datacenter dc1: not begun" in stopped.err
        planned = here(*apply, "dc2,dc1", "--dry-run", "-o", "json")
        assert (planned.code, [each["dc"] for each in planned.json["items"]]) == (5, ["dc2", "dc1"])
    assert here.ok("app", "list", "-o", "json").json["items"][0]["record"]["revision"] == 1


SICK = """apiVersion: farmd/v1
kind: rc
name: web
replicas: 1
min_healthy_time: 0
unhealthy_after: 1h
pod:
  id: web
  command: [/bin/sh, -c, "echo at $VERSION; exec sleep 1000"]
  env: {{VERSION: "{version}"}}
  health: {{type: command, command: [test, "!", -e, {sick}], interval: 0.1, failures: 1}}
  stop: {{grace: 1}}
"""


def test_an_app_that_becomes_unhealthy_while_it_bakes_stops_the_rest_and_its_logs_are_read_from_here(
    both, tmp_path
):
    """The one that bakes fails with what its app lacks, and the one behind it is not begun."""
    here, there = both
    sick, file = tmp_path / "sick", tmp_path / "web.yaml"

    def apply(version: str, *more: str) -> Any:
        file.write_text(SICK.format(version=version, sick=sick))
        return here("apply", "-f", str(file), "--app", "shop", "-y", "-o", "json", "--dcs", "dc2,dc1", *more)

    with stopped_at_the_end() as running:
        for number, each in enumerate((here, there)):
            folder = tmp_path / f"f{number}"
            folder.mkdir()
            asyncio.run(_node(each.address, each.prefix))
            where = {"CONSUL_HTTP_ADDR": each.address, "FARMD_STORE__PREFIX": each.prefix}
            agent = {
                "FARMD_AGENT__NODE": "n1",
                "FARMD_AGENT__STATE_DIR": str(folder / "state"),
                "FARMD_AGENT__PORT_RANGE": "{}-{}".format(*pod_ports()),
                "FARMD_AGENT__SHARE_USER": "true",
                "FARMD_AGENT__STOP_WORKLOADS_ON_EXIT": "true",
            }
            running.append(Program("run", "--port", "0", folder=folder, **where))
            running.append(Program("agent", "--port", "0", folder=folder, **where, **agent))
        done = apply("1")
        assert done.code == 0, done
        told = Farmctl(here.address, here.prefix).ok("--dc", "dc2", "rc", "logs", "web")
        assert told.out.endswith("at 1\n"), told

        def falls() -> None:
            try:
                eventually("dc2 bakes", lambda: bakes(app(there)))
            finally:
                sick.touch()

        with ThreadPoolExecutor() as pool:
            falling = pool.submit(falls)
            stopped = apply("2", "--bake", "1h", "--timeout", "12s")
            falling.result()
        assert stopped.code == 8, stopped
        first, second = stopped.json["datacenters"]
        assert first["outcome"].startswith("failed: app 'shop' was not ready for 12 s: "), first
        assert second == {"dc": "dc1", "outcome": "not begun"}
        assert (app(there)["record"]["revision"], app(here)["record"]["revision"]) == (2, 1)


def bakes(now: Any) -> bool:
    """Whether the second revision is reached and the app stands."""
    return bool(now["state"] == "converged" and now["progress"].get("reached") == 2)


def app(farmctl: Farmctl) -> Any:
    """The app of a datacenter, as its list shows it; asked in a process of its own, beside a wait."""
    apart = Farmctl(farmctl.address, farmctl.prefix)
    return apart.ok("app", "list", "-o", "json").json["items"][0]


async def _node(address: str, prefix: str) -> None:
    client = client_of(address)
    try:
        await register_node(client, Keys(prefix), "n1")
    finally:
        await client.close()


def token(server: ConsulServer, *, local: bool) -> str:
    """A new token that may read and write everything, by the owner's word."""
    policy = {"Name": f"all-{local}", "Rules": 'key_prefix "" { policy = "write" }'}
    asked(server, "acl/policy", policy)
    made = asked(server, "acl/token", {"Policies": [{"Name": policy["Name"]}], "Local": local})
    return str(made["SecretID"])


def asked(server: ConsulServer, path: str, body: dict[str, Any]) -> dict[str, Any]:
    data, headers = json.dumps(body).encode(), {"X-Consul-Token": OWNER}
    request = urllib.request.Request(f"{server.url}/v1/{path}", data, headers, method="PUT")
    with urllib.request.urlopen(request, timeout=30) as answer:
        found: dict[str, Any] = json.loads(answer.read())
        return found


def test_a_global_token_works_in_every_datacenter_and_a_local_one_in_its_own():
    with server("dc1", 23, **ACL) as one, server("dc2", 24, one, **ACL):

        def with_token(secret: str) -> Farmctl:
            return Farmctl(one.address, inside=True, variables={"CONSUL_HTTP_TOKEN": secret})

        everywhere, here = with_token(token(one, local=False)), with_token(token(one, local=True))
        eventually(
            "the global token is known in dc2", lambda: everywhere("--dc", "dc2", "rc", "list").code == 4
        )
        assert here("rc", "list").code == 4  # it may read, and no cluster is there
        refused = here("--dc", "dc2", "rc", "list")
        assert (refused.code, "use a global one" in refused.err) == (6, True), refused
        assert here("rc", "list", "--all-dcs").code == 6


def test_a_farm_works_in_no_other_datacenter(tmp_path):
    with Program("run", "--port", "0", folder=tmp_path, CONSUL_HTTP_DC="dc2") as farm:
        farm.wait_text("CONSUL_HTTP_DC: found 'dc2', expected nothing: farms and agents work in")
        assert farm.ends() == 78
