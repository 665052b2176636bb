"""The same random operations on the embedded server and on real Consul give the same answers.

Statuses and bodies are compared as they are, but for what two servers cannot share: ids become
their order of creation, and indexes are compared by their order among all indexes seen so far.
"""

from __future__ import annotations

import random
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest

from store.ports import Response
from tests.contract import faces
from tests.contract.faces import Face, json_of

OPERATIONS = 300
SEEDS = range(5)
KEYS = ("a", "a/", "a/b", "a/b/c", "a/bc", "ab", "b", "b/x y", "b/é", "c/1", "c/2", "c/10")
PREFIXES = ("", "a", "a/", "a/b", "b/", "c/", "c/1", "none/", "a/b/c/d")
VALUES = (b"", b"1", b"two", b"\x00\xff")
NO_INDEX = 999_999_999
NOWHERE = "11111111-2222-3333-4444-555555555555"
INDEX_IN_TEXT = re.compile(r"\d+(?= != \d)|(?<=\d != )\d+")


@dataclass
class Side:
    """One server and what it called things."""

    face: Face
    sessions: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)

    async def index(self, key: str) -> int:
        answer = await self.face.raw("GET", f"/v1/kv/{key}")
        return int(json_of(answer)[0]["ModifyIndex"]) if answer.status == 200 else 0


class Order:
    """Two indexes belong together; what was seen together must stay in the same order."""

    def __init__(self) -> None:
        self._ours: dict[int, int] = {}

    def note(self, ours: int, theirs: int, where: str) -> None:
        known = self._ours.setdefault(ours, theirs)
        assert known == theirs, f"{where}: our index {ours} was their {known}, now {theirs}"
        for other, others in self._ours.items():
            assert (other < ours) == (others < theirs), f"{where}: {ours}/{theirs} against {other}/{others}"


@dataclass
class Step:
    """One operation; ``session`` is a place in the list of sessions, ``at`` how an index is chosen."""

    kind: str
    key: str = ""
    value: bytes = b""
    flags: int = 0
    session: int = -1
    at: str = "current"
    params: dict[str, str] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)

    def session_of(self, side: Side) -> str:
        return side.sessions[self.session % len(side.sessions)] if side.sessions else NOWHERE

    async def index_of(self, side: Side) -> int:
        if self.at == "current":
            return await side.index(self.key) if self.key else 0
        return 0 if self.at == "zero" else NO_INDEX


def draw(rng: random.Random) -> Step:
    """One random operation."""
    kind = rng.choices(
        ("put", "cas", "acquire", "release", "delete", "delete-cas", "tree", "get", "list", "keys", "txn",
         "create", "destroy", "renew", "sessions", "info"),
        (10, 6, 8, 5, 5, 3, 2, 6, 8, 6, 16, 3, 2, 2, 3, 3),
    )[0]  # fmt: skip
    step = Step(
        kind,
        key=rng.choice(KEYS),
        value=rng.choice(VALUES),
        flags=rng.choice((0, 0, 3, 2**64 - 1)),
        session=rng.randrange(10),
        at=rng.choice(("current", "current", "stale", "zero")),
    )
    if kind in {"list", "keys", "tree"}:
        step.key = rng.choice(PREFIXES)
        step.params = {"separator": rng.choice(("/", "b", ""))} if kind == "keys" else {}
        if kind == "list" and rng.random() < 0.3:
            step.params = {"raw": ""}
    if kind == "create":
        step.params = {"Behavior": rng.choice(("delete", "release")), "LockDelay": rng.choice(("0s", "60s"))}
    if kind == "txn":
        step.steps = [draw_operation(rng) for _ in range(rng.choice((1, 1, 2, 3, 6)))]
    return step


def draw_operation(rng: random.Random) -> Step:
    verbs = ("set", "cas", "lock", "unlock", "delete", "delete-cas", "delete-tree", "get", "get-tree",
             "check-index", "check-session", "check-not-exists", "frob")  # fmt: skip
    verb = rng.choices(verbs, (8, 5, 5, 4, 4, 2, 1, 4, 2, 4, 4, 4, 1))[0]
    step = draw_key(rng, verb)
    if rng.random() < 0.02:
        step.key = ""
    return step


def draw_key(rng: random.Random, verb: str) -> Step:
    keys = PREFIXES if verb in {"get-tree", "delete-tree"} else KEYS
    if verb == "delete-tree":
        # Consul 1.8.7 dies at the next write ("close of closed channel") after one transaction that
        # wrote something and then deleted the whole store.
        keys = PREFIXES[1:]
    return Step(
        verb,
        key=rng.choice(keys),
        value=rng.choice(VALUES),
        flags=rng.choice((0, 3)),
        session=rng.randrange(10),
        at=rng.choice(("current", "current", "current", "stale", "zero")),
    )


