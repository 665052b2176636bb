"""The catalogue: each operation, refusal and question as farms and readers send them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from store.ports import Response
from tests.contract.faces import Face, json_of, told
from tests.contract.test_indexes import parked
from tests.fleet import in_time

UNNAMED = told(
    "Must provide service name with ID",
    "Must provide service name (Service.Service) when service ID is provided",
)
FRESH = {"CreateIndex", "ModifyIndex"}
LONG = {"wait": "60s"}


@dataclass
class Case:
    """A server, and the name that nodes and services of this case begin with; its nodes bear that mark."""

    face: Face
    mark: str = field(default_factory=lambda: f"c{secrets.token_hex(4)}")

    async def txn(self, *operations: dict[str, Any]) -> Any:
        """What a transaction that is taken reports."""
        answer = await self.face.raw("PUT", "/v1/txn", body=list(operations))
        assert answer.status == 200, answer.body
        return json_of(answer)["Results"]

    async def refusals(self, *operations: dict[str, Any]) -> list[tuple[int, str]]:
        answer = await self.face.raw("PUT", "/v1/txn", body=list(operations))
        assert answer.status == 409, answer.body
        return [(error["OpIndex"], error["What"]) for error in json_of(answer)["Errors"]]

    async def get(self, path: str, **params: str) -> Response:
        return await self.face.raw("GET", f"/v1/{path}", params)

    async def ask(self, path: str, **params: str) -> Any:
        return json_of(await self.get(path, **params))

    async def index(self, path: str, **params: str) -> int:
        return int((await self.get(path, **params)).headers["x-consul-index"])

    def node(self, verb: str, **fields: Any) -> dict[str, Any]:
        base = {"Node": self.mark, "Meta": {"mark": self.mark}}
        return {"Node": {"Verb": verb, "Node": {**base, **fields}}}

    def service(self, verb: str, **fields: Any) -> dict[str, Any]:
        base = {"ID": "one", "Service": self.mark, "Tags": [], "Meta": {}}
        return {"Service": {"Verb": verb, "Node": self.mark, "Service": {**base, **fields}}}

    def check(self, verb: str, **fields: Any) -> dict[str, Any]:
        base = {"Node": self.mark, "CheckID": "service:one", "ServiceID": "one", "Name": "farmd"}
        return {"Check": {"Verb": verb, "Check": {**base, **fields}}}

    async def registered(self) -> int:
        """Register a node, an instance and its check, all new; their index."""
        made = await self.txn(
            self.node("cas", Address="10.0.0.1"),
            self.service("cas", Address="10.0.0.1", Port=80, Tags=["edge"], Meta={"a": "b"}),
            self.check("cas", Status="passing", Output="ready"),
        )
        (index,) = {entry["ModifyIndex"] for result in made for entry in result.values()}
        return int(index)

    @property
    def marked(self) -> dict[str, str]:
        return {"node-meta": f"mark:{self.mark}"}


@pytest.fixture
async def case(face: Face) -> AsyncIterator[Case]:
    """A case of its own on each server, which leaves nothing there."""
    made = Case(face)
    yield made
    await made.txn(made.node("delete"))


def bare(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry without its indexes, and the check's of later versions that say nothing."""
    return {key: value for key, value in entry.items() if key not in FRESH and value not in ("", {}, 0)}


async def test_what_is_registered_is_told_by_every_question(case: Case) -> None:
    index = await case.registered()
    mark = case.mark
    node: dict[str, Any] = {"Node": mark, "Address": "10.0.0.1", "Datacenter": "dc1", "Meta": {"mark": mark}}
    node |= {"TaggedAddresses": None}
    service: dict[str, Any] = {
        "ID": "one",
        "Service": mark,
        "Tags": ["edge"],
        "Address": "10.0.0.1",
        "Meta": {"a": "b"},
    }
    service |= {"Port": 80, "Weights": {"Passing": 1, "Warning": 1}, "EnableTagOverride": False}
    service["Proxy"] = {**told({}, {"Mode": ""}), "MeshGateway": {}, "Expose": {}}
    check: dict[str, Any] = {
        "Node": mark,
        "CheckID": "service:one",
        "Name": "farmd",
        "Status": "passing",
        "Output": "ready",
    }
    check |= {"ServiceID": "one", "ServiceName": mark, "ServiceTags": ["edge"]}

    assert list(map(bare, await case.ask("catalog/nodes", **case.marked))) == [bare(node)]
    found = await case.ask(f"catalog/node/{mark}")
    assert (bare(found["Node"]), found["Services"].keys()) == (bare(node), {"one"})
    assert bare(found["Services"]["one"]) == bare(service)
    assert found["Node"]["ModifyIndex"] == found["Services"]["one"]["CreateIndex"] == index
    assert await case.ask("catalog/services", **case.marked) == {mark: ["edge"]}
    assert (await case.ask("catalog/services"))[mark] == ["edge"]
    (flat,) = await case.ask(f"catalog/service/{mark}")
    assert {key: flat[key] for key in ("Node", "Address", "NodeMeta", "ServiceID", "ServiceName")} == {
        "Node": mark,
        "Address": "10.0.0.1",
        "NodeMeta": {"mark": mark},
        "ServiceID": "one",
        "ServiceName": mark,
    }
    assert (flat["ServiceAddress"], flat["ServicePort"], flat["ServiceMeta"]) == ("10.0.0.1", 80, {"a": "b"})
    (healthy,) = await case.ask(f"health/service/{mark}", passing="")
    assert bare(healthy["Node"]) == bare(node)
    assert bare(healthy["Service"]) == bare(service)
    assert list(map(bare, healthy["Checks"])) == [check]
    assert list(map(bare, await case.ask(f"health/node/{mark}"))) == [check]
    assert list(map(bare, await case.ask("health/state/any", **case.marked))) == [check]
    assert await case.ask("health/state/critical", **case.marked) == []


