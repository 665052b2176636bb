"""What an earlier owner wrote of an item is recalled as it stands, and no longer than that."""

from __future__ import annotations

import pytest

from farmd.work.status import RECALL_ONE_BY_ONE, Recollection
from store import codec
from store.keys import Keys
from store.status import Status
from tests.virtual import VirtualClock, embedded_client

KEYS = Keys()


@pytest.mark.parametrize("others", [0, RECALL_ONE_BY_ONE])
async def test_a_status_that_is_gone_is_not_recalled_from_an_earlier_reading(others: int) -> None:
    client = embedded_client(VirtualClock())
    items = ["a", *(f"other-{number}" for number in range(others))]
    recollection = Recollection(client, KEYS, "rcs", Status)
    await client.put(KEYS.status("rcs", "a"), codec.encode(Status(state="blocked", alerts=("old",))))
    await recollection.read(items)
    await client.delete(KEYS.status("rcs", "a"))
    await recollection.read(items)
    assert recollection.take("a") is None


async def test_a_status_is_recalled_once() -> None:
    client = embedded_client(VirtualClock())
    recollection = Recollection(client, KEYS, "rcs", Status)
    status = Status(state="blocked", alerts=("old",))
    await client.put(KEYS.status("rcs", "a"), codec.encode(status))
    await recollection.read(["a"])
    assert (recollection.take("a"), recollection.take("a")) == (status, None)
