"""The configuration of HAProxy in docs/discovery.md, in a real HAProxy, on the DNS of a real Consul."""

from __future__ import annotations

import asyncio
import re
import subprocess
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from store.services import Catalog
from tests import servers
from tests.binaries import here
from tests.farmctl import ROOT
from tests.fleet import eventually
from tests.ports import free_ports
from tests.shops import shop_on
from tests.web_servers import serving

HOSTS = ("127.0.0.2", "127.0.0.3")


@pytest.fixture(scope="module")
def consul() -> Iterator[servers.ConsulServer]:
    with servers.ConsulServer(dev=True, dns=True) as server:
        yield server


def documented() -> str:
    text = (ROOT / "docs" / "discovery.md").read_text()
    found = re.search(r"## HAProxy\n\n```\n(.*?)```", text, re.DOTALL)
    assert found is not None
    return found[1]


@asynccontextmanager
async def haproxy(folder: Path, consul: servers.ConsulServer, service: str) -> AsyncIterator[str]:
    """HAProxy with the documented lines; the address that it listens on."""
    (port,) = free_ports(1)
    lines = documented().replace("127.0.0.1:8600", f"{consul.host}:{consul.dns_port}")
    lines = lines.replace("_web._tcp", f"_{service}._tcp")
    configuration = folder / "haproxy.cfg"
    configuration.write_text(
        "defaults\n    mode http\n    timeout connect 5s\n    timeout client 30s\n    timeout server 30s\n"
        f"frontend all\n    bind 127.0.0.1:{port}\n    default_backend web\n{lines}"
    )
    found = here("haproxy")
    assert found is not None, "no haproxy on PATH: python -m tests.machine installs it"
    program = subprocess.Popen([found, "-db", "-f", str(configuration)], stderr=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        program.kill()
        program.wait()


async def test_haproxy_follows_the_pods_by_the_documented_lines(
    tmp_path: Path, consul: servers.ConsulServer
) -> None:
    async with AsyncExitStack() as stack:

        async def pod(host: str) -> tuple[str, int]:
            async def answer(_: web.Request) -> web.Response:
                return web.Response(text=host)

            address = await stack.enter_async_context(serving(answer, host=host))
            return host, int(address.rpartition(":")[2])

        places = [await pod(host) for host in HOSTS]
        shop = await stack.enter_async_context(shop_on(consul.address, *places))
        await shop.farm()
        await shop.publish(Catalog())
        await shop.passes(*places)
        address = await stack.enter_async_context(haproxy(tmp_path, consul, shop.name))

        def ask() -> str:
            try:
                with urllib.request.urlopen(address, timeout=30) as answer:
                    found: str = answer.read().decode()
                    return found
            except OSError as error:
                return f"no answer: {error}"

        async def answers() -> set[str]:
            return {await asyncio.to_thread(ask) for _ in range(6)}

        async def only(*hosts: str) -> bool:
            return await answers() == set(hosts)

        await eventually(lambda: only(*HOSTS), what="both pods answer")
        await shop.pod("n2", places[1][1], state="critical")
        await eventually(
            lambda: only(HOSTS[0]), what="the pod that fails gets no request, although it answers"
        )
        await shop.pod("n2", places[1][1])
        await eventually(lambda: only(*HOSTS), what="it gets requests again")