async def test_answers_have_the_fields_of_the_version(case: Case) -> None:
    await case.txn(case.node("set"), case.service("set", Tags=None, Meta=None), case.check("set"))
    entry = {"CreateIndex", "ModifyIndex"}
    node = entry | {"ID", "Node", "Address", "Datacenter", "TaggedAddresses"}
    service = entry | {"ID", "Service", "Tags", "Address", "Meta", "Weights", "EnableTagOverride", "Proxy"}
    service |= {"Connect", *told({"Port"}, {"PeerName"})}
    check = entry | {"Node", "CheckID", "Name", "Status", "Notes", "Output", "ServiceID", "ServiceName"}
    check |= {"ServiceTags", "Type", "Definition", *told(set[str](), {"Interval", "Timeout", "ExposedPort"})}
    flat = {f"Service{key}" for key in service - entry - {"Service", "ID", "PeerName"}}
    flat |= {
        "ServicePort",
        "ServiceID",
        "ServiceName",
        "ServiceKind",
        *told(set[str](), {"ServiceSocketPath"}),
    }

    results = await case.txn(case.node("get"), case.service("get"), case.check("get"))
    assert [each.keys() for result in results for each in result.values()] == [
        node | {"Meta"},
        service,
        check,
    ]
    assert results[1]["Service"]["Tags"] is None
    assert (results[2]["Check"]["Status"], results[2]["Check"]["ServiceTags"]) == ("critical", None)
    (one,) = await case.ask(f"catalog/service/{case.mark}")
    assert one.keys() == node | {"NodeMeta"} | flat
    assert (one["ServiceTags"], one["ServiceMeta"], one["ServicePort"]) == ([], {}, 0)
    (one,) = await case.ask(f"health/service/{case.mark}")
    assert (one["Node"].keys(), one["Service"].keys()) == (node | {"Meta"}, service)
    assert (one["Service"]["Tags"], one["Service"]["Meta"]) == ([], None)
    assert (one["Checks"][0].keys(), one["Checks"][0]["ServiceTags"]) == (check, [])


async def test_what_is_not_there_is_told_as_nothing(case: Case) -> None:
    mark = case.mark
    assert await case.ask(f"catalog/node/{mark}") is None
    for path in ("catalog/service", "health/service", "health/node", "health/state"):
        assert await case.ask(f"{path}/{mark}") == []
    assert await case.ask("catalog/services", **case.marked) == {}
    for path, missing in (
        ("catalog/node/", "node name"),
        ("catalog/service/", "service name"),
        ("health/service/", "service name"),
        ("health/node/", "node name"),
        ("health/state/", "check state"),
    ):
        answer = await case.get(path)
        assert (answer.status, answer.body.decode()) == (400, f"Missing {missing}")
    answer = await case.get(f"health/service/{mark}", passing="x")
    assert (answer.status, answer.body.decode()) == (400, "Invalid value for ?passing")


