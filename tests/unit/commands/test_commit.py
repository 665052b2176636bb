"""What a person is told of a change, whatever the network did to its transaction."""

from __future__ import annotations

import pytest

from farmd.commands.mutation import commit
from farmd.replication.commands import RC
from store.consul.client import ConsulClient
from store.entry import Entry
from store.errors import Conflict
from store.operations import Operation
from tests.people import hello, person


async def test_r12_a_change_that_a_middlebox_sends_twice_was_made_and_not_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    send = ConsulClient.transaction

    async def twice(self: ConsulClient, operations: list[Operation]) -> list[Entry]:
        await send(self, operations)
        return await send(self, operations)

    async with person() as call:
        mutation = await RC.create(call, RC.file.parse(hello(), "test"))
        monkeypatch.setattr(ConsulClient, "transaction", twice)
        await commit(call, mutation)
        assert (await RC.records(call.client, call.keys).find("hello")).record.id == mutation.change.id
        with pytest.raises(Conflict, match="nothing was written"):
            await commit(call, mutation)
