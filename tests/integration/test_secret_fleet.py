"""Secrets on a real fleet: a pod goes where its secret can be opened, and each version has its value."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from farmd.agent.secrets import SecretConfig
from tests.age import identity, memory_folder
from tests.agents import Agents, agents_on
from tests.fleet import eventually, farm_on
from tests.integration.test_cli_fleet import Person


@pytest.fixture
async def fleet(consul_dev: str, tmp_path: Path) -> AsyncIterator[tuple[Agents, Person]]:
    """A farm, a node with an identity and one without, and a secret of that identity's group."""
    recipient = identity(tmp_path / "prod.key")
    with memory_folder() as memory:
        async with agents_on(consul_dev, tmp_path) as rig:
            for node, keys in (("n1", (str(tmp_path / "prod.key"),)), ("n2", ())):
                state = rig.root / node
                config = SecretConfig(identities=keys, folder=str(memory), state_dir=state)
                await rig.agent(node, secrets=config)
            person = Person(consul_dev, rig.keys.prefix)
            kinds = ("rcs", "rollouts", "daemonsets", "jobs", "apps")
            async with farm_on(rig.client, keys=rig.keys, kinds=kinds):
                await person.ok("secret", "group", "create", "prod", "--recipient", recipient)
                await person.ok("secret", "set", "shop/db", "-", "--group", "prod", stdin="one")
                yield rig, person


def web(replicas: int = 1, secret: str = "shop/db") -> str:
    pod = {
        "id": "web",
        "command": ["/bin/sleep", "1000"],
        "stop": {"grace": 1},
        "env": {"PASSWORD": {"secret": secret}},
        "secrets": [{"secret": secret}],
    }
    return yaml.safe_dump({"name": "web", "replicas": replicas, "min_healthy_time": 0, "pod": pod})


async def password(rig: Agents) -> tuple[str, str]:
    """What the one pod has in its variable and in its file; empty: none runs."""
    for reality in (await rig.realities("n1")).values():
        if reality.pid and reality.phase == "running":
            words = Path(f"/proc/{reality.pid}/environ").read_bytes().split(b"\0")
            found = dict(word.decode().split("=", 1) for word in words if b"=" in word)
            return found["PASSWORD"], Path(found["FARMD_SECRETS"], "db").read_text()
    return "", ""


async def test_r40_a_pod_runs_only_where_its_secret_is_opened_and_a_new_version_comes_with_an_update(
    fleet: tuple[Agents, Person],
) -> None:
    rig, person = fleet
    wait = ("--wait", "--timeout", "150s")
    await person.ok("rc", "create", "-f", "-", *wait, stdin=web())
    assert await password(rig) == ("one", "one")
    assert await rig.realities("n2") == {}
    explained = (await person.ok("rc", "explain", "web")).out
    assert "the node's agent holds no identity of secret group 'prod'" in explained
    view = (await person.ok("secret", "describe", "shop/db", "-o", "json")).json
    assert (view["nodes"], view["users"]) == (["n1"], [{"object": "rc/web", "version": 1, "stale": 0}])

    await person.ok("secret", "set", "shop/db", "-", stdin="two")
    await person.ok("rc", "update", "-f", "-", *wait, stdin=web())
    assert await password(rig) == ("two", "two")
    await person.ok("rc", "update", "-f", "-", *wait, stdin=web(secret="shop/db@1"))
    assert await password(rig) == ("one", "one")

    await person.ok("rc", "scale", "web", "2", "--no-wait")

    async def told() -> bool:
        (row,) = (await person.ok("rc", "list", "-o", "json")).json["items"]
        return "without the identity of a secret group" in (row["status"] or {}).get("reason", "")

    await eventually(told, what="the reason why the second pod has no place")


async def test_apps_and_jobs_have_secrets_and_an_applied_file_that_is_equal_changes_nothing(
    fleet: tuple[Agents, Person],
) -> None:
    rig, person = fleet
    bundle = yaml.safe_dump({"apiVersion": "farmd/v1", "kind": "rc", **yaml.safe_load(web())})
    words: tuple[Any, ...] = ("-f", "-", "--app", "shop")
    await person.ok("apply", *words, "-y", "--wait", "--timeout", "150s", stdin=bundle)
    assert await password(rig) == ("one", "one")
    same = await person.run("diff", *words, "-o", "json", stdin=bundle)
    assert same.json["settings"]["needs"] == ["secrets.1"]
    assert "secret: shop/db" in (await person.ok("app", "get", "shop")).out
    script = 'test "$PASSWORD" = one && test $(cat $FARMD_SECRETS/db) = one'
    pod = {
        "id": "w",
        "command": ["/bin/sh", "-c", script],
        "env": {"PASSWORD": {"secret": "shop/db"}},
        "secrets": [{"secret": "shop/db"}],
    }
    job = yaml.safe_dump({"name": "sum", "types": [{"name": "w", "replicas": 1, "pod": pod}]})
    await person.ok("job", "run", "-f", "-", "--wait", "--timeout", "150s", stdin=job)
