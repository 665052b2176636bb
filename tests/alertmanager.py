"""A real Alertmanager for tests, which tells nobody of the alerts that it has."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tests.binaries import FOLDER, SHARE, binary
from tests.ports import free_ports
from tests.processes import get
from tests.server_process import ServerProcess

_CONFIG = "{global: {resolve_timeout: 5m}, route: {receiver: none}, receivers: [{name: none}]}"


class Alertmanager(ServerProcess):
    """One server; it forgets its alerts with SIGKILL."""

    name = "alertmanager"

    def __init__(self, config: str = _CONFIG) -> None:
        super().__init__()
        (self._port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{self._port}"
        (self.folder / "alertmanager.yml").write_text(config)

    def command(self) -> list[str]:
        """Its command line."""
        return [
            *_command(),
            f"--config.file={self.folder}/alertmanager.yml",
            f"--storage.path={self.folder}/data",
            f"--web.listen-address=127.0.0.1:{self._port}",
            "--cluster.listen-address=",
        ]

    def ready(self) -> bool:
        """Whether it answers."""
        try:
            return get(f"{self.url}/-/ready") == (200, "OK")
        except OSError:
            return False

    async def alerts(self) -> dict[str, dict[str, Any]]:
        """The alerts that are active, by incident key and severity."""
        _, told = await asyncio.to_thread(get, f"{self.url}/api/v2/alerts?active=true")
        found = json.loads(told)
        return {f"{each['labels']['incident_key']} {each['labels']['severity']}": each for each in found}


def _command() -> list[str]:
    """Debian's reads its templates in /usr/share: one that is only unpacked sees its own there."""
    program = binary("prometheus-alertmanager")
    if program.parent != FOLDER:
        return [str(program)]
    inside = 'mount --bind "$0" /usr/share && exec "$@"'
    return ["unshare", "--map-root-user", "--mount", "sh", "-c", inside, str(SHARE), str(program)]