async def test_the_texts_of_refusals_where_nothing_is(case: Case) -> None:
    node, service, check = (
        f'node "{case.mark}"',
        f'service "one" on node "{case.mark}"',
        f'check "service:one" on node "{case.mark}"',
    )
    assert await case.refusals(
        case.node("cas", ModifyIndex=7),
        case.node("get"),
        case.node("delete-cas", ModifyIndex=7),
        case.node("frob"),
        case.service("set"),
        case.service("cas"),
        case.service("cas", ModifyIndex=7),
        case.service("get"),
        case.service("delete"),
        case.service("delete-cas", ModifyIndex=7),
        case.service("frob"),
        case.check("set"),
        case.check("cas"),
        case.check("cas", ModifyIndex=7),
        case.check("get"),
        case.check("delete"),
        case.check("delete-cas", ModifyIndex=7),
        case.check("frob"),
        case.node("delete"),
    ) == [
        (0, f"failed to set {node}, index is stale"),
        (1, f"{node} doesn't exist"),
        (2, f"failed to delete {node}, index is stale"),
        (3, 'unknown Node verb "frob"'),
        (4, "Missing node registration"),
        (5, "Missing node registration"),
        (6, f"failed to set {service}, index is stale"),
        (7, f"{service} doesn't exist"),
        (9, f"failed to delete {service}, index is stale"),
        (10, 'unknown Service verb "frob"'),
        (11, "Missing node registration"),
        (13, f"failed to set {check}, index is stale"),
        (14, f"{check} doesn't exist"),
        (16, f"failed to delete {check}, index is stale"),
        (17, 'unknown Check verb "frob"'),
    ]


async def test_the_texts_of_refusals_over_what_is_there(case: Case) -> None:
    await case.registered()
    node, service = f'node "{case.mark}"', f'service "one" on node "{case.mark}"'
    check = f'check "service:one" on node "{case.mark}"'
    assert await case.refusals(
        case.node("cas"),
        case.node("delete-cas", ModifyIndex=1),
        case.service("cas"),
        case.service("delete-cas", ModifyIndex=1),
        case.check("cas"),
        case.check("delete-cas", ModifyIndex=1),
        case.check("set", ServiceID="none"),
    ) == [
        (0, f"failed to set {node}, index is stale"),
        (1, f"failed to delete {node}, index is stale"),
        (2, f"failed to set {service}, index is stale"),
        (3, f"failed to delete {service}, index is stale"),
        (4, f"failed to set {check}, index is stale"),
        (5, f"failed to delete {check}, index is stale"),
        (6, "Missing service registration"),
    ]


async def test_what_has_no_name_is_refused_before_anything_is_tried(case: Case) -> None:
    assert await case.refusals(
        case.node("set", Node=""),
        case.service("delete", Service=""),
        case.node("cas", ModifyIndex=7),
    ) == [(0, "Must provide node"), (1, UNNAMED)]


async def test_a_rejected_transaction_changes_neither_keys_nor_the_catalogue(case: Case) -> None:
    await case.registered()
    before = await case.ask(f"health/service/{case.mark}")
    key = case.face.key("a")
    assert await case.refusals(
        case.service("set", Port=81),
        case.check("set", Status="critical"),
        {"KV": {"Verb": "set", "Key": key, "Value": ""}},
        case.node("delete"),
        {"KV": {"Verb": "check-not-exists", "Key": key}},
    ) == [(4, f'key "{key}" exists')]
    assert await case.ask(f"health/service/{case.mark}") == before
    assert await case.face.client.read(key) is None


async def test_a_name_is_the_id_where_there_is_none_and_case_does_not_count(case: Case) -> None:
    await case.registered()
    made = await case.txn(
        case.service("set", ID=""), case.check("set", CheckID="", ServiceID=case.mark.upper())
    )
    assert [each["ID"] for each in made[0].values()] == [case.mark]
    assert [(each["CheckID"], each["ServiceName"]) for each in made[1].values()] == [("farmd", case.mark)]
    assert (await case.txn(case.node("get", Node=case.mark.upper())))[0]["Node"]["Node"] == case.mark
    assert len(await case.ask(f"health/service/{case.mark.upper()}")) == 2


async def test_a_write_that_changes_nothing_keeps_the_indexes(case: Case) -> None:
    index = await case.registered()
    before = [await case.ask(path) for path in (f"catalog/node/{case.mark}", f"health/node/{case.mark}")]
    await case.txn(
        case.node("set", Address="10.0.0.1"),
        case.service("cas", Address="10.0.0.1", Port=80, Tags=["edge"], Meta={"a": "b"}, ModifyIndex=index),
        case.check("set", Status="passing", Output="ready"),
    )
    after = [await case.ask(path) for path in (f"catalog/node/{case.mark}", f"health/node/{case.mark}")]
    assert after == before
    assert await case.index(f"health/service/{case.mark}") == index
    if told(True, False):
        assert await case.index(f"health/node/{case.mark}") > index


