"""R32 on a real Consul: a farm and agents that enforce signatures; each kind of work goes its way."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from farmd.agent.model import SigningConfig
from farmd.commands.mutation import Call, commit
from farmd.replication.commands import RC
from farmd.runtime.clock import SystemIds
from farmd.signing import keys as signing
from farmd.work import following
from store.reality import Reality
from tests.agents import Agents, agents_on, alive, shell
from tests.fleet import CLOCK, eventually, farm_on
from tests.integration.test_cli_fleet import Person

OWNERS = "rcs/*,jobs/*,daemonsets/*"


@dataclass
class Fleet:
    """Two nodes that enforce signatures, a farm, and somebody with farmctl and a key."""

    rig: Agents
    person: Person
    key: str

    def rc(self, seconds: int, **fields: Any) -> str:
        pod = {"id": "web", "command": list(shell(f"exec sleep {seconds}").command)}
        return yaml.safe_dump({"name": "web", "replicas": 1, "min_healthy_time": 0, "pod": pod} | fields)

    async def running(self) -> Reality:
        """The one pod that runs."""
        found = [each for node in ("n1", "n2") for each in (await self.rig.realities(node)).values()]
        [pod] = [each for each in found if each.pid]
        return replace(pod, reason="", refused=0)

    async def signed(self, *words: str, stdin: str) -> None:
        await self.person.ok(*words, "-f", "-", "--wait", "--sign", self.key, "--timeout", "150", stdin=stdin)


@pytest.fixture
async def fleet(consul_dev: str, tmp_path: Path) -> AsyncIterator[Fleet]:
    key, trust = tmp_path / "alice.key", tmp_path / "trust"
    trust.write_text(f"alice {signing.generate(key)} {OWNERS} *\n")
    async with agents_on(consul_dev, tmp_path) as rig:
        rig.signing = SigningConfig(policy="enforce", trust=str(trust))
        for node in ("n1", "n2"):
            await rig.agent(node)
        kinds = ("rcs", "rollouts", "daemonsets", "jobs", "apps")
        async with farm_on(rig.client, keys=rig.keys, kinds=kinds):
            yield Fleet(rig, Person(consul_dev, rig.keys.prefix), str(key))


async def test_a_controller_its_rollout_a_daemon_set_a_job_and_an_app_run_by_a_persons_word(
    fleet: Fleet,
) -> None:
    await fleet.signed("rc", "create", stdin=fleet.rc(1000))
    await fleet.signed("rc", "update", stdin=fleet.rc(1001))
    everywhere = {"id": "up", "command": ["/bin/sleep", "1000"]}
    await fleet.signed(
        "daemonset", "create", stdin=yaml.safe_dump({"name": "up", "min_healthy_time": 0, "pod": everywhere})
    )
    job = {"name": "sum", "types": [{"name": "w", "replicas": 2, "pod": {"id": "s", "command": ["true"]}}]}
    await fleet.signed("job", "run", stdin=yaml.safe_dump(job | {"gang": True}))
    pod = {"id": "db", "command": ["/bin/sleep", "1000"]}
    db = {
        "apiVersion": "farmd/v1",
        "kind": "rc",
        "name": "db",
        "replicas": 1,
        "min_healthy_time": 0,
        "pod": pod,
    }
    await fleet.signed("apply", "--app", "shop", "-y", stdin=yaml.safe_dump(db))
    refused = await fleet.person.run("rc", "update", "-f", "-", "--now", "-y", stdin=fleet.rc(1002))
    assert refused.code == 5


async def test_an_update_past_farmctl_stays_out_and_its_owner_says_why(fleet: Fleet) -> None:
    """As whoever has the token of a farm or of an operator, and no key, would change it."""
    await fleet.signed("rc", "create", stdin=fleet.rc(1000))
    before = await fleet.running()
    rig = fleet.rig
    call = Call(rig.client, rig.keys, CLOCK, SystemIds(), "user/mallory@host")
    [spec] = RC.file.parse_all((fleet.rc(666), "web.yaml"))
    await commit(call, await RC.update(call, spec, now=True))
    why = "not signed: nobody signed manifest"

    async def told() -> bool:
        (row,) = (await fleet.person.ok("rc", "list", "-o", "json")).json["items"]
        return why in (row["status"] or {}).get("reason", "")

    await eventually(told, what="the reason of the controller")
    assert why in (await fleet.person.ok("pod", "list")).out
    (told_of,) = (await fleet.person.ok("audit", "list", "--action", "rc.unsigned", "-o", "json")).json[
        "items"
    ]
    assert why in told_of["reason"]
    assert await fleet.running() == before
    assert alive(before)


async def test_r41_a_followed_value_waits_for_the_signature_of_its_manifest(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LOOK", "QUIET", "PAUSE", "RETRY"):
        monkeypatch.setattr(following, f"{name}_SECONDS", 0.2)
    await fleet.person.ok("config", "set", "level", "info")
    file = yaml.safe_load(fleet.rc(1000, follow=True))
    file["pod"]["env"] = {"LEVEL": {"kv": "level"}}
    await fleet.signed("rc", "create", stdin=yaml.safe_dump(file))
    before = await fleet.running()
    await fleet.person.ok("config", "set", "level", "debug")

    async def blocked() -> str:
        said = (await fleet.person.ok("rc", "describe", "web", "-o", "json")).json["status"]
        found = re.search(r"--digest ([0-9a-f]{64})", said["reason"])
        return found[1] if found else ""

    digest = await eventually(blocked, what="the digest to sign")
    assert alive(before)
    other = await fleet.person.run("manifest", "sign", "rc/web", "--digest", "0" * 64, "--key", fleet.key)
    assert other.code != 0
    await fleet.person.ok("manifest", "sign", "rc/web", "--digest", digest, "--key", fleet.key)

    async def came() -> bool:
        found = [each for node in ("n1", "n2") for each in (await fleet.rig.realities(node)).values()]
        return [each.manifest for each in found if each.pid] == [digest]

    await eventually(came, what="the pod with the new value")
