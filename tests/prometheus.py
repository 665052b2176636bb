"""A real Prometheus for tests, which scrapes what a test says once a second."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
from aiohttp import web

from tests import reaper
from tests.binaries import binary
from tests.fleet import eventually
from tests.ports import free_ports
from tests.web_servers import serving

_CONFIG = """\
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
  - job_name: web
    static_configs: [{{targets: ["{target}"]}}]
"""


class Server:
    """Prometheus with its data and its configuration, ``prometheus.yml``, in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (self._port,) = free_ports(1)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self._port}"

    async def start(self) -> None:
        """Start it, on the data that it has; returns when it answers queries."""
        log = (self._folder / "prometheus.log").open("ab")
        with log:
            self._process = subprocess.Popen(
                [
                    binary("prometheus"),
                    f"--config.file={self._folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={self._folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{self._port}",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        reaper.started(self._process.pid, self._folder)
        await eventually(self._ready, what="a Prometheus that is ready")

    def kill(self) -> None:
        """SIGKILL; its data stay."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            reaper.reaped(process.pid)

    async def _ready(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError((self._folder / "prometheus.log").read_text()[-2000:])
        try:
            return "Ready" in await self._get("/-/ready")
        except aiohttp.ClientError:
            return False

    async def _get(self, path: str) -> str:
        async with aiohttp.ClientSession() as http, http.get(f"{self.url}{path}") as response:
            return await response.text()


class Scraped(Server):
    """Prometheus, and what it scrapes: ``values`` are the samples of the metric ``errors``."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.values: dict[str, float] = {}

    async def scrapes(self, value: float) -> None:
        """Have it scrape this number alone, and wait until it did."""
        self.values = {"one": value}

        async def seen() -> bool:
            return f'"{value:g}"' in await self._get(f"/api/v1/query?query=errors=={value}")

        await eventually(seen, what=f"a scraped {value}")

    async def metrics(self, _: web.Request) -> web.Response:
        """What it scrapes."""
        lines = [f'errors{{which="{name}"}} {value}\n' for name, value in self.values.items()]
        return web.Response(text="".join(lines))


@asynccontextmanager
async def prometheus() -> AsyncIterator[Scraped]:
    """A Prometheus that runs and scrapes nothing yet."""
    with tempfile.TemporaryDirectory(prefix="farmd-prometheus-", ignore_cleanup_errors=True) as name:
        scraped = Scraped(Path(name))
        async with serving(scraped.metrics) as url:
            target = url.removeprefix("http://")
            (Path(name) / "prometheus.yml").write_text(_CONFIG.format(target=target))
            try:
                await scraped.start()
                yield scraped
            finally:
                scraped.kill()
