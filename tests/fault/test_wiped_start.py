"""A farm that was started while Consul had lost its data, and these come back."""

from __future__ import annotations

import asyncio
from pathlib import Path

from store import codec
from store.consul.client import ConsulClient
from store.farms import Member
from store.keys import Keys
from tests.fleet import client_of, eventually
from tests.processes import Program
from tests.servers import ConsulServer


def farm(consul: ConsulServer, name: str, folder: Path) -> Program:
    """``farmd run`` as people start it."""
    folder.mkdir()
    return Program(
        "run", "--port", "0", folder=folder, CONSUL_HTTP_ADDR=consul.address, FARMD_FARM__NAME=name
    )


async def member(client: ConsulClient, name: str) -> Member | None:
    entry = await client.read(Keys().farm(name))
    return None if entry is None else codec.decode(Member, entry.value, entry.key)


async def test_a_farm_that_was_started_in_a_wiped_store_joins_the_cluster_whose_data_are_back(
    tmp_path: Path,
) -> None:
    with ConsulServer(dev=False) as consul:
        client = client_of(consul.address)
        with farm(consul, "first", tmp_path / "first") as first:
            await asyncio.to_thread(first.wait_for, "farm.ready")
            cluster = await client.read(Keys().cluster)
            snapshot = await asyncio.to_thread(consul.snapshot)
            first.ends(15)
        await client.delete(Keys().prefix, recurse=True)
        with farm(consul, "second", tmp_path / "second") as second:
            await asyncio.to_thread(second.wait_for, "farm.ready")
            assert await client.read(Keys().cluster) != cluster
            await asyncio.to_thread(consul.restore, snapshot)
            await asyncio.to_thread(second.wait_for, "farm.rejoins")
            await asyncio.to_thread(second.wait_for, "farm.ready")
            await eventually(lambda: member(client, "second"), what="its presence in the cluster")
            assert second.ends(15) == 0
        await client.close()
