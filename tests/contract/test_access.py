"""Denied requests: plainly 403, inside a transaction a 409 that has to be told apart (R12)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from store.embedded.calls import Policy
from store.ports import Response
from tests import servers
from tests.contract import faces
from tests.contract.faces import Face, json_of

MASTER = "00000000-1111-2222-3333-444444444444"
RULES = """
key_prefix "" { policy = "deny" }
key_prefix "open/" { policy = "write" }
key_prefix "open/closed/" { policy = "deny" }
key_prefix "seen/" { policy = "read" }
session_prefix "" { policy = "write" }
"""
SAME_RULES = Policy({"": "deny", "open/": "write", "open/closed/": "deny", "seen/": "read"}, sessions=True)


@dataclass
class Guarded:
    """A server with access control, asked as a farm with a narrow token or as its owner."""

    face: Face
    token: str

    async def ask(self, method: str, path: str, body: Any = b"", token: str | None = None) -> Response:
        chosen = self.token if token is None else token
        headers = {"X-Consul-Token": chosen} if chosen else {}
        return await self.face.raw(method, path, body=body, headers=headers)

    async def txn(self, *operations: dict[str, Any]) -> Response:
        return await self.ask("PUT", "/v1/txn", [{"KV": operation} for operation in operations])


def first_words(answer: Response) -> str:
    """The part of a refusal's text that all versions share: newer ones go on after a colon."""
    return answer.body.decode().partition(":")[0]


def denied(answer: Response) -> list[int]:
    """The places of the denied operations of a transaction, all of whose errors are denials."""
    found = json_of(answer)
    assert found["Results"] is None
    assert {error["What"].partition(":")[0] for error in found["Errors"]} == {"Permission denied"}
    return [error["OpIndex"] for error in found["Errors"]]


@pytest.fixture(params=faces.FACES)
async def guarded(request: pytest.FixtureRequest) -> AsyncIterator[Guarded]:
    policies = {"narrow": SAME_RULES, MASTER: Policy({"": "write"}, sessions=True)}
    if request.param == "embedded-http":
        async with faces.embedded_http(policies=policies) as face:
            yield Guarded(face, "narrow")
    elif request.param == "embedded-inprocess":
        async with faces.embedded_inprocess(policies=policies) as face:
            yield Guarded(face, "narrow")
    else:
        acl = {"enabled": True, "default_policy": "deny", "tokens": {"master": MASTER}}
        with servers.ConsulServer(dev=True, config={"acl": acl}) as server:
            async with faces.over_http(faces.REAL, server.address) as face:
                yield Guarded(face, await narrow_token(face))


async def narrow_token(face: Face) -> str:
    owner = Guarded(face, MASTER)
    policy = json_of(await owner.ask("PUT", "/v1/acl/policy", {"Name": "narrow", "Rules": RULES}))
    token = await owner.ask("PUT", "/v1/acl/token", {"Policies": [{"ID": policy["ID"]}]})
    return str(json_of(token)["SecretID"])


@pytest.fixture
async def filled(guarded: Guarded) -> Guarded:
    for key in ("open/a", "open/closed/a", "seen/a", "hidden/a"):
        assert (await guarded.ask("PUT", f"/v1/kv/{key}", b"1", MASTER)).status == 200
    return guarded


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "/v1/kv/seen/a"),
        ("PUT", "/v1/kv/hidden/a"),
        ("PUT", "/v1/kv/open/closed/a"),
        ("DELETE", "/v1/kv/seen/a"),
        ("DELETE", "/v1/kv/open/?recurse"),
        ("GET", "/v1/kv/hidden/a"),
    ],
)
async def test_a_denied_request_is_403(filled: Guarded, method: str, path: str) -> None:
    path, _, flag = path.partition("?")
    headers = {"X-Consul-Token": filled.token}
    answer = await filled.face.raw(method, path, {flag: ""} if flag else {}, b"2", headers)
    assert (answer.status, first_words(answer)) == (403, "Permission denied")


async def test_what_is_allowed_passes(filled: Guarded) -> None:
    assert (await filled.ask("PUT", "/v1/kv/open/a", b"2")).body.strip() == b"true"
    assert (await filled.ask("GET", "/v1/kv/seen/a")).status == 200
    assert (await filled.ask("PUT", "/v1/session/create", {"NodeChecks": []})).status == 200


async def test_a_tree_shows_only_what_may_be_read(filled: Guarded) -> None:
    async def keys(*params: str) -> Any:
        headers = {"X-Consul-Token": filled.token}
        return await filled.face.raw("GET", "/v1/kv/", dict.fromkeys(params, ""), headers=headers)

    assert [each["Key"] for each in json_of(await keys("recurse"))] == ["open/a", "seen/a"]
    assert json_of(await keys("keys")) == ["open/a", "seen/a"]


async def test_a_denied_operation_inside_a_transaction_is_409(filled: Guarded) -> None:
    answer = await filled.txn(
        {"Verb": "set", "Key": "open/a", "Value": b"3"},
        {"Verb": "set", "Key": "seen/a", "Value": b"3"},
        {"Verb": "check-index", "Key": "hidden/a", "Index": 1},
        {"Verb": "delete-tree", "Key": "open/"},
    )
    assert answer.status == 409
    assert denied(answer) == [1, 2, 3]
    assert json_of(await filled.ask("GET", "/v1/kv/open/a"))[0]["Value"] == "MQ=="


async def test_to_check_that_a_key_is_absent_takes_the_right_to_write_it(filled: Guarded) -> None:
    read_only = await filled.txn({"Verb": "check-not-exists", "Key": "seen/b"})
    assert read_only.status == 409
    assert denied(read_only) == [0]
    assert (await filled.txn({"Verb": "check-not-exists", "Key": "open/b"})).status == 200


async def test_reading_in_a_transaction_leaves_out_what_is_hidden(filled: Guarded) -> None:
    answer = await filled.txn({"Verb": "get", "Key": "seen/a"}, {"Verb": "get", "Key": "hidden/a"})
    assert answer.status == 200
    assert [each["KV"]["Key"] for each in json_of(answer)["Results"]] == ["seen/a"]


async def test_nobody_may_do_nothing_and_an_unknown_token_is_told_so(filled: Guarded) -> None:
    nobody = await filled.ask("PUT", "/v1/kv/open/a", b"2", token="")
    assert (nobody.status, first_words(nobody)) == (403, "Permission denied")
    session = await filled.ask("PUT", "/v1/session/create", {"NodeChecks": []}, token="")
    assert (session.status, first_words(session)) == (403, "Permission denied")
    unknown = await filled.ask("PUT", "/v1/kv/open/a", b"2", token="99999999-1111-2222-3333-444444444444")
    assert (unknown.status, first_words(unknown)) == (403, "ACL not found")
