"""A node's address is what people say, else what its agent said when it was announced (R21)."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from farmd.cache.agents import TOLD_SECONDS, Addresses
from store.entry import Stored
from store.features import ADDRESS
from store.keys import Keys
from store.nodes import Agent, Node
from store.presence import at_host, host
from tests.still_clock import StillClock

KEYS = Keys()
KEY = KEYS.agent("n1")


class Tree:
    """A cache as far as addresses need one."""

    def __init__(self) -> None:
        self.entries: dict[str, Stored[Any]] = {}
        self.broken: set[str] = set()
        self.heard: Callable[[set[str]], None] = lambda _: None

    def get(self, key: str) -> Stored[Any] | None:
        return None if key in self.broken else self.entries.get(key)

    def holds(self, key: str) -> bool:
        return key in self.entries or key in self.broken

    def subscribe(self, heard: Callable[[set[str]], None]) -> None:
        self.heard = heard


class Bench:
    """One farm's view of the node ``n1``."""

    def __init__(self) -> None:
        self.agents, self.nodes = Tree(), Tree()
        self.clock = StillClock()
        caches = SimpleNamespace(
            agents=self.agents, nodes=self.nodes, on_forget=lambda _: None, clock=self.clock
        )
        self.seen = Addresses(caches, KEYS)  # type: ignore[arg-type]

    def said(self, address: str, created: int, *features: str) -> tuple[str, bool]:
        """The node's host after its presence says this, and whether that is doubted."""
        record = Agent(node="n1", version="1", address=address, features=list(features))
        self.agents.entries[KEY] = Stored(KEY, record, created + 5, b"", create_index=created)
        return self.heard()

    def heard(self) -> tuple[str, bool]:
        self.agents.heard({KEY})
        return self.seen.host("n1"), bool(self.seen.doubt("n1"))

    def people(self, address: str) -> None:
        key = KEYS.node("n1")
        self.nodes.entries[key] = Stored(key, Node(address=address), 1, b"")


def test_a_present_agents_address_stays_until_its_session_changes() -> None:
    bench = Bench()
    assert bench.said("http://10.0.0.1:7521", 7, ADDRESS) == ("10.0.0.1", False)
    assert bench.said("http://10.0.0.1:9999", 7, ADDRESS) == (
        "10.0.0.1",
        False,
    )  # another port is no other host
    assert bench.said("http://6.6.6.6:7521", 7, ADDRESS) == ("10.0.0.1", True)
    assert bench.said("http://6.6.6.6:7521", 7) == ("10.0.0.1", True)  # nor by the word of an older agent
    bench.agents.broken.add(KEY)
    assert bench.heard() == ("10.0.0.1", True)  # nor by way of a record that does not decode
    bench.agents.broken.clear()
    assert bench.said("http://10.0.0.1:7521", 7, ADDRESS) == ("10.0.0.1", False)
    assert bench.said("http://10.0.0.2:7521", 9, ADDRESS)[0] == "10.0.0.2"
    del bench.agents.entries[KEY]
    assert bench.heard()[0] == ""


@pytest.mark.parametrize("by", ["another session", "a deletion and another session"])
def test_a_host_that_changes_with_the_session_is_told_for_ten_minutes(by: str) -> None:
    bench = Bench()
    bench.said("http://10.0.0.1:7521", 7, ADDRESS)
    if by != "another session":
        del bench.agents.entries[KEY]
        bench.heard()
    assert bench.said("http://6.6.6.6:7521", 9, ADDRESS) == ("6.6.6.6", True)
    assert "from 10.0.0.1 to 6.6.6.6" in bench.seen.doubt("n1")
    assert bench.seen.told_for("n1") == TOLD_SECONDS
    bench.clock.seconds += TOLD_SECONDS
    assert bench.seen.doubt("n1") == ""
    bench.said("http://10.0.0.1:7521", 11, ADDRESS)
    bench.people("10.0.0.1")
    assert bench.seen.doubt("n1") == ""


def test_an_agent_of_before_is_believed() -> None:
    bench = Bench()
    assert bench.said("10.0.0.1:7521", 7) == ("10.0.0.1", False)
    assert bench.said("10.0.0.2:7521", 7)[0] == "10.0.0.2"


@pytest.mark.parametrize("address", ["http://[x", "[", "http://a]b", "http://a:99999", "x\u2100y"])
def test_an_address_that_is_none_ends_no_farm(address: str) -> None:
    bench = Bench()
    assert bench.said(address, 7, ADDRESS) == ("", False)
    assert bench.said("http://10.0.0.1:7521", 9, ADDRESS) == ("10.0.0.1", False)
    assert bench.said(address, 9, ADDRESS) == ("10.0.0.1", True)


def test_people_say_where_a_node_is() -> None:
    bench = Bench()
    bench.people("db.example")
    assert bench.said("http://10.0.0.1:7521", 7, ADDRESS) == ("db.example", False)
    assert bench.said("http://6.6.6.6:7521", 7, ADDRESS) == ("db.example", False)


@pytest.mark.parametrize(
    ("stated", "said", "address"),
    [
        ("https://10.0.0.1:7521", "", "https://10.0.0.1:7521"),
        ("https://10.0.0.1:7521", "db.example", "https://db.example:7521"),
        ("10.0.0.1:7521", "fd00::1", "http://[fd00::1]:7521"),
        ("", "db.example", ""),
        ("http://[x", "db.example", "http://[x"),
        ("http://a:99999", "db.example", "http://a:99999"),
    ],
)
def test_an_agents_http_is_reached_at_the_host_that_people_say(stated: str, said: str, address: str) -> None:
    assert at_host(stated, said) == address
    assert host(address) == (said or host(stated) if host(stated) else "")
