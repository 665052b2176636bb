"""Apps with a real farm, real agents and real processes, as a person applies them with farmctl."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from tests.agents import Agents, agents_on
from tests.farmctl import ROOT, Farmctl, Result
from tests.fleet import RunningFarm, start_farm

EXAMPLE = ROOT / "examples" / "apps" / "hello"
KINDS = ("rcs", "rollouts", "daemonsets", "nodes", "jobs", "apps")
WITHIN = "150"
"""Seconds, fewer than ``Farmctl`` waits for a command: one that waits in vain says for what."""


class Office:
    """Somebody at a prompt with a bundle of files; a farm and agents go on while a command runs."""

    def __init__(self, agents: Agents, address: str, folder: Path) -> None:
        self.agents = agents
        self.farmctl = Farmctl(address, agents.keys.prefix)
        self.folder = folder / "hello"
        shutil.copytree(EXAMPLE, self.folder)

    def edit(self, name: str, before: str, after: str) -> None:
        path = self.folder / name
        text = path.read_text()
        assert before in text
        path.write_text(text.replace(before, after))

    async def run(self, *words: str) -> Result:
        return await asyncio.to_thread(self.farmctl, *words)

    async def apply(self, *words: str) -> Result:
        return await self.run("apply", "-f", str(self.folder), "-y", "--timeout", WITHIN, *words)

    async def rc(self, name: str) -> dict[str, object]:
        found: dict[str, object] = (await self.run("rc", "get", name, "-o", "json")).json
        return found


@pytest.fixture
async def office(consul_dev: str, tmp_path: Path) -> AsyncIterator[Office]:
    async with agents_on(consul_dev, tmp_path) as agents:
        farm: RunningFarm | None = None
        try:
            farm = await start_farm(agents.client, "farm-1", keys=agents.keys, kinds=KINDS)
            await asyncio.gather(*(agents.agent(node) for node in ("n1", "n2")))
            yield Office(agents, consul_dev, tmp_path)
        finally:
            if farm is not None:
                await farm.close()


async def test_the_bundle_of_the_examples_is_applied_rolled_pruned_and_rolled_back(office: Office) -> None:
    first = await office.apply()
    assert first.code == 0, first
    assert first.err.splitlines()[:3] == [
        "app/hello: revision 1, 2 objects in 2 steps",
        "1  + rc/hello-store  replicas 1",
        "2  + rc/hello-web    replicas 2",
    ]
    assert first.out.startswith("app/hello reached revision 1 in ")
    assert (await office.apply()).out == "app/hello unchanged\n"
    assert (await office.run("diff", "-f", str(office.folder))).code == 0

    office.edit("web.yaml", "args: [v1]", "args: [v2]")
    due = await office.run("diff", "-f", str(office.folder))
    assert due.code == 3
    assert "by a rollout" in due.out
    second = await office.apply()
    assert second.code == 0, second
    assert (await office.rc("hello-web"))["part_of"] == "apps/hello"
    described = await office.run("app", "describe", "hello")
    assert [line.split()[:2] for line in described.out.splitlines()[-2:]] == [
        ["rc/hello-store", "ready"],
        ["rc/hello-web", "ready"],
    ]

    (office.folder / "store.yaml").unlink()
    third = await office.apply()
    assert "   not in the files: rc/hello-store" in third.err
    assert (await office.rc("hello-store"))["part_of"] == "apps/hello"
    fourth = await office.apply("--prune")
    assert fourth.code == 0, fourth
    assert (await office.run("rc", "get", "hello-store")).code == 4

    back = await office.run("app", "rollback", "hello", "--to", "2", "-y", "--timeout", WITHIN)
    assert back.code == 0, back
    assert (await office.rc("hello-store"))["replicas_desired"] == 1

    gone = await office.run("app", "delete", "hello", "-y", "--timeout", WITHIN)
    assert gone.code == 0, gone
    assert (await office.run("app", "get", "hello")).code == 4
    assert (await office.run("rc", "get", "hello-web")).code == 4


async def test_people_change_what_the_files_leave_to_them_and_nothing_else(office: Office) -> None:
    assert (await office.apply()).code == 0
    refused = await office.run("rc", "set-replicas", "hello-store", "2", "-y")
    assert refused.code == 5
    assert "app" in refused.err
    scaled = await office.run("rc", "set-replicas", "hello-web", "1", "-y", "--wait")
    assert scaled.code == 0, scaled
    assert (await office.apply()).out == "app/hello unchanged\n"
    assert (await office.rc("hello-web"))["replicas_desired"] == 1


async def test_a_revision_that_fails_goes_back_and_exits_with_9(office: Office) -> None:
    assert (await office.apply()).code == 0
    office.edit("web.yaml", "command: [sh, -c", "command: [no-such-program, -c")
    office.edit("web.yaml", "wave: 1", "wave: 1\nrollout: {progress_deadline: 10s}")
    failed = await office.apply()
    assert failed.code == 9, failed
    assert "revision 2 failed: rc/hello-web:" in failed.err
    assert "revision 1 is back" in failed.err
    again = await office.apply("--dry-run")
    assert again.code == 5
    assert "rc/hello-web: hello-web: version" in again.err
    assert "was reverted" in again.err


async def test_a_rollback_of_an_app_ends_the_rollout_that_is_bringing_a_version(office: Office) -> None:
    assert (await office.apply()).code == 0
    first = (await office.rc("hello-web"))["manifest"]
    office.edit("web.yaml", "args: [v1]", "args: [v2]")
    office.edit("web.yaml", "wave: 1", "wave: 1\nrollout: {stages: [{to: 1, approve: true}, '100%']}")
    assert (await office.apply("--no-wait")).code == 0
    status = ("rollout", "status", "hello-web")
    async with asyncio.timeout(60):
        while "farmctl rollout approve" not in (await office.run(*status)).out:
            pass  # each look is a process
    back = ("app", "rollback", "hello", "-y", "--timeout", WITHIN)
    rehearsed = await office.run(*back, "--dry-run")
    assert "--supersede puts this version in place of the one that is coming" in rehearsed.out
    done = await office.run(*back, "--supersede")
    assert done.code == 0, done
    assert (await office.rc("hello-web"))["manifest"] == first
    (ended,) = (await office.run("rollout", "history", "hello-web", "-o", "json")).json["items"]
    assert ended["outcome"] == "reverted"


async def test_a_service_that_names_pods_is_a_document_and_a_rollout_of_them_is_no_difference(
    office: Office,
) -> None:
    web = office.folder / "web.yaml"
    web.write_text(web.read_text().replace("  command:", "  ports: {http: {}}\n  command:", 1))
    file = office.folder / "name.yaml"
    file.write_text(
        "apiVersion: farmd/v1\nkind: service\nname: front\nwave: 1\n"
        "pods: [rc/hello-web]\nport: http\ncatalog: {tags: [edge]}\n"
    )
    first = await office.apply()
    assert first.code == 0, first
    front = (await office.run("service", "get", "front", "-o", "json")).json
    assert (front["serving"], front["port"], front["part_of"]) == (["rc/hello-web"], "http", "apps/hello")
    written = await office.run("get", "service", "front", "-o", "yaml")
    assert yaml.safe_load(written.out) == {
        "apiVersion": "farmd/v1",
        "kind": "service",
        "name": "front",
        "pods": ["rc/hello-web"],
        "port": "http",
        "catalog": {"tags": ["edge"]},
    }
    assert (await office.apply()).out == "app/hello unchanged\n"

    office.edit("web.yaml", "args: [v1]", "args: [v2]")
    assert (await office.apply()).code == 0
    assert (await office.apply()).out == "app/hello unchanged\n"

    refused = await office.run("service", "catalog", "front", "--off")
    assert (refused.code, "is managed by app hello" in refused.err) == (5, True)
    file.write_text(file.read_text().replace("[edge]", "[inside]"))
    assert (await office.apply()).code == 0
    assert (await office.run("service", "get", "front", "-o", "json")).json["catalog"]["tags"] == ["inside"]

    file.unlink()
    assert (await office.apply("--prune")).code == 0
    assert (await office.run("service", "get", "front")).code == 4
    assert (await office.run("rc", "get", "hello-web")).code == 0
