"""A name that passes to another record between two reads leads to that record."""

from __future__ import annotations

import pytest

from store import operations
from store.consul.client import ConsulClient
from store.entry import Entry
from store.errors import NotFound
from store.keys import Keys
from store.named import NamedRecords
from store.rcs import ReplicationController
from tests.virtual import VirtualClock, embedded_client

KEYS = Keys("t/")


class Swapping:
    """A reader before whose first read of the old record a rollout ends, which ``swap`` does."""

    def __init__(self, client: ConsulClient, old: str, new: list[operations.Operation]) -> None:
        self._client, self._old, self._new = client, old, new
        self.list, self.keys = client.list, client.keys

    async def read(self, key: str, **how: str) -> Entry | None:
        if key == KEYS.record("rcs", self._old) and self._new:
            await self._client.transaction(self._new)
            self._new = []
        return await self._client.read(key, **how)  # type: ignore[arg-type]


def records(client: object) -> NamedRecords[ReplicationController]:
    return NamedRecords(client, KEYS, "rcs", ReplicationController, "rc")  # type: ignore[arg-type]


async def made(client: ConsulClient, ident: str, name: str) -> None:
    rc = ReplicationController(id=ident, name=name, manifest="m", replicas_desired=0)
    await client.transaction(list(records(client).create(rc)))


@pytest.mark.parametrize("follows", ["the new record", "nobody"])
async def test_a_name_that_moves_between_both_reads_is_read_again(follows: str) -> None:
    client = embedded_client(VirtualClock())
    await made(client, "00aa", "web")
    old = await records(client).get("00aa")
    batch = list(records(client).delete(old))
    if follows == "the new record":
        await made(client, "00bb", "web-2")
        new = await records(client).get("00bb")
        batch = [each for each in batch if each.key != KEYS.name("rcs", "web")]
        batch += [
            operations.put(KEYS.name("rcs", "web"), b'"00bb"'),
            records(client).replace(
                new, ReplicationController(id="00bb", name="web", manifest="m", replicas_desired=0)
            ),
        ]
        found = await records(Swapping(client, "00aa", batch)).find("web")
        assert (found.record.id, found.record.name) == ("00bb", "web")
        return
    with pytest.raises(NotFound):
        await records(Swapping(client, "00aa", batch)).find("web")