async def perform(side: Side, step: Step) -> Response:
    raw = side.face.raw
    path = f"/v1/kv/{step.key}"
    match step.kind:
        case "put":
            return await raw("PUT", path, {"flags": str(step.flags)}, step.value)
        case "cas":
            return await raw("PUT", path, {"cas": str(await step.index_of(side))}, step.value)
        case "acquire" | "release":
            return await raw("PUT", path, {step.kind: step.session_of(side)}, step.value)
        case "delete":
            return await raw("DELETE", path)
        case "delete-cas":
            return await raw("DELETE", path, {"cas": str(await step.index_of(side))})
        case "tree":
            return await raw("DELETE", path, {"recurse": ""})
        case "get":
            return await raw("GET", path)
        case "list":
            return await raw("GET", path, {"recurse": "", **step.params})
        case "keys":
            return await raw("GET", path, {"keys": "", **step.params})
        case "create":
            return await create(side, step)
        case "sessions":
            return await raw("GET", "/v1/session/list")
        case "info":
            return await raw("GET", f"/v1/session/info/{step.session_of(side)}")
        case "destroy" | "renew":
            return await raw("PUT", f"/v1/session/{step.kind}/{step.session_of(side)}")
    operations = [await wire(side, each) for each in step.steps]
    return await side.face.txn(*operations)


async def create(side: Side, step: Step) -> Response:
    answer = await side.face.raw(
        "PUT", "/v1/session/create", body={"NodeChecks": [], "TTL": "3600s", **step.params}
    )
    side.sessions.append(str(json_of(answer)["ID"]))
    return answer


async def wire(side: Side, step: Step) -> dict[str, Any]:
    operation: dict[str, Any] = {"Verb": step.kind, "Key": step.key, "Value": step.value, "Flags": step.flags}
    if step.kind in {"cas", "delete-cas", "check-index"}:
        operation["Index"] = await step.index_of(side)
    if step.kind in {"lock", "unlock", "check-session"}:
        operation["Session"] = step.session_of(side) if step.session else ""
    return operation


def compare(ours: tuple[Side, Response], theirs: tuple[Side, Response], order: Order, where: str) -> None:
    (our_side, our), (their_side, their) = ours, theirs
    assert our.status == their.status, f"{where}: {our} {their}"
    assert our.headers.get("content-type") == their.headers.get("content-type"), f"{where}: {our} {their}"
    mine, other = named(our_side, our.body), named(their_side, their.body)
    if our.headers.get("content-type") == "application/json" and our.body:
        paired(json_of(our), json_of(their), order, where)
        # Sessions come in the order of their ids, which are random.
        assert plain(mine) == plain(other), f"{where}:\n{mine}\n{other}"
    else:
        assert mine == other, where
    index, their_index = our.headers.get("x-consul-index"), their.headers.get("x-consul-index")
    assert (index is None) == (their_index is None), where
    if index is not None and their_index is not None:
        order.note(int(index), int(their_index), f"{where} X-Consul-Index")


def named(side: Side, body: bytes) -> str:
    text = body.decode()
    for place, each in enumerate(side.sessions):
        text = text.replace(each, f"session-{place}")
    return text.replace("farmd-test", "node").replace('"embedded"', '"node"')


def plain(text: str) -> Any:
    import msgspec

    text = INDEX_IN_TEXT.sub("N", text)
    text = re.sub(r'"(CreateIndex|ModifyIndex)":\s*\d+', r'"\1": 0', text)
    value = msgspec.json.decode(text)
    if isinstance(value, list) and value and isinstance(value[0], dict) and "ID" in value[0]:
        value.sort(key=lambda session: session["ID"])
    return value


def paired(ours: Any, theirs: Any, order: Order, where: str) -> None:
    """Note every pair of indexes at the same place."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for name in ours.keys() & theirs.keys():
            if name in {"CreateIndex", "ModifyIndex"}:
                order.note(ours[name], theirs[name], f"{where} {name}")
            else:
                paired(ours[name], theirs[name], order, where)
    elif isinstance(ours, list) and isinstance(theirs, list):
        if ours and isinstance(ours[0], dict) and "ID" in ours[0]:
            ours, theirs = (sorted(each, key=lambda one: one["CreateIndex"]) for each in (ours, theirs))
        for mine, other in zip(ours, theirs, strict=False):
            paired(mine, other, order, where)
    elif isinstance(ours, str) and isinstance(theirs, str):
        for mine, other in zip(INDEX_IN_TEXT.findall(ours), INDEX_IN_TEXT.findall(theirs), strict=True):
            order.note(int(mine), int(other), where)


@pytest.fixture(params=["embedded-http", "embedded-inprocess"])
async def sides(request: pytest.FixtureRequest, consul_own: str) -> AsyncIterator[tuple[Side, Side]]:
    """An embedded server and a real one, both empty."""
    async with AsyncExitStack() as stack:
        opened = faces.embedded_http() if request.param == "embedded-http" else faces.embedded_inprocess()
        ours = await stack.enter_async_context(opened)
        theirs = await stack.enter_async_context(faces.over_http(faces.REAL, consul_own))
        yield Side(ours), Side(theirs)


@pytest.mark.parametrize("seed", SEEDS)
async def test_random_operations_are_answered_as_consul_answers_them(
    sides: tuple[Side, Side], seed: int
) -> None:
    ours, theirs = sides
    rng = random.Random(seed)
    order = Order()
    for number in range(OPERATIONS):
        step = draw(rng)
        where = f"seed {seed}, step {number}: {step}"
        mine, other = await perform(ours, step), await perform(theirs, step)
        compare((ours, mine), (theirs, other), order, where)
        if number % 10 == 9:
            for prefix in PREFIXES:
                look = Step("list", key=prefix)
                mine, other = await perform(ours, look), await perform(theirs, look)
                compare((ours, mine), (theirs, other), order, f"{where}, then {look}")
