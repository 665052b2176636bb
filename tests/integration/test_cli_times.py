"""Every time in farmctl's JSON and YAML is RFC 3339: no number in a document is as large as one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from store import codec
from store.failsafe import Acknowledgement, Failsafe
from store.farms import Member
from store.keys import Keys
from store.nodes import Agent, Drain, Node
from store.pods import Pod
from store.reality import Exit, Health, Reality
from store.status import Status
from store.work import Work
from tests.farmctl import Farmctl, embedded, in_cluster, put
from tests.people import hello

AT = 1763688000.0
SHOWN = "2025-11-21T01:20:00.000Z"
COMMANDS = [
    ["rc", "list"],
    ["rc", "describe", "hello"],
    ["rc", "pods", "hello"],
    ["node", "list"],
    ["node", "describe", "web1"],
    ["pod", "list"],
    ["farm", "list"],
    ["audit", "list"],
    ["failsafe", "status"],
    ["top"],
]


@pytest.fixture(scope="module")
def farmctl() -> Iterator[Farmctl]:
    with embedded() as address:
        made = in_cluster(address, "web1")
        keys = Keys(made.prefix)
        made.ok("rc", "create", "-f", "-", stdin=yaml.safe_dump(hello()))
        rc = made.ok("rc", "get", "hello", "-o", "json").json["id"]
        records: dict[str, Any] = {
            keys.node("web1"): Node(drain=Drain(since=AT, deadline=AT, stage="pods")),
            keys.agent("web1"): Agent(node="web1", version="1", since=AT),
            keys.farm("f1"): Member(id="f1", version="1", since=AT),
            keys.work("nodes", "web1"): Work(absent_since=AT, lost_since=AT),
            keys.status("rcs", rc): Status(state="blocked", since=AT),
            keys.failsafe("rcs"): Failsafe(
                evidence="x", since=AT, acknowledgement=Acknowledgement("x", "ada", AT)
            ),
            keys.pod(rc, "web1", "hello"): Pod(manifest="m", at=AT),
            keys.reality("web1", "hello"): Reality(
                manifest="m",
                owner=rc,
                phase="running",
                started=AT,
                exits=[Exit(AT, 1)],
                health=Health("passing", AT),
            ),
        }
        for key, record in records.items():
            put(made, key.removeprefix(made.prefix), codec.encode(record).decode())
        yield made


def large(value: Any, path: str = "") -> Iterator[str]:
    """Where a document holds a number that may be a time."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from large(item, f"{path}.{key}")
    elif isinstance(value, list):
        for item in value:
            yield from large(item, path)
    elif isinstance(value, int | float) and value > 1e9:
        yield path


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_time_in_json_and_yaml_is_rfc_3339(farmctl: Farmctl, command: list[str]) -> None:
    found = farmctl.ok(*command, "-o", "json")
    assert list(large(found.json)) == []
    assert SHOWN in found.out or command == ["audit", "list"]
    assert list(large(yaml.safe_load(farmctl.ok(*command, "-o", "yaml").out))) == []


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_time_stands_in_a_table_for_people(farmctl: Farmctl, words: list[str]) -> None:
    assert farmctl.ok(*words, "-o", "wide").out
