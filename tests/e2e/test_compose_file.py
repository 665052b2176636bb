"""The compose file as Compose reads it, and what it tells our processes as they read it.

Compose validates every key against its schema. No container engine is needed; nothing is started.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from farmd.config.sources import load
from tests.composed import tool

# One worker unpacks the tool and asks it for the services.
pytestmark = pytest.mark.xdist_group("compose file")
ROOT = Path(__file__).resolve().parents[2]


def compose(*arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run the tool on our file, or on ``text`` in its place."""
    where = ["-f", "-"] if text is not None else []
    return subprocess.run(
        [tool(), "--profile", "tools", *where, *arguments],
        cwd=ROOT,
        input=text,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def services() -> dict:
    done = compose("config")
    assert done.returncode == 0, done.stderr
    return yaml.safe_load(done.stdout)["services"]


def test_the_tool_would_name_an_unknown_key():
    text = (ROOT / "docker-compose.yml").read_text().replace("cap_drop:", "cap_dropp:")
    done = compose("config", "--quiet", text=text)
    assert done.returncode != 0
    assert "cap_dropp" in done.stderr


def ours(services: dict) -> dict:
    return {name: each for name, each in services.items() if name.startswith(("farm-", "agent-"))}


def test_it_is_three_servers_two_farms_three_agents_and_what_watches_them(services):
    assert set(services) == {
        *("consul-1", "consul-2", "consul-3", "acl", "farm-1", "farm-2", "agent-1", "agent-2", "agent-3"),
        *("farmctl", "prometheus", "alertmanager", "grafana"),
    }


def test_each_service_waits_for_the_health_of_what_it_needs(services):
    needed = {name: each.get("depends_on", {}) for name, each in services.items()}
    assert needed["acl"].keys() == {"consul-1", "consul-2", "consul-3"}
    for name, each in ours(services).items():
        assert needed[name]["acl"]["condition"] == "service_completed_successfully"
        # Each argument without a space: some engines split them there.
        assert each["healthcheck"]["test"] == ["CMD", "farmd", "health", name.partition("-")[0]]
    for name, conditions in needed.items():
        for other, condition in conditions.items():
            assert condition["condition"] != "service_started", (name, other)
            assert "healthcheck" in services[other] or other == "acl"


def test_only_agents_are_root_and_only_volumes_can_be_written(services):
    for name, each in services.items():
        assert each["read_only"], name
        assert each["cap_drop"] == ["ALL"]
        assert each["security_opt"] == ["no-new-privileges:true"]
        # An agent runs pods as another user; that of farms is the Dockerfile's.
        root = each.get("user", "10001").startswith(("0", "root"))
        assert root == name.startswith("agent-") == ("cap_add" in each), name
        binds = [volume for volume in each.get("volumes", ()) if volume["type"] == "bind"]
        assert all(bind["read_only"] for bind in binds), name


def test_what_the_dashboards_need_is_mounted(services):
    found = {volume["target"] for volume in services["grafana"]["volumes"]}
    assert {
        "/etc/grafana/provisioning",
        "/var/lib/farmd-dashboards",
        "/usr/share/grafana/public/runbooks",
    } <= found


def test_ports_are_published_on_loopback_only(services):
    published = [port for service in services.values() for port in service.get("ports", [])]
    assert published
    assert {port["host_ip"] for port in published} == {"127.0.0.1"}


def test_every_image_has_a_fixed_version(services):
    for service in services.values():
        assert ":" in service["image"]
        assert not service["image"].endswith(":latest")


def test_our_processes_accept_what_they_are_told(services):
    names = set()
    for name, service in ours(services).items():
        config = load(None, service["environment"]).config
        assert config.store.address in {f"http://consul-{number}:8500" for number in (1, 2, 3)}
        assert config.web.advertise == name
        assert (config.web.read == "open") == name.startswith("farm")  # pods reach agents
        names.add(config.agent.node if name.startswith("agent") else config.farm.name)
    assert names == {"farm-1", "farm-2", "node-1", "node-2", "node-3"}


def test_no_agent_sees_the_token_of_another_node(services):
    for number in "123":
        volumes = {each["source"] for each in services[f"agent-{number}"]["volumes"]}
        assert volumes == {f"agent-{number}", f"tokens-node-{number}"}
