"""The last version that knew no deployments runs beside this one while services are deployed.

Its farms own neither deployments, nor what a deployment has taken, nor what stays a part of a service (R11):
they neither heal nor change it, also while no farm that knows deployments is there.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from store.deployments import Deployment
from store.services import Service
from tests import earlier
from tests.fault.invariants import Dump
from tests.fault.upgrade_rig import Fleet, Place, fleet_on
from tests.fault.upgrade_scene import documents, played, states
from tests.obedient import Obedient

NODES = ("n1", "n2", "n3")
SHOP = f"""
kind: service
name: web
replicas: 2
container: {{image: "web@sha256:{"1" * 64}"}}
---
kind: service
name: mesh
mode: global
container: {{image: "mesh@sha256:{"2" * 64}"}}
"""
PODS = 2 + len(NODES)


class Shop:
    """A cluster with a farm of the earlier version, which keeps a controller of its own."""

    def __init__(self, fleet: Fleet, agents: Obedient, file: Path) -> None:
        self.fleet = fleet
        self.agents = agents
        self.file = file
        self.late = 0

    async def services(self) -> dict[str, Service]:
        found = (await self.fleet.dump()).tree("services", Service).values()
        return {each.name: each for _, each in found}

    async def deployments(self) -> list[Deployment]:
        return [each for _, each in (await self.fleet.dump()).tree("deployments", Deployment).values()]

    async def pods(self) -> list[tuple[str, str, str]]:
        """Those of services."""
        dump = await self.fleet.dump()
        parts = {each.id for each in dump.owners.values() if each.part_of}
        return sorted(place for place in dump.pods if place[0] in parts)

    async def left_alone(self) -> Place:
        """An intent of a service is lost, and the farm that is left works on; it leaves the service alone."""
        fleet, keys = self.fleet, self.fleet.keys
        _, *place = (await self.pods())[0]
        lost = (place[0], place[1])
        before = {index for index, _ in (await fleet.dump()).audits}
        await fleet.client.delete(keys.intent(*lost))
        self.late += 1
        name = f"late-{self.late}"
        wish = {"name": name, "replicas": 1, "min_healthy_time": 0, "pod": fleet.pod(name)}
        await fleet.old.ctl("rc", "create", "-f", "-", stdin=documents(wish))
        await states(fleet, fleet.old, **{name: "converged"})
        dump = await fleet.dump()
        assert lost not in dump.intents
        own = dump.owners[name_of(dump, name)]
        assert {audit.id for index, audit in dump.audits if index not in before} == {own.id}
        for kind in ("deployments", "rcs", "daemonsets"):
            held = await fleet.holders(kind)
            assert not held.keys() & {each.id for each in dump.owners.values() if each.part_of}
            assert kind != "deployments" or not held
        return lost

    async def repaired(self, lost: Place) -> None:
        async def so() -> bool:
            return lost in (await self.fleet.dump()).intents

        await self.fleet.until(so, "the intent that was lost")


def name_of(dump: Dump, name: str) -> str:
    """The id of the owner of that name."""
    return next(each.id for each in dump.owners.values() if each.name == name)


@pytest.fixture
async def shop(consul_dev: str, tmp_path: Path) -> AsyncIterator[Shop]:
    file = tmp_path / "shop.yaml"
    file.write_text(SHOP)
    async with (
        fleet_on(consul_dev, tmp_path, earlier=earlier.BEFORE_DEPLOYMENTS) as fleet,
        played(fleet, NODES) as agents,
    ):
        yield Shop(fleet, agents, file)


async def test_r11_farms_that_know_no_deployments_leave_services_alone(shop: Shop) -> None:
    fleet = shop.fleet
    await fleet.start(fleet.new, "run", "f2")
    shop.agents.deaf = set(NODES)
    await fleet.new.ctl("deploy", "-f", str(shop.file), "-y", "--no-wait")

    async def placed() -> bool:
        return len(await shop.pods()) == PODS

    await fleet.until(placed, "the pods of the services")
    await fleet.end("f2", signal.SIGTERM)
    shop.agents.deaf = set()
    lost = await shop.left_alone()
    (deployment,) = await shop.deployments()
    assert {each.managed_by for each in (await fleet.dump()).owners.values() if each.part_of} == {
        f"deployments/{deployment.id}"
    }

    await fleet.start(fleet.new, "run", "f3")
    await shop.repaired(lost)

    async def over() -> bool:
        return not await shop.deployments()

    await fleet.until(over, "the end of the deployment")
    assert {each.name: each.revision for each in (await shop.services()).values()} == {"web": 1, "mesh": 1}

    # Their owners go on needing a farm that knows deployments.
    await fleet.end("f3", signal.SIGTERM)
    lost = await shop.left_alone()
    await fleet.replace(fleet.new, "run", "f1", signal.SIGTERM)
    await shop.repaired(lost)
    await fleet.well("in the end")
    assert len(await shop.pods()) == PODS
