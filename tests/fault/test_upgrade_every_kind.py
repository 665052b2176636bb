"""A version that had every kind of work runs beside this one, and each kind is in the middle of something.

Farms and agents are upgraded one by one, one of each goes back to the earlier version, and is upgraded again.
People use both versions of farmctl meanwhile. Services run in containers of agents that the test plays.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from store.keys import is_sentinel
from tests import earlier
from tests.fault.invariants import Dump
from tests.fault.upgrade_judge import left_alone, nodes_of, nothing_restarted
from tests.fault.upgrade_rig import START, TELL, Fleet, Version, fleet_on
from tests.fault.upgrade_scene import MAIN, POLICY, asks, churn, documents, played, rc, rolled_out, states
from tests.obedient import Obedient

NODES = ("n1", "n2", "n3")
PLAYED = ("m1", "m2")
KINDS = {"rcs", "daemonsets", "nodes", "rollouts", "deployments", "jobs", "apps", "housekeeping"}
UNTIL_TOLD = TELL + 'while [ ! -e "$MAY_END" ]; do sleep 0.1; done'


@pytest.fixture
async def fleet(consul_dev: str, tmp_path: Path) -> AsyncIterator[Fleet]:
    async with fleet_on(consul_dev, tmp_path, earlier=earlier.WITH_EVERY_KIND) as made:
        yield made


class Scene:
    """The fleet with something of each kind; ``began`` is the index of the store before the upgrade."""

    def __init__(self, fleet: Fleet, agents: Obedient) -> None:
        self.fleet, self.agents = fleet, agents
        self.began = 0

    def controller(self, name: str, version: int = 1, **fields: Any) -> Any:
        """A controller on all nodes, whose pods are healthy once there is a file ``<name>-<version>``."""
        pod = self.fleet.pod(name, healthy=f"{name}-{version}")
        pod["args"] = [f"version-{version}"]
        return rc(self.fleet, name, len(NODES), pod=pod, min_healthy_time=0, **fields)

    def bundle(self, version: int) -> str:
        return documents({"apiVersion": "farmd/v1", "kind": "rc", **self.controller("bundled", version)})

    def shop(self, digit: int) -> Path:
        """A file of services, for ``deploy``."""
        image = f'container: {{image: "web@sha256:{str(digit) * 64}"}}'
        path = self.fleet.file(f"shop-{digit}.yaml")
        path.write_text(f"kind: service\nname: web\nreplicas: 2\n{image}\n")
        return path

    def healthy(self, name: str, version: int) -> None:
        self.fleet.file(f"{name}-{version}").touch()

    # -- before the upgrade -------------------------------------------------------------------------
    async def begin(self) -> None:
        """All that there is, at rest."""
        fleet, old = self.fleet, self.fleet.old
        await asyncio.gather(fleet.start(old, "run", "f2"), fleet.start(old, "agent", *NODES))
        for node in NODES:
            await fleet.state(node, labels={"role": "main"})
        for name in ("front", "steady", "bundled"):
            self.healthy(name, 1)
        made = [self.controller("front"), self.controller("steady"), churn(fleet, 0, 2)]
        logs = {"name": "logs", "node_selector": MAIN, "min_healthy_time": 0, "pod": fleet.pod("logs")}
        await asyncio.gather(
            old.ctl("rc", "create", "-f", "-", stdin=documents(*made)),
            old.ctl("daemonset", "create", "-f", "-", stdin=documents(logs)),
            old.ctl("deploy", "-f", str(self.shop(1)), "-y", "--no-wait"),
            old.ctl("apply", "-f", "-", "--app", "shop", "-y", "--no-wait", stdin=self.bundle(1)),
        )
        await fleet.until(self.at_rest, "a service and an app that are at rest")
        await states(
            fleet, old, front="converged", steady="converged", bundled="converged", churn="converged"
        )
        await states(fleet, old, "daemonset", logs="converged")

    async def half_done(self) -> None:
        """A rollout that asks, a job that runs, a deployment and a revision of an app under way."""
        fleet, ctl = self.fleet, self.fleet.old.ctl
        self.healthy("front", 2)
        members = {
            "name": "worker",
            "replicas": 2,
            "pod": fleet.pod("crunch", UNTIL_TOLD),
            "node_selector": MAIN,
        }
        job = {"name": "crunch", "types": [members], "clean": "all"}
        self.agents.deaf |= set(PLAYED)
        wanted = self.controller("front", 2, rollout=POLICY)
        await asyncio.gather(
            ctl("rc", "update", "-f", "-", "-y", "--no-wait", stdin=documents(wanted)),
            ctl("job", "run", "-f", "-", "--no-wait", stdin=documents(job)),
            ctl("deploy", "-f", str(self.shop(2)), "-y", "--no-wait"),
            ctl("apply", "-f", "-", "--app", "shop", "-y", "--no-wait", stdin=self.bundle(2)),
        )
        await fleet.until(lambda: asks(fleet, "front"), "a question for approval")
        await fleet.until(self.job_runs, "a job that runs")
        self.began = await fleet.index()

    # -- what is asked -----------------------------------------------------------------------------
    async def row(self, noun: str, name: str) -> dict[str, Any]:
        return (await self.fleet.new.rows(noun)).get(name) or {}

    async def at_rest(self, revision: int = 1) -> bool:
        """Whether no deployment is under way, and the app has reached what people applied."""
        deployments = (await self.fleet.new.ctl("deployment", "list", "-o", "json")).json["items"]
        status = (await self.row("app", "shop")).get("status") or {}
        return (status.get("reached"), deployments) == (revision, [])

    async def job_runs(self) -> bool:
        return (await self.row("job", "crunch")).get("state") == "running"

    async def owned(self) -> bool:
        """Whether farms that are there own all that there is of each kind."""
        fleet, dump = self.fleet, await self.fleet.dump()
        farms = {name for name in fleet.running if name.startswith("f")}
        for kind in KINDS:
            tree, held = fleet.keys.tree(kind), await fleet.holders(kind)
            found = [key for key in dump.entries if key.startswith(tree) and not is_sentinel(key)]
            items = {fleet.keys.last_part(key) for key in found}
            if not (items <= held.keys() and set(held.values()) <= farms):
                return False
        return True

    async def over(self) -> bool:
        """Whether all that was under way has ended, as it should."""
        if not await rolled_out(self.fleet, "front"):
            return False
        job = await self.row("job", "crunch")
        return job["state"] == "succeeded" and await self.at_rest(revision=2)

    # -- the upgrade -------------------------------------------------------------------------------
    async def step(self, *replaced: tuple[Version, str, str, signal.Signals]) -> None:
        """Replace processes; then each kind has an owner, and every invariant holds."""
        await asyncio.gather(*(self.fleet.replace(*each) for each in replaced))
        await self.fleet.until(self.owned, "farms that own all kinds")
        told = ", ".join(f"{name} {version.name}" for version, _, name, _ in replaced)
        await self.fleet.well(f"after {told}")

    async def people(self, stop: asyncio.Event) -> None:
        """Edit a controller and read everything with both versions until told to stop."""
        for generation in count(1):
            version = self.fleet.old if generation % 2 else self.fleet.new
            edit = documents(churn(self.fleet, generation, 1 + generation % 2))
            await version.ctl("rc", "update", "-f", "-", "--now", "-y", stdin=edit)
            nouns = ("rc", "rollout", "job", "app", "deployment", "service", "node")
            await asyncio.gather(*(version.ctl(noun, "list") for noun in nouns))
            if stop.is_set():
                return


@pytest.fixture
async def scene(fleet: Fleet) -> AsyncIterator[Scene]:
    async with played(fleet, PLAYED) as agents:
        agents.deaf = set(NODES)  # they are played by nobody
        yield Scene(fleet, agents)


def of_processes(lines: list[str]) -> list[str]:
    """Those lines that are not about played agents, whose pods are no processes."""
    return [line for line in lines if not line.startswith(PLAYED)]


def images(dump: Dump) -> set[str]:
    """The manifests of services' pods."""
    parts = {each.id for each in dump.owners.values() if each.part_of and each.name.startswith("svc-")}
    return {pod.manifest for (owner, _, _), (_, pod) in dump.pods.items() if owner in parts}