async def test_a_change_moves_the_index_of_what_shows_it_and_of_nothing_else(case: Case) -> None:
    mark = case.mark
    nodes, node, services = "catalog/nodes", f"catalog/node/{mark}", "catalog/services"
    service, checks = f"health/service/{mark}", {f"health/node/{mark}", "health/state/any"}
    paths = {nodes, node, services, service} | checks

    async def moved(operation: dict[str, Any]) -> set[str]:
        (made,) = await case.txn(operation)
        (index,) = {entry["ModifyIndex"] for entry in made.values()}
        return {path for path in paths if await case.index(path) == index}

    await case.registered()
    assert await moved(case.check("set", Status="critical")) == {service, *checks}
    assert await moved(case.service("set", Port=81)) == {node, services, service, *told([], [nodes])}
    assert await moved(case.node("set", Address="10.0.0.2")) == {nodes, node, service}
    latest = await case.index(nodes)
    assert await case.index(services, **case.marked) >= latest


async def test_an_instance_passes_only_with_the_checks_of_its_node(case: Case) -> None:
    await case.registered()

    async def passing() -> bool:
        return bool(await case.ask(f"health/service/{case.mark}", passing=""))

    assert await passing()
    await case.txn(case.check("set", CheckID="disk", ServiceID="", Status="warning"))
    assert not await passing()
    assert await case.ask(f"health/service/{case.mark}", passing="false")
    await case.txn(case.check("delete", CheckID="disk"))
    assert await passing()
    await case.txn(case.check("set", Status="critical"))
    assert not await passing()


async def test_questions_choose_by_tag_and_by_the_meta_of_nodes(case: Case) -> None:
    await case.registered()
    for path in (f"catalog/service/{case.mark}", f"health/service/{case.mark}"):
        assert len(await case.ask(path, tag="EDGE")) == 1
        assert await case.ask(path, tag="other") == []
        assert len(await case.ask(path, **case.marked)) == 1
        assert await case.ask(path, **{"node-meta": "mark:none"}) == []


async def test_what_is_removed_takes_along_what_is_on_it(case: Case) -> None:
    index = await case.registered()
    path = f"health/service/{case.mark}"
    await case.txn(case.service("set", ID="two"), case.check("set", CheckID="disk", ServiceID=""))
    assert await case.txn(case.service("delete-cas", ModifyIndex=index)) == []
    assert [each["CheckID"] for each in await case.ask(f"health/node/{case.mark}")] == ["disk"]
    assert [each["Service"]["ID"] for each in await case.ask(path)] == ["two"]
    before = await case.index(path)
    await case.txn(case.node("delete-cas", ModifyIndex=index))
    assert await case.ask(path) == []
    assert await case.ask(f"health/node/{case.mark}") == []
    gone = await case.index(path)
    assert gone > before
    assert await case.index("catalog/nodes") >= gone
    # The index of a service that is gone stands still until another one goes.
    await case.txn(case.node("set"))
    assert await case.index(path) == gone


async def test_a_change_ends_a_wait(case: Case) -> None:
    await case.registered()
    paths = (f"catalog/node/{case.mark}", f"health/service/{case.mark}")
    waits = [await waiting(case, path) for path in paths]
    await case.txn({"KV": {"Verb": "set", "Key": case.face.key("other"), "Value": ""}})
    assert not any(wait.done() for wait in waits)
    await case.txn(case.service("set", Tags=["new"]))
    node, health = await in_time(asyncio.gather(*waits))
    assert node["Services"]["one"]["Tags"] == health[0]["Service"]["Tags"] == ["new"]


async def test_the_names_of_services_can_be_followed(case: Case) -> None:
    """As the view of a farm does; the server's own registration may end a wait, too."""
    await case.registered()

    async def followed() -> None:
        index = await case.index("catalog/services", **case.marked)
        while True:
            answer = await case.get("catalog/services", index=str(index), **LONG, **case.marked)
            if json_of(answer) == {}:
                return
            index = int(answer.headers["x-consul-index"])

    wait = await parked(case.face, followed())
    await case.txn(case.service("delete"))
    await in_time(wait)


async def test_the_absence_of_a_service_and_of_a_node_can_be_waited_on(case: Case) -> None:
    waits = [
        await waiting(case, path) for path in (f"health/service/{case.mark}", f"catalog/node/{case.mark}")
    ]
    await case.registered()
    health, node = await in_time(asyncio.gather(*waits))
    assert (len(health), node["Node"]["Node"]) == (1, case.mark)


async def waiting(case: Case, path: str) -> asyncio.Task[Any]:
    """Ask for what comes after the present answer."""
    return await parked(case.face, case.ask(path, index=str(await case.index(path)), **LONG))
