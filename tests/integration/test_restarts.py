"""R28 on a real Consul with real agents and processes: what farmctl's restarts do to the pods."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from store.manifests import Manifest
from tests.agents import Agents, agents_on, shell
from tests.fleet import farm_on
from tests.integration.test_cli_fleet import Person

NODES = ("n1", "n2", "n3")


@dataclass
class Fleet:
    """Three nodes with real agents, a farm, and somebody with farmctl."""

    rig: Agents
    person: Person
    journal: Path

    def pod(self) -> Manifest:
        """A pod that notes each of its starts and ends."""
        script = (
            f"exec >> {self.journal}; trap 'echo down $FARMD_NODE; exit 0' TERM; echo up $FARMD_NODE;"
            " while :; do sleep 0.05; done"
        )
        return shell(script)

    def file(self, **fields: Any) -> str:
        pod = {"id": "web", "command": list(self.pod().command)}
        return yaml.safe_dump({"name": "web", "min_healthy_time": 0.5, "pod": pod} | fields)

    def told(self) -> list[list[str]]:
        """What the pods noted since the last call: ``["up", "n1"]``, in this order."""
        lines = [line.split() for line in self.journal.read_text().splitlines()]
        self.journal.write_text("")
        return lines

    async def pids(self) -> dict[str, int]:
        return {node: (await self.rig.realities(node))["web"].pid for node in NODES}


@pytest.fixture
async def fleet(consul_dev: str, tmp_path: Path) -> AsyncIterator[Fleet]:
    async with agents_on(consul_dev, tmp_path) as rig:
        for node in NODES:
            await rig.agent(node)
        person = Person(consul_dev, rig.keys.prefix)
        async with farm_on(rig.client, keys=rig.keys, kinds=("rcs", "daemonsets")):
            yield Fleet(rig, person, tmp_path / "journal")


def turns(told: list[list[str]]) -> list[str]:
    """The pods that were restarted, one after the other: each is up again before the next goes down."""
    pairs = list(zip(told[::2], told[1::2], strict=True))
    assert [(down[0], up[0]) for down, up in pairs] == [("down", "up")] * len(pairs)
    assert [down[1] for down, _ in pairs] == [up[1] for _, up in pairs]
    return [node for (_, node), _ in pairs]


async def actions(fleet: Fleet) -> list[tuple[str, list[str]]]:
    found = await fleet.rig.audits()
    return [(audit.action, audit.relabelled) for audit in found if audit.action.endswith("restart")]


@pytest.mark.slow
async def test_r28_an_owners_restart_takes_each_pod_once_and_keeps_the_floor(fleet: Fleet) -> None:
    person = fleet.person
    await person.ok("rc", "create", "-f", "-", "--wait", stdin=fleet.file(replicas=3))
    before = await fleet.pids()
    intent = fleet.rig.keys.intent("n2", "web")
    newer = json.loads((await fleet.rig.client.read(intent)).value) | {"x-more": 1}  # type: ignore[union-attr]
    await fleet.rig.client.put(intent, json.dumps(newer).encode())
    assert len(fleet.told()) == 3

    one = await person.ok("pod", "restart", "n2/web", "--wait", "--reason", "leak")
    assert one.out == "pod/n2/web restarting\n"
    after = await fleet.pids()
    assert {node for node in NODES if after[node] != before[node]} == {"n2"}
    assert turns(fleet.told()) == ["n2"]

    dry = await person.ok("rc", "restart", "web", "--dry-run")
    assert "rc/web: restart: restart 0 -> 2" in dry.out
    assert "restarts its pods (3), at most max_unavailable at a time" in dry.out
    every = await person.ok("rc", "restart", "web", "--wait", "--reason", "new certificate")
    assert "rc/web restarting" in every.out
    assert sorted(turns(fleet.told())) == list(NODES)
    rows = (await person.ok("pod", "list", "-o", "json")).json["items"]
    assert [(row["restart"], row["restarted"], row["restarts"], row["healthy"]) for row in rows] == [
        (2, 2, 0, True)
    ] * 3
    assert json.loads((await fleet.rig.client.read(intent)).value)["x-more"] == 1  # type: ignore[union-attr]
    done = await actions(fleet)
    assert done[:2] == [("pod.restart", ["n2/web"]), ("rc.restart", [])]
    assert sorted(done[2:]) == [("pods.restart", [f"{node}/web"]) for node in NODES]
    reasons = {audit.reason for audit in await fleet.rig.audits() if audit.action == "pods.restart"}
    assert reasons == {"a restart is requested"}


@pytest.mark.slow
async def test_r28_a_daemon_set_restarts_its_pods_at_its_pace(fleet: Fleet) -> None:
    person = fleet.person
    await person.ok("daemonset", "create", "-f", "-", "--wait", stdin=fleet.file())
    assert len(fleet.told()) == 3
    await person.ok("ds", "restart", "web", "--wait")
    assert sorted(turns(fleet.told())) == list(NODES)


@pytest.mark.slow
async def test_r28_new_pods_and_enabled_owners_begin_with_the_owners_counter(fleet: Fleet) -> None:
    person = fleet.person
    await person.ok("rc", "create", "-f", "-", "--wait", stdin=fleet.file(replicas=2))
    await person.ok("rc", "disable", "web")
    told = await person.ok("rc", "restart", "web")
    assert "no pod is restarted before the controller is enabled" in told.err
    await person.ok("rc", "set-replicas", "web", "3")
    assert [line[0] for line in fleet.told()] == ["up", "up"]
    await person.ok("rc", "enable", "web", "--wait")
    told_all = fleet.told()
    assert sorted(line[0] for line in told_all) == ["down", "down", "up", "up", "up"]
    assert {intent.restart for intent in (await fleet.rig.intents()).values()} == {1}
