"""External secrets and configs of compose files: sealed secrets and config keys, on a real engine."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from farmd.agent.secrets import SecretConfig
from tests.age import files, identity, memory_folder
from tests.engine import IMAGE, PodmanEngine
from tests.integration.test_agent_secrets import told_on_disk
from tests.integration.test_cli_fleet import Person
from tests.projects import Sites

pytestmark = pytest.mark.xdist_group("containers")

FILE = """
name: shop
services:
  web:
    image: {image}
    user: "1000"
    command: sh -c 'echo began; sleep 1000'
    stop_grace_period: 0s
    secrets: [db]
    configs: [{{source: site, target: /etc/site.conf}}]
    logging: {{driver: syslog, options: {{syslog-address: "udp://127.0.0.1:{port}"}}}}
secrets: {{db: {{external: true, name: secrets/shop/db}}}}
configs: {{site: {{external: true, name: shop/site.conf}}}}
"""


LOOKS = (
    "service list -o wide",
    "service describe web -o json",
    "service history web -o json",
    "service explain web -o json",
    "service get web -o yaml",
    "service pods web -o json",
    "deployment list -o json",
    "audit list -o json",
    "events",
    "secret describe shop/db -o json",
    "doctor -o json",
)


def container(engine: PodmanEngine) -> str:
    return engine.run("ps", "--filter", "name=web", "--format", "{{.Names}}").splitlines()[0]


async def test_r40_external_secrets_are_sealed_ones_and_external_configs_are_config_keys(
    sites: Sites, engine: PodmanEngine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recipient = identity(tmp_path / "prod.key")
    person, project = Person(sites.farmctl.address, sites.farmctl.prefix), tmp_path / "compose.yaml"
    with memory_folder() as memory, socket.socket(type=socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(60.0)
        project.write_text(FILE.format(image=IMAGE, port=server.getsockname()[1]))
        config = SecretConfig(
            identities=(str(tmp_path / "prod.key"),), folder=str(memory), state_dir=tmp_path
        )
        await sites.rig.agent("n3", secrets=config)
        missing = await person.run("deploy", "-f", str(project), "-y")
        assert "services.web.configs.site: config/shop/site.conf does not exist" in missing.err
        await person.ok("config", "set", "shop/site.conf", "listen 80;")
        missing = await person.run("deploy", "-f", str(project), "-y")
        assert "secrets[0]: secrets/shop/db does not exist" in missing.err
        await person.ok("secret", "group", "create", "prod", "--recipient", recipient)
        await person.ok("secret", "set", "shop/db", "-", "--group", "prod", stdin="canary-one")
        meant = tmp_path / "meant.yaml"
        meant.write_text(project.read_text().replace("name: secrets/shop/db", "name: plain"))
        await person.ok("secret", "set", "plain", "-", "--group", "prod", stdin="x")
        warned = await person.run("deploy", "-f", str(meant), "--dry-run")
        assert "secret plain is a file of the machines (agent.secrets_dir); the sealed one has" in warned.err
        await sites.deployed(project)
        name = container(engine)
        assert "n3" in name, "only this node opens it"
        assert engine.run("exec", name, "cat", "/run/secrets/db", "/etc/site.conf") == "canary-onelisten 80;"
        assert b"began" in server.recv(2048)
        assert "canary-one" not in engine.run("inspect", name)

        await person.ok("secret", "set", "shop/db", "-", stdin="canary-two")
        plan = await person.ok("deploy", "-f", str(project), "--dry-run")
        assert "secrets: " in plan.out
        assert "shop/db@1" in plan.out
        assert "shop/db@2" in plan.out
        await sites.deployed(project)
        assert engine.run("exec", container(engine), "cat", "/run/secrets/db") == "canary-two"
        same = json.loads((await person.ok("deploy", "-f", str(project), "--dry-run", "-o", "json")).out)
        assert same["empty"], same

        for words in LOOKS:
            told = await person.run(*words.split())
            assert told.out, words
            assert "canary-" not in told.out + told.err, words
        records = await sites.rig.client.list(sites.rig.keys.prefix, mode="consistent")
        assert not [raw.key for raw in records.items if b"canary-" in raw.decoded()]
        assert "canary-" not in caplog.text
        assert told_on_disk(Path(engine.environment["HOME"]), "canary-two") == [], "the engine keeps no copy"
        assert told_on_disk(sites.rig.root, "canary-two") == []
        await person.ok("service", "delete", "web", "-y", "--wait")
        assert files(memory) == []
