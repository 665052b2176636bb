"""Consul in a container, wherever a Docker-compatible API answers or can be set up.

The image is made from the binary that the other tests use, so nothing is pulled. Where there is no
API and none can be made, this fails and says why: a machine without containers should be a decision.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer

from farmd.runtime.clock import SystemClock
from store.consul.client import ConsulClient
from store.consul.transport import connect
from store.errors import StoreError
from tests import binaries, containers, reaper
from tests.containers import Api
from tests.fleet import LIMIT
from tests.ports import free_ports

HTTP_PORT = 8500


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    """docker's API, or one of our own. Containers are removed here, not by another container."""
    with pytest.MonkeyPatch.context() as patch, containers.docker_api() as found:
        patch.setenv("DOCKER_HOST", found.host)
        patch.setattr(testcontainers_config, "ryuk_disabled", True)
        yield found


@contextmanager
def tracked(container: DockerContainer, api: Api) -> Iterator[None]:
    """Our own API's containers are processes of this machine: they end with the run, however it ends."""
    if not api.own:
        yield
        return
    wrapped = container.get_wrapped_container()
    wrapped.reload()
    pid = int(wrapped.attrs["State"]["Pid"])
    reaper.started(pid)
    yield
    reaper.reaped(pid)


@pytest.fixture
def address(api: Api) -> Iterator[str]:
    """``host:port`` of a Consul in a container of its own."""
    image = containers.image_of(api, binaries.binary("consul"), "localhost/farmd-test-consul")
    http, rpc, serf = free_ports(3) if api.own else (HTTP_PORT, 8300, 8301)
    command = [
        "/bin/consul", "agent", "-dev", "-bind", "127.0.0.1", "-dns-port", "-1", "-grpc-port", "-1",
        "-client", "127.0.0.1" if api.own else "0.0.0.0", "-serf-wan-port", "-1",
        "-http-port", str(http), "-server-port", str(rpc), "-serf-lan-port", str(serf),
    ]  # fmt: skip
    container = DockerContainer(image).with_command(command)
    if api.own:
        container.with_kwargs(network_mode="host")
    else:
        container.with_exposed_ports(HTTP_PORT)
    with closing(container.get_docker_client().client), container, tracked(container, api):
        host = "127.0.0.1" if api.own else container.get_container_host_ip()
        yield f"{host}:{http if api.own else container.get_exposed_port(HTTP_PORT)}"


async def ready(client: ConsulClient) -> bool:
    """Whether the container listens, its server leads, and its node is registered: a session needs one."""
    try:
        if not await client.leader():
            return False
        await client.destroy_session(await client.create_session(name="ready", ttl=10))
    except StoreError:
        return False
    return True


async def test_the_client_works_against_consul_in_a_container(address: str) -> None:
    client = connect({}, SystemClock(), address=address)
    async with asyncio.timeout(LIMIT):
        while not await ready(client):
            await asyncio.sleep(0.05)
    assert (await client.agent()).config.version.split(".")[0] == "1"
    assert await client.put("farmd/a", b"1", cas=0)
    session = await client.create_session(name="test", ttl=10)
    assert await client.put("farmd/lock", b"1", acquire=session)
    index = (await client.list("farmd/")).index
    await client.destroy_session(session)
    page = await client.list("farmd/", index=index, wait=10)
    assert [item.key for item in page.items] == ["farmd/a"]
    await client.close()