@pytest.mark.slow
async def test_each_kind_of_work_goes_on_while_versions_change_to_and_fro(scene: Scene) -> None:
    fleet, old, new = scene.fleet, scene.fleet.old, scene.fleet.new
    await scene.begin()
    before, enough = images(await fleet.dump()), asyncio.Event()
    await scene.half_done()
    term, kill = signal.SIGTERM, signal.SIGKILL
    async with asyncio.TaskGroup() as beside:
        beside.create_task(scene.people(enough))
        await scene.step((new, "run", "f1", term), (new, "agent", "n1", kill))
        await new.ctl("rollout", "approve", "front")
        await scene.step((old, "run", "f1", kill), (new, "run", "f2", term), (old, "agent", "n1", term))
        scene.agents.deaf -= set(PLAYED)
        scene.healthy("bundled", 2)
        await scene.step((new, "run", "f1", term), (old, "run", "f2", term), (new, "agent", "n2", kill))
        fleet.file("crunch-may-end").touch()
        await scene.step((new, "run", "f2", kill), (new, "agent", "n1", term), (new, "agent", "n3", term))
        enough.set()
    await fleet.until(scene.over, "the end of all that was under way")
    names = ("front", "steady", "bundled", "churn")
    for version in (new, old):
        await states(fleet, version, **dict.fromkeys(names, "converged"))
    dump, starts = await fleet.well("in the end"), fleet.starts()
    rows = await new.rows("rc")
    for name in names[:3]:
        assert nodes_of(dump, rows[name]["id"]) == set(NODES)
    assert images(dump)
    assert not images(dump) & before
    assert of_processes(nothing_restarted(starts, dump)) == []
    assert left_alone(dump, rows["steady"]["id"], scene.began) == []
    for version in (new, old):
        assert (await version.ctl("doctor", "-o", "json")).json["items"] == []


