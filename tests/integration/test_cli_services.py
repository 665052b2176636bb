"""``farmctl service`` as people and scripts use it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from aiohttp import web

from farmd.commands.mutation import Call
from farmd.runtime.clock import SystemIds
from store import codec
from store.farms import Member
from store.keys import Keys
from tests.farmctl import Farmctl, Result, embedded, in_cluster, put
from tests.fleet import CLOCK, patient_client
from tests.people import hello
from tests.services import agent, controller, pod, service
from tests.web_servers import serving


@pytest.fixture(scope="module")
def farmctl() -> Iterator[Farmctl]:
    """A registered cluster without a farm."""
    with embedded() as address:
        yield in_cluster(address)


def test_a_service_is_created_shown_and_deleted(farmctl: Farmctl) -> None:
    ports = {"http": {"port": 0}}
    farmctl.ok("rc", "create", "-f", "-", stdin=yaml.safe_dump(hello(name="shop", pod_ports=ports)))
    asked = ("service", "create", "shop", "--port", "http", "rc/shop")
    rehearsed = farmctl.ok(*asked, "--dry-run")
    assert rehearsed.out == "service/shop: create: port http, active rc/shop\n"
    assert farmctl.ok("service", "list", "-o", "json").json["items"] == []
    assert farmctl.ok(*asked).out.startswith("service/shop created (")
    assert farmctl.ok(*asked, "-o", "name").out == "service/shop\n"
    (row,) = farmctl.ok("service", "list", "-o", "json").json["items"]
    assert (row["name"], row["port"], row["serving"], row["gone"]) == ("shop", "http", ["rc/shop"], [])
    assert "ID" in farmctl.ok("service", "list", "-o", "wide").out
    assert farmctl.ok("service", "get", "shop", "-o", "json").json["name"] == "shop"
    described = farmctl.ok("service", "describe", "service/shop").out
    assert "Endpoints:     0 of 0 pods" in described
    assert "service.create" in described
    assert farmctl.ok("service", "endpoints", "shop", "-o", "json").json["items"] == []
    assert "no pod of service shop is available" in farmctl.ok("service", "endpoints", "shop").err
    put(farmctl, "services/0f", '{"id": "0f", "name": "mute", "port": "", "mode": "global"}')
    assert "no port, so no pod of service mute is" in farmctl.ok("service", "endpoints", "0f").err
    refused = farmctl("service", "create", "cart", "--port", "grpc", "rc/shop")
    assert (refused.code, refused.err) == (
        2,
        "farmctl: port: found 'grpc', expected a port of rc/shop: http\n",
    )
    assert farmctl("service", "endpoints", "cart").code == 4
    assert farmctl("service", "create", "shop", "--port", "http").code == 5
    assert farmctl("service", "delete", "shop").code == 2
    farmctl.ok("service", "delete", "shop", "-y")
    assert farmctl.ok("audit", "list", "--kind", "service", "-o", "json").json["items"][0]["name"] == "shop"


def test_a_service_is_published_in_consuls_catalogue_and_taken_out(farmctl: Farmctl, tmp_path: Path) -> None:
    ports = {"http": {"port": 0}}
    farmctl.ok("rc", "create", "-f", "-", stdin=yaml.safe_dump(hello(name="till", pod_ports=ports)))
    create = ("service", "create", "till", "--port", "http", "rc/till")
    assert "expected --catalog with it" in farmctl(*create, "--tag", "edge").err
    farmctl.ok(*create, "--catalog", "--tag", "new")
    (row,) = [
        each for each in farmctl.ok("service", "list", "-o", "json").json["items"] if each["name"] == "till"
    ]
    assert (row["catalog"]["name"], row["catalog"]["tags"]) == ("", ["new"])
    asked = (
        "service",
        "catalog",
        "till",
        "--tag",
        "edge",
        "--tag",
        "eu",
        "--meta",
        "team=shop",
        "--as",
        "pay",
    )
    farmctl.ok(*asked, "--canary-tag", "canary")
    told = farmctl.ok("service", "describe", "till", "-o", "json").json
    assert told["catalog"] == {
        "name": "pay",
        "tags": ["edge", "eu"],
        "meta": {"team": "shop"},
        "canary_tags": ["canary"],
    }
    assert told["published"] is None
    described = farmctl.ok("service", "describe", "till").out
    assert "pay in Consul, tags edge, eu; no farm has looked at it yet" in described
    assert re.search("^DNS: +pay.service.consul$", described, re.MULTILINE)
    assert farmctl.ok(*asked, "--canary-tag", "canary").out.startswith("service/till unchanged")
    for word, found in (
        ("--as", "a.b"),
        ("--meta", "owner=me"),
        ("--meta", "a.b=c"),
        ("--meta", "x"),
        ("--tag", ""),
    ):
        refused = farmctl("service", "catalog", "till", word, found)
        assert (refused.code, "found" in refused.err, "expected" in refused.err) == (2, True, True)
    farmctl.ok("export", str(tmp_path / "fleet"))
    saved = yaml.safe_load_all((tmp_path / "fleet/service.yaml").read_text())
    (document,) = [each for each in saved if each["name"] == "till"]
    entry = {"name": "pay", "tags": ["edge", "eu"], "meta": {"team": "shop"}, "canary_tags": ["canary"]}
    assert document["catalog"] == entry
    assert farmctl("service", "catalog", "till", "--off", "--tag", "edge").code == 2
    deleted = farmctl.ok("service", "delete", "till", "-y", "--dry-run")
    assert "catalogue" not in deleted.err
    farmctl.ok("service", "catalog", "till", "--off")
    assert "Catalog: off, also where farms register" in " ".join(
        farmctl.ok("service", "describe", "till").out.replace(":", ": ").split()
    )
    farmctl.ok("export", str(tmp_path / "again"))
    assert "farmctl service catalog till --off ||" in (tmp_path / "again/commands.sh").read_text()
    farmctl.ok(*asked)
    deleted = farmctl.ok("service", "delete", "till", "-y")
    assert "a farm removes the entries in Consul's catalogue" in deleted.err


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ("port: http", "port: unknown key"),
        ("pods: [rc/kiosk]", "port: missing"),
        ("pods: [rc/kiosk], port: grpc", "port: found 'grpc', expected a port of rc/kiosk: http"),
        ("pods: [rc/kiosk], port: http, replicas: 2", "replicas: unknown"),
        ("pods: [job/kiosk], port: http", "found 'job/kiosk', expected rc/NAME or daemonset/NAME"),
        ("pods: [rc/nobody], port: http", "rc 'nobody' does not exist"),
        ("pods: [rc/kiosk], port: http, catalog: {name: a.b}", "catalog"),
        ("pods: rc/kiosk, port: http", "pods: found"),
    ],
)
def test_a_document_that_names_pods_is_refused_by_its_field(farmctl: Farmctl, fields: str, said: str) -> None:
    ports = {"http": {"port": 0}}
    farmctl("rc", "create", "-f", "-", stdin=yaml.safe_dump(hello(name="kiosk", pod_ports=ports)))
    text = f"{{apiVersion: farmd/v1, kind: service, name: kiosk, {fields}}}"
    refused = farmctl("apply", "-f", "-", "--app", "kiosk", "-y", "--no-wait", stdin=text)
    assert refused.code != 0
    assert said in refused.err, refused
    assert farmctl.ok("app", "list", "-o", "json").json["items"] == []


def test_a_document_that_names_pods_deploys_nothing_and_says_what_takes_it(farmctl: Farmctl) -> None:
    refused = farmctl("deploy", "-f", "-", stdin="kind: service\nname: w\npods: [rc/x]\nport: http\n")
    assert (refused.code, "farmctl apply -f FILE takes it" in refused.err) == (2, True)


def test_a_name_for_pods_is_changed_in_an_editor(farmctl: Farmctl, tmp_path: Path) -> None:
    for name in ("north", "south"):
        ports = {"http": {"port": 0}, "admin": {"port": 0}}
        farmctl("rc", "create", "-f", "-", stdin=yaml.safe_dump(hello(name=name, pod_ports=ports)))
    farmctl.ok("service", "create", "mill", "--port", "http", "rc/north", "--catalog", "--tag", "edge")

    def edited(script: str) -> Result:
        editor = replace(farmctl, variables={"EDITOR": f"sed -i {script}"})
        return editor("service", "edit", "mill", "-y")

    assert edited("s,rc/north,rc/south,").code == 0
    assert edited("s,http,admin,").code == 0
    assert farmctl.ok("service", "get", "mill", "-o", "json").json["serving"] == ["rc/south"]
    assert edited("s,mill,hill,").code != 0
    written = yaml.safe_load(farmctl.ok("get", "service", "mill", "-o", "yaml").out)
    assert (written["pods"], written["port"], written["catalog"]) == (
        ["rc/south"],
        "admin",
        {"tags": ["edge"]},
    )


async def test_a_watch_prints_one_document_a_change(farmctl: Farmctl) -> None:
    client = patient_client(farmctl.address)
    call = Call(client, Keys(farmctl.prefix), CLOCK, SystemIds(), "user/ada@desk")
    rc = await controller(call, "cart")
    for node in ("n1", "n2"):
        await agent(call, node)
    await pod(call, rc, "n1", port=20001)
    await service(call, "cart", name="cart")
    with farmctl.start("service", "endpoints", "cart", "-w", "-o", "json") as watching:
        try:
            assert watching.stdout is not None
            ports = []
            for change in (("n2", "passing"), ("n1", "critical"), None):
                found = json.loads(await asyncio.to_thread(watching.stdout.readline))
                ports.append([item["port"] for item in found["items"]])
                if change is not None:
                    node, state = change
                    await pod(call, rc, node, port=20000 + int(node[1]), state=state)  # type: ignore[arg-type]
        finally:
            watching.kill()
    assert ports == [[20001], [20001, 20002], [20002]]
    await client.close()


async def test_a_watch_waits_for_a_farm_and_reads_no_pods_of_the_store_meanwhile(farmctl: Farmctl) -> None:
    """A farm that is gone is asked no more: the store tells of the next change."""
    client, keys = patient_client(farmctl.address), Keys(farmctl.prefix)
    call = Call(client, keys, CLOCK, SystemIds(), "user/ada@desk")
    rc = await controller(call, "wish")
    await agent(call, "n1")
    await pod(call, rc, "n1", port=20001)
    await service(call, "wish", name="wish")
    asked = list[tuple[str, str]]()

    def endpoint(port: int) -> dict[str, object]:
        return {"node": "n1", "instance": "web", "owner": "rcs/1", "address": "n1.test", "port": port}

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append((request.path, request.query["index"]))
        if request.query["index"] == "8":
            raise web.HTTPServiceUnavailable
        items = [endpoint(30000 + len(asked))]
        return web.json_response({"index": 6 + len(asked), "items": items})

    async with serving(answer) as address:
        await client.put(keys.farm("far"), codec.encode(Member(id="far", version="1", address=address)))
        with farmctl.start("service", "endpoints", "wish", "-w", "-o", "json") as watching:
            try:
                assert watching.stdout is not None
                ports = []
                for _ in range(4):
                    found = json.loads(await asyncio.to_thread(watching.stdout.readline))
                    ports += [item["port"] for item in found["items"]]
            finally:
                watching.kill()
        await client.delete(keys.farm("far"))
    assert ports == [20001, 30001, 30002, 20001]
    path = "/v1/services/wish/endpoints"
    assert asked[:3] == [(path, "0"), (path, "7"), (path, "8")]
    await client.close()
