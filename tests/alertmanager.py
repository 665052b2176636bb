"""A real Alertmanager for tests, which tells nobody of the alerts that it has."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import aiohttp

from tests import reaper
from tests.binaries import FOLDER, SHARE, binary
from tests.fleet import eventually
from tests.ports import free_ports

NAME = "prometheus-alertmanager"
_CONFIG = "{global: {resolve_timeout: 5m}, route: {receiver: none}, receivers: [{name: none}]}"


class Alertmanager:
    """One server; its data last as long as ``folder``, its address as long as the object."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (self._port,) = free_ports(1)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self._port}"

    async def start(self) -> None:
        """Start it; returns when it answers."""
        (self._folder / "alertmanager.yml").write_text(_CONFIG)
        with (self._folder / "alertmanager.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *_command(),
                    f"--config.file={self._folder}/alertmanager.yml",
                    f"--storage.path={self._folder}/data",
                    f"--web.listen-address=127.0.0.1:{self._port}",
                    "--cluster.listen-address=",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        reaper.started(self._process.pid, self._folder)
        await eventually(self._ready, what="an Alertmanager")

    def kill(self) -> None:
        """SIGKILL; it forgets its alerts."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            reaper.reaped(process.pid)

    async def alerts(self) -> dict[str, dict[str, Any]]:
        """The alerts that are active, by incident key and severity."""
        found = json.loads(await self._get("/api/v2/alerts?active=true"))
        return {f"{each['labels']['incident_key']} {each['labels']['severity']}": each for each in found}

    async def _ready(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError((self._folder / "alertmanager.log").read_text()[-2000:])
        try:
            return await self._get("/-/ready") == "OK"
        except aiohttp.ClientError:
            return False

    async def _get(self, path: str) -> str:
        async with aiohttp.ClientSession() as http, http.get(f"{self.url}{path}") as response:
            return await response.text()


def _command() -> list[str]:
    """Debian's reads its templates in /usr/share: one that is only unpacked sees its own there."""
    program = binary(NAME)
    if program.parent != FOLDER:
        return [str(program)]
    inside = 'mount --bind "$0" /usr/share && exec "$@"'
    return ["unshare", "--map-root-user", "--mount", "sh", "-c", inside, str(SHARE), str(program)]