async def test_r11_an_older_farm_never_runs_again_what_ended_well(fleet: Fleet) -> None:
    old, new, place = fleet.old, fleet.new, ("n1", "migrate")
    await fleet.start(old, "run", "f1")
    await fleet.start(old, "agent", "n1", "n2")
    await fleet.state("n1", labels={"role": "main"})
    once = fleet.pod("migrate", TELL, restart={"policy": "on-failure"})
    await old.ctl("rc", "create", "-f", "-", stdin=documents(rc(fleet, "migrate", pod=once)))

    async def migrated() -> bool:
        return bool(fleet.file("starts").exists() and fleet.starts().get(place))

    await fleet.until(migrated, "a command that ran")
    (ident,) = [row["id"] for row in (await new.rows("rc")).values()]

    async def marked() -> bool:
        record = await fleet.read(fleet.keys.record("rcs", ident)) or {}
        return "one-shot.1" in record.get("needs", [])

    await fleet.replace(new, "run", "f1", signal.SIGTERM)
    await fleet.until(marked, "a record that older farms leave alone")
    await fleet.replace(old, "run", "f1", signal.SIGTERM)

    await fleet.state("n2", labels={"role": "main"})
    await new.ctl("node", "drain", "n1", "-y")
    await old.ctl("rc", "create", "-f", "-", stdin=documents(rc(fleet, "later")))
    await states(fleet, old, later="converged")
    assert {node for node, instance in fleet.starts() if instance == "migrate"} == {"n1"}
    assert ident not in await fleet.holders("rcs")


async def test_r11_what_an_older_farm_and_an_older_agent_do_not_know_waits_for_younger_ones(
    fleet: Fleet,
) -> None:
    old, new = fleet.old, fleet.new

    def pod(name: str, script: str = START) -> dict[str, Any]:
        """One that first runs a command, which an older agent would leave out."""
        before = f'echo "$FARMD_NODE" >> "{fleet.file("before")}-{name}"'
        return fleet.pod(name, script, init=[{"command": ["/bin/sh", "-c", before]}])

    await fleet.start(old, "run", "f1")
    await fleet.start(old, "agent", "n1")
    owned = {"replicas": 1, "min_healthy_time": 0}
    bundled = {"apiVersion": "farmd/v1", "kind": "rc", "name": "bundled", "pod": pod("bundled"), **owned}
    for words, document in (
        (("rc", "create"), {"name": "kept", "pod": pod("kept"), **owned}),
        (("daemonset", "create"), {"name": "each", "min_healthy_time": 0, "pod": pod("each")}),
        (("job", "run"), {"name": "sum", "types": [{"name": "w", "replicas": 1, "pod": pod("sum", TELL)}]}),
        (("apply", "--app", "shop", "-y"), bundled),
    ):
        await new.ctl(*words, "-f", "-", "--no-wait", stdin=documents(document))
    await old.ctl(
        "rc", "create", "-f", "-", stdin=documents({"name": "later", "pod": fleet.pod("later"), **owned})
    )
    await states(fleet, old, later="converged")
    assert set(fleet.starts()) == {("n1", "later")}
    assert not await fleet.holders("apps")

    await fleet.start(new, "run", "f2")
    await fleet.start(new, "agent", "n2")

    async def came() -> bool:
        return len(fleet.starts()) == 5

    await fleet.until(came, "the pods that wait for a younger agent")
    assert {node for node, instance in fleet.starts() if instance != "later"} == {"n2"}
    for name in ("kept", "each", "sum", "bundled"):
        found = list(fleet.folder.glob(f"before-{name}"))
        assert [each.read_text() for each in found] == ["n2\n"], name
