"""Consul's leader is stopped cleanly, as in an upgrade of its servers: no farm takes that for a restore."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from structlog.testing import capture_logs

from store.errors import StoreError
from store.families import RCS
from tests.consul_group import ConsulGroup
from tests.fleet import Cluster, RunningFarm, client_of, eventually, farm_on

pytestmark = pytest.mark.slow


@asynccontextmanager
async def fleet(servers: ConsulGroup) -> AsyncIterator[tuple[Cluster, list[RunningFarm]]]:
    """A cluster with a farm at each follower."""
    async with AsyncExitStack() as stack:
        clients = [client_of(server.address) for server in servers.followers]
        for client in clients:
            stack.push_async_callback(client.close)
        cluster = Cluster(clients[0])
        await cluster.register()
        farms = [
            await stack.enter_async_context(farm_on(client, f"farm-{number}"))
            for number, client in enumerate(clients)
        ]
        yield cluster, farms


async def sessions(cluster: Cluster) -> dict[str, str]:
    """The sessions of the farms that are present, by key."""
    found = await cluster.entries(cluster.keys.tree("farms"))
    return {key: entry.session for key, entry in found.items() if entry.session}


async def test_r23_farms_keep_their_sessions_while_the_leader_is_stopped_cleanly() -> None:
    with ConsulGroup() as servers, capture_logs() as logs:
        async with fleet(servers) as (cluster, farms):
            rc = await cluster.create_rc("web", 0)
            before, leader = await sessions(cluster), servers.leader
            assert len(before) == len(farms)
            assert leader is not None
            await asyncio.to_thread(servers.stop, leader)

            async def written() -> bool:
                try:
                    await cluster.change_rc(rc, labels={"tier": "web"})
                except StoreError:
                    return False
                return True

            async def known() -> bool:
                trees = [farm.farm.caches.tree(RCS) for farm in farms]
                return all(each.record.labels for tree in trees for each in tree.entries.values())

            await eventually(written, what="a write")
            await eventually(known, what="farms that see it")
            for farm in farms:
                await asyncio.gather(*(tree.barrier() for tree in farm.farm.caches.all()))
            assert await sessions(cluster) == before
        assert "watch.ended_early" in {line["event"] for line in logs}
        assert "farm.begins_anew" not in {line["event"] for line in logs}
