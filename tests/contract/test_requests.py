"""What is wrong with a request, and what the server says about itself."""

from __future__ import annotations

import pytest

from store.consul.answers import ServersHealth
from tests.contract import faces
from tests.contract.faces import REAL, Face, json_of
from tests.fleet import eventually


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("POST", "/v1/kv/a", "OPTIONS,GET,PUT,DELETE"),
        ("PATCH", "/v1/kv/a", "OPTIONS,GET,PUT,DELETE"),
        ("GET", "/v1/session/create", "OPTIONS,PUT"),
        ("DELETE", "/v1/session/destroy/x", "OPTIONS,PUT"),
        ("PUT", "/v1/session/list", "OPTIONS,GET"),
        ("PUT", "/v1/session/info/x", "OPTIONS,GET"),
        ("POST", "/v1/txn", "OPTIONS,PUT"),
        ("GET", "/v1/txn", "OPTIONS,PUT"),
        ("PUT", "/v1/status/leader", "OPTIONS,GET"),
    ],
)
async def test_a_method_that_is_not_allowed(face: Face, method: str, path: str, allow: str) -> None:
    answer = await face.raw(method, path)
    assert (answer.status, answer.body.decode()) == (405, f"method {method} not allowed")
    assert answer.headers["allow"] == allow


async def test_options_names_the_methods(face: Face) -> None:
    answer = await face.raw("OPTIONS", "/v1/kv/a")
    assert (answer.status, answer.headers["allow"]) == (200, "OPTIONS,GET,PUT,DELETE")


@pytest.mark.parametrize(
    ("method", "path", "params", "status", "text"),
    [
        ("GET", "/v1/kv/", {}, 400, "Missing key name"),
        ("PUT", "/v1/kv/", {}, 400, "Missing key name"),
        ("DELETE", "/v1/kv/", {}, 400, "Missing key name"),
        ("PUT", "/v1/kv/a", {"cas": "0", "acquire": "x"}, 400, "Conflicting flags: acquire=x&cas=0"),
        ("PUT", "/v1/kv/a", {"release": "x", "acquire": "y"}, 400, "Conflicting flags: acquire=y&release=x"),
        ("DELETE", "/v1/kv/a", {"recurse": "", "cas": "1"}, 400, "Conflicting flags: cas=1&recurse="),
        ("PUT", "/v1/kv/a", {"cas": "x"}, 500, 'strconv.ParseUint: parsing "x": invalid syntax'),
        ("PUT", "/v1/kv/a", {"cas": ""}, 500, 'strconv.ParseUint: parsing "": invalid syntax'),
        ("PUT", "/v1/kv/a", {"cas": "-1"}, 500, 'strconv.ParseUint: parsing "-1": invalid syntax'),
        ("PUT", "/v1/kv/a", {"flags": "x"}, 500, 'strconv.ParseUint: parsing "x": invalid syntax'),
        (
            "PUT",
            "/v1/kv/a",
            {"flags": str(2**64)},
            500,
            f'strconv.ParseUint: parsing "{2**64}": value out of range',
        ),
        ("DELETE", "/v1/kv/a", {"cas": "x"}, 500, 'strconv.ParseUint: parsing "x": invalid syntax'),
        ("GET", "/v1/kv/a", {"index": "x"}, 400, "Invalid index"),
        ("GET", "/v1/kv/a", {"index": "-1"}, 400, "Invalid index"),
        ("GET", "/v1/kv/a", {"index": "1", "wait": "5"}, 400, "Invalid wait time"),
        ("GET", "/v1/kv/a", {"wait": "1e2ms"}, 400, "Invalid wait time"),
        (
            "GET",
            "/v1/kv/a",
            {"stale": "", "consistent": ""},
            400,
            "Cannot specify ?stale with ?consistent, conflicting semantics.",
        ),
        ("GET", "/v1/kv/a", {"dc": "elsewhere"}, 500, "No path to datacenter"),
        ("GET", "/v1/session/node/", {}, 400, "Missing node name"),
        ("GET", "/v1/nothing", {}, 404, ""),
        ("GET", "/v1/acl/tokens", {}, 401, "ACL support disabled"),
        ("GET", "/v1/", {}, 404, ""),
    ],
)
async def test_a_request_that_makes_no_sense(
    face: Face, method: str, path: str, params: dict[str, str], status: int, text: str
) -> None:
    answer = await face.raw(method, path, params)
    assert (answer.status, answer.body.decode()[: len(text)]) == (status, text)


@pytest.mark.parametrize("wait", ["1.5ms", ".5ms", "1s1ms", "1us", "1µs", "+1ms", "10ns"])
async def test_waits_are_written_as_go_writes_durations(face: Face, wait: str) -> None:
    await face.client.put(face.key("a"), b"1")
    answer = await face.raw("GET", f"/v1/kv/{face.key('a')}", {"index": "1", "wait": wait})
    assert answer.status == 200


@pytest.mark.parametrize(
    ("path", "location"),
    [
        ("/v1/kv", "/v1/kv/"),
        ("/v1/kv//a", "/v1/kv/a"),
        ("/v1/kv/a//b/", "/v1/kv/a/b/"),
        ("/v1/kv/a/./b", "/v1/kv/a/b"),
        ("/v1/kv/a/../b", "/v1/kv/b"),
        ("/v1/session/info", "/v1/session/info/"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "PUT"])
async def test_unclean_paths_are_sent_elsewhere(face: Face, method: str, path: str, location: str) -> None:
    """So keys with empty or dotted parts exist through transactions only; farmd writes none."""
    answer = await face.raw(method, path)
    assert (answer.status, answer.headers["location"]) == (301, location)


@pytest.mark.parametrize("name", ["tab\there", "nul\0", "new\nline", "nbsp\u00a0"])
async def test_keys_that_cannot_be_printed_are_refused_in_paths(face: Face, name: str) -> None:
    assert (await face.raw("PUT", f"/v1/kv/{face.prefix}{name}", body=b"1")).status == 400
    assert (await face.client.keys(face.prefix)).items == []


async def test_the_server_says_who_it_is(face: Face) -> None:
    leader = await face.client.leader()
    assert leader.startswith("127.0.0.1:")
    assert json_of(await face.raw("GET", "/v1/status/peers")) == [leader]
    own = (await face.client.agent()).config
    assert own.version.startswith(faces.VERSION.rpartition(".")[0]) or face.name == REAL
    node = own.node_name
    nodes = json_of(await face.raw("GET", "/v1/catalog/nodes"))
    assert [each["Node"] for each in nodes] == [node]
    checks = json_of(await face.raw("GET", f"/v1/health/node/{node}"))
    assert [(each["CheckID"], each["Status"]) for each in checks] == [("serfHealth", "passing")]
    assert json_of(await face.raw("GET", "/v1/catalog/datacenters")) == ["dc1"]


async def test_a_server_that_is_alone_is_healthy_and_none_may_be_lost(face: Face) -> None:
    async def told() -> ServersHealth | None:
        found = await face.client.servers()
        return found if found.servers and found.servers[0].healthy else None

    found = await eventually(told, what="a leader that calls its server healthy")
    own = (await face.client.agent()).config.node_name
    assert found.failure_tolerance == 0
    assert [(each.name, each.serf_status, each.healthy) for each in found.servers] == [(own, "alive", True)]
