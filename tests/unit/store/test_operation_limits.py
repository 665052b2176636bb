"""A farm asks how many operations a transaction may have, and goes back to 64 where that is refused (R25)."""

from __future__ import annotations

import pytest

from store import operations
from store.consul.client import ConsulClient
from store.embedded.calls import Policy
from store.embedded.server import EmbeddedServer, InProcessTransport
from store.embedded.state import Limits
from store.errors import StoreUnavailable
from store.operations import MAX_OPERATIONS, MORE_OPERATIONS
from store.transaction import Group, pack, submit
from tests.virtual import VirtualClock, embedded_server


def server_of(most: int, **options: object) -> tuple[EmbeddedServer, ConsulClient]:
    clock = VirtualClock()
    server = embedded_server(clock, limits=Limits(operations=most), **options)
    return server, ConsulClient(InProcessTransport(server), clock=clock)


def groups(count: int) -> list[Group[int]]:
    return [Group((operations.put(f"k/{number}", b"1"),), number) for number in range(count)]


@pytest.mark.parametrize("most", [MAX_OPERATIONS, MORE_OPERATIONS])
async def test_r25_the_limit_is_that_of_the_server_and_asking_writes_nothing(most: int) -> None:
    server, client = server_of(most)
    before = server.state.raft_index
    await client.learn_limits("meta/cluster")
    assert (client.most_operations, server.state.raft_index) == (most, before)


async def test_r25_a_token_without_rights_learns_it_too() -> None:
    _, client = server_of(MORE_OPERATIONS, policies={"": Policy()})
    await client.learn_limits("meta/cluster")
    assert client.most_operations == MORE_OPERATIONS


async def test_r25_where_another_server_takes_less_the_rest_goes_in_smaller_transactions() -> None:
    server, client = server_of(MORE_OPERATIONS)
    await client.learn_limits("meta/cluster")
    server.state.limits = Limits(operations=MAX_OPERATIONS)  # the next one that answers is older
    clock = VirtualClock()
    (refused,) = await submit(client, pack(groups(100), max_operations=client.most_operations), clock=clock)
    assert isinstance(refused.error, StoreUnavailable)
    assert server.state.kv.under("k/") == []
    again = await submit(client, pack(groups(100), max_operations=client.most_operations), clock=clock)
    assert [(result.committed, len(result.batch.groups)) for result in again] == [(True, 64), (True, 36)]
