"""The last version that knew no rollouts runs beside this one, and is upgraded in the middle of a rollout.

Farms of the earlier version do not own what is rolled out (R11), so they neither heal nor change it; the
families that they do not know get their sentinels once (R20). Agents of the earlier version run what a
rollout wants of them.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from store import families
from tests import earlier
from tests.fault.invariants import Dump
from tests.fault.upgrade_judge import left_alone, nodes_of, nothing_restarted
from tests.fault.upgrade_rig import Fleet, Place, fleet_on
from tests.fault.upgrade_scene import POLICY, asks, documents, rolled_out, rollout, states

NODES = ("n1", "n2", "n3", "n4")
FILE = ("-f", "-", "-y")


@pytest.fixture
async def fleet(consul_dev: str, tmp_path: Path) -> AsyncIterator[Fleet]:
    async with fleet_on(consul_dev, tmp_path, earlier=earlier.BEFORE_ROLLOUTS) as made:
        yield made


def controller(fleet: Fleet, name: str, version: int = 1, **fields: Any) -> Any:
    """A controller on every node whose pods are healthy once a file says so of their version and node."""
    pod = fleet.pod(name, healthy=f"{name}-{version}-@")
    pod["args"] = [f"version-{version}"]
    return {"name": name, "replicas": len(NODES), "min_healthy_time": 0, "pod": pod, **fields}


def healthy(fleet: Fleet, name: str, version: int, *nodes: str) -> None:
    """From now on the pods of this version pass their checks on these nodes."""
    for node in nodes:
        fleet.file(f"{name}-{version}-{node}").touch()


async def old_cluster(fleet: Fleet) -> None:
    await fleet.start(fleet.old, "run", "f1")  # it registers the cluster
    await fleet.start(fleet.old, "run", "f2")
    await fleet.start(fleet.old, "agent", *NODES)
    for name in ("web", "steady"):
        healthy(fleet, name, 1, *NODES)
        await fleet.old.ctl("rc", "create", "-f", "-", stdin=documents(controller(fleet, name)))
    await states(fleet, fleet.old, web="converged", steady="converged")


async def younger_families_are_known(fleet: Fleet) -> None:
    """Their sentinels came with the first farm that knows them, once (R20)."""
    keys = fleet.keys
    schema = await fleet.read(keys.schema) or {}
    younger = families.younger()
    assert {"rollouts", "history"} <= {family.name for family in younger}
    assert sorted(schema["families"]) == sorted(family.name for family in younger)
    for key in families.sentinels(keys, younger):
        assert await fleet.client.read(key) is not None, key


async def owned_by(fleet: Fleet, farm: str, *items: str) -> None:
    """Wait until a farm owns these controllers; empty: nobody."""

    async def so() -> bool:
        held = await fleet.holders("rcs")
        return {held.get(item, "") for item in items} == {farm}

    await fleet.until(so, f"{farm or 'nobody'} as owner")


def by_farms(dump: Dump, items: set[str], since: int) -> set[str]:
    """Which farms changed something of these items after a moment."""
    found = [audit for index, audit in dump.audits if index > since and audit.id in items]
    return {audit.actor for audit in found if audit.actor.startswith("farm/")}


async def left_to_old_farms(fleet: Fleet, items: set[str], began: int) -> Place:
    """While no farm knows rollouts, an intent is lost: the farms that are left work, and leave it alone."""
    intents = (await fleet.dump()).intents
    lost = max(place for place in intents if place[1] == "web")
    await fleet.client.delete(fleet.keys.intent(*lost))
    healthy(fleet, "late", 1, *NODES)
    await fleet.old.ctl("rc", "create", "-f", "-", stdin=documents(controller(fleet, "late")))
    await states(fleet, fleet.old, late="converged")
    dump = await fleet.dump()
    assert lost not in dump.intents
    assert by_farms(dump, items, began) == {"farm/f3"}
    return lost


@pytest.mark.slow
async def test_r11_a_cluster_is_upgraded_in_the_middle_of_a_rollout(fleet: Fleet) -> None:
    await old_cluster(fleet)
    steady = (await fleet.old.rows("rc"))["steady"]["id"]
    assert "families" not in (await fleet.read(fleet.keys.schema) or {})
    await fleet.start(fleet.new, "run", "f3")
    await younger_families_are_known(fleet)

    began = await fleet.index()
    wanted = documents(controller(fleet, "web", 2, rollout=POLICY))
    await fleet.new.ctl("rc", "update", *FILE, stdin=wanted)

    async def first_pod() -> dict[str, Any]:
        found = await rollout(fleet, "web")
        return found if (found["status"] or {}).get("new", {}).get("placed") == 1 else {}

    found = await fleet.until(first_pod, "a pod of the new version")
    sides = {found["old"], found["new"]}
    await owned_by(fleet, "f3", *sides)
    await asyncio.gather(*(fleet.old.ctl(*words) for words in (("rc", "list"), ("rc", "describe", "web"))))
    refused = await asyncio.to_thread(fleet.old.farmctl, "rc", "set-replicas", "web", "2", "-y")
    assert (refused.code, "managed" in refused.err) == (5, True), refused

    # The one farm that knows rollouts leaves, then an earlier one is upgraded and goes on.
    await fleet.end("f3", signal.SIGTERM)
    await owned_by(fleet, "", *sides)
    lost = await left_to_old_farms(fleet, sides | {found["id"]}, began)
    await fleet.replace(fleet.new, "run", "f1", signal.SIGTERM)
    await owned_by(fleet, "f1", *sides)

    async def repaired() -> bool:
        return lost in (await fleet.dump()).intents

    await fleet.until(repaired, "the intent that was lost")
    await fleet.well("repaired")

    # Agents, and the last farm, are upgraded while the rollout rests and while it moves.
    await fleet.replace(fleet.new, "agent", "n1", signal.SIGTERM)
    healthy(fleet, "web", 2, *NODES)
    await fleet.until(lambda: asks(fleet, "web"), "a question for approval")
    await fleet.replace(fleet.new, "agent", "n2", signal.SIGKILL)
    await fleet.new.ctl("rollout", "approve", "web")
    await asyncio.gather(
        fleet.replace(fleet.new, "run", "f2", signal.SIGTERM),
        fleet.replace(fleet.new, "agent", "n3", signal.SIGTERM),
        fleet.replace(fleet.new, "agent", "n4", signal.SIGKILL),
    )
    await fleet.until(lambda: rolled_out(fleet, "web"), "the end of the rollout")
    names = ("web", "steady", "late")
    await states(fleet, fleet.new, **dict.fromkeys(names, "converged"))
    dump, starts = await fleet.well("in the end"), fleet.starts()
    rows = await fleet.new.rows("rc")
    assert {name: (row["replicas_desired"], nodes_of(dump, row["id"])) for name, row in rows.items()} == {
        name: (len(NODES), set(NODES)) for name in names
    }
    assert rows["web"]["id"] == found["new"]
    assert nothing_restarted(starts, dump) == []
    assert left_alone(dump, steady, began) == []
    assert "farm/f2" not in by_farms(dump, {found["old"]}, began)
    assert (await fleet.new.ctl("doctor", "-o", "json")).json["items"] == []
