"""The compose file as a compose tool reads it, and what it tells our processes as they read it.

The tool is Debian's docker-compose 1.29, pure Python, unpacked into ``.cache``: it validates every key
against the compose schema. No container engine is needed; nothing is started.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from farmd.config.sources import load
from tests import debian

# One worker unpacks the tool and asks it for the services.
pytestmark = pytest.mark.xdist_group("compose file")
ROOT = Path(__file__).resolve().parents[2]
PACKAGES = [
    "docker-compose",
    "python3-attr",
    "python3-certifi",
    "python3-chardet",
    "python3-distro",
    "python3-docker",
    "python3-dockerpty",
    "python3-docopt",
    "python3-dotenv",
    "python3-idna",
    "python3-jsonschema",
    "python3-pyrsistent",
    "python3-requests",
    "python3-six",
    "python3-texttable",
    "python3-urllib3",
    "python3-websocket",
    "python3-yaml",
]


def compose(*arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run the tool on our file, or on ``text`` in its place."""
    folder = debian.tree("docker-compose", PACKAGES, "bookworm") / "usr/lib/python3/dist-packages"
    where = ["-f", "-"] if text is not None else []
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "compose", *where, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(folder)},
        input=text,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def services() -> dict:
    done = compose("--profile", "observability", "config")
    assert done.returncode == 0, done.stderr
    return yaml.safe_load(done.stdout)["services"]


def test_the_tool_would_name_an_unknown_key():
    text = (ROOT / "docker-compose.yml").read_text().replace("cap_drop:", "cap_dropp:")
    done = compose("config", "--quiet", text=text)
    assert done.returncode != 0
    assert "cap_dropp" in done.stderr


def test_it_is_one_consul_two_farms_and_three_agents(services):
    assert set(services) == {"consul", "farm-1", "farm-2", "agent-1", "agent-2", "agent-3", "prometheus"}
    for name, service in services.items():
        if name.startswith(("farm", "agent")):
            assert service["depends_on"]["consul"]["condition"] == "service_healthy"
            # Each argument without a space: some engines split them there.
            assert service["healthcheck"]["test"] == ["CMD", "farmd", "health", name.partition("-")[0]]


def test_ports_are_published_on_loopback_only(services):
    published = [port for service in services.values() for port in service.get("ports", [])]
    assert published
    assert all(str(port).startswith("127.0.0.1:") for port in published)


def test_every_image_has_a_fixed_version(services):
    for service in services.values():
        assert ":" in service["image"]
        assert not service["image"].endswith(":latest")


def test_our_processes_accept_what_they_are_told(services):
    names = set()
    for name, service in services.items():
        if name.startswith(("farm", "agent")):
            config = load(None, service["environment"]).config
            assert config.store.address == "http://consul:8500"
            assert config.web.advertise == name
            names.add(config.agent.node if name.startswith("agent") else config.farm.name)
    assert names == {"farm-1", "farm-2", "node-1", "node-2", "node-3"}
