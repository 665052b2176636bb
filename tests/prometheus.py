"""A real Prometheus for tests, which scrapes what a test says once a second."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from tests.binaries import binary
from tests.fleet import eventually
from tests.ports import free_ports
from tests.processes import get
from tests.server_process import ServerProcess
from tests.web_servers import serving

_CONFIG = """\
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
  - job_name: web
    static_configs: [{{targets: ["{target}"]}}]
"""


class Server(ServerProcess):
    """Prometheus with its data and its configuration, ``prometheus.yml``, in its folder."""

    name = "prometheus"

    def __init__(self) -> None:
        super().__init__()
        (self._port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{self._port}"

    def command(self) -> list[str]:
        """Its command line."""
        return [
            str(binary("prometheus")),
            f"--config.file={self.folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self.folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self._port}",
        ]

    def ready(self) -> bool:
        """Whether it answers queries."""
        try:
            status, told = get(f"{self.url}/-/ready")
        except OSError:
            return False
        return status == 200 and "Ready" in told


class Scraped(Server):
    """Prometheus, and what it scrapes: ``values`` are the samples of the metric ``errors``."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, float] = {}

    async def scrapes(self, value: float) -> None:
        """Have it scrape this number alone, and wait until it did."""
        self.values = {"one": value}

        async def seen() -> bool:
            _, told = await asyncio.to_thread(get, f"{self.url}/api/v1/query?query=errors=={value}")
            return f'"{value:g}"' in told

        await eventually(seen, what=f"a scraped {value}")

    async def metrics(self, _: web.Request) -> web.Response:
        """What it scrapes."""
        lines = [f'errors{{which="{name}"}} {value}\n' for name, value in self.values.items()]
        return web.Response(text="".join(lines))


@asynccontextmanager
async def prometheus() -> AsyncIterator[Scraped]:
    """A Prometheus that runs and scrapes nothing yet."""
    scraped = Scraped()
    try:
        async with serving(scraped.metrics) as url:
            target = url.removeprefix("http://")
            (scraped.folder / "prometheus.yml").write_text(_CONFIG.format(target=target))
            await asyncio.to_thread(scraped.start)
            yield scraped
    finally:
        scraped.close()
