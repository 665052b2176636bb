"""What a compose file keeps to itself: a port of the loopback, a network without a way out, its secrets."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from tests.engine import IMAGE, PodmanEngine
from tests.ports import free_ports
from tests.projects import Sites

pytestmark = pytest.mark.xdist_group("containers")

FILE = """
name: my_reach
services:
  my_web:
    image: {image}
    command: httpd -f -p 80 -h /srv/site
    ports: ["127.0.0.1:{port}:80"]
    volumes: ["./site:/srv/site"]
    secrets: [key]
    tmpfs: ["/run/tools:exec,size=1m"]
    stop_grace_period: 1s
    networks: [front, back]
    healthcheck: {{test: [CMD, wget, -qO-, "http://127.0.0.1/"], interval: 1s}}
networks: {{front: , back: {{internal: true}}}}
secrets: {{key: {{file: ./key.bin}}}}
"""


async def test_a_project_reaches_no_further_than_its_file_says(
    sites: Sites, engine: PodmanEngine, tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    project = tmp_path / "project"
    (project / "site").mkdir(parents=True)
    (project / "site" / "index.html").write_text("hello")
    (project / "key.bin").write_bytes(b"\x80key")
    (project / "compose.yaml").write_text(FILE.format(image=IMAGE, port=port))
    await sites.deployed(project / "compose.yaml", "--with-files")
    await sites.shows(port, "hello")
    names = [name for name in engine.names() if "my-web" in name]
    (found,) = json.loads(engine.run("inspect", *names))
    assert found["HostConfig"]["PortBindings"]["80/tcp"] == [{"HostIp": "127.0.0.1", "HostPort": str(port)}]
    assert engine.run("exec", names[0], "od", "-An", "-tx1", "/run/secrets/key").split() == [
        "80",
        "6b",
        "65",
        "79",
    ]
    tool = "printf '#!/bin/sh\\necho ran' > /run/tools/x && chmod +x /run/tools/x && /run/tools/x"
    assert engine.run("exec", names[0], "sh", "-c", tool).strip() == "ran"
    (back,) = json.loads(engine.run("network", "inspect", "my_reach_back"))
    assert back["internal"] is True
    with socket.create_connection(("127.0.0.1", port), timeout=5.0):
        pass
