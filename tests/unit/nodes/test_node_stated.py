"""What something else says of a node is not changed by people, whatever that is."""

from __future__ import annotations

import pytest

from farmd.nodes.commands import label
from store import codec
from store.errors import Conflict
from store.nodes import Node, is_host
from tests.people import KEYS, person


async def test_a_field_that_a_newer_kind_of_work_says_is_refused_with_its_name() -> None:
    async with person() as call:
        node = Node(labels={"rack": "a"}, parts={"labels.rack": "bundles/shop"})
        await call.client.put(KEYS.node("web1"), codec.encode(node))
        with pytest.raises(Conflict, match="is managed by bundles/shop, which this version does not know"):
            await label(call, "web1", {"rack": "b"})


@pytest.mark.parametrize(
    "text", ["10.0.0.7", "fd00::7", "fe80::1%eth0", "web1", "web1.rack-2.example.", "my_host"]
)
def test_what_a_node_can_be_reached_at(text: str) -> None:
    assert is_host(text)


@pytest.mark.parametrize(
    "text",
    ["", "..", "::", "0.0.0.0", "a..b", "99999:80", "80:1", "a b", "https://a", "-a", "x" * 300, "web1\n"],
)
def test_what_no_node_can_be_reached_at(text: str) -> None:
    assert not is_host(text)
