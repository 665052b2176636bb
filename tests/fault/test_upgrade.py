"""A cluster that an earlier version wrote is upgraded under load, process by process.

Old and new farms, agents and farmctl work side by side on the same records. What must hold all the time: no
workload is restarted or lost beyond what was asked for, counts and floors hold, the audit adds up, and both
versions read what the other wrote. In the end everything has converged, and the doctor finds nothing.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests import earlier
from tests.fault.invariants import unfinished
from tests.fault.upgrade_judge import counts_hold, left_alone, nodes_of, nothing_restarted
from tests.fault.upgrade_rig import Fleet, fleet_on
from tests.fault.upgrade_scene import (
    NODES,
    STEADY,
    beat,
    checked,
    churn,
    documents,
    half_done,
    old_cluster,
    rc,
    states,
)


@pytest.fixture
async def fleet(consul_dev: str, tmp_path: Path) -> AsyncIterator[Fleet]:
    async with fleet_on(consul_dev, tmp_path) as made:
        yield made


FILE = ("-f", "-", "--now", "-y")


async def people(fleet: Fleet, stop: asyncio.Event) -> None:
    """Edit with both versions of farmctl until told to stop; each edit succeeds."""
    for generation in count(1):
        old, new = (fleet.old, fleet.new) if generation % 2 else (fleet.new, fleet.old)
        await asyncio.gather(
            old.ctl("rc", "update", *FILE, stdin=documents(churn(fleet, generation, 1 + generation % 2))),
            new.ctl("daemonset", "update", *FILE, stdin=documents(beat(fleet, generation))),
        )
        await new.ctl("node", "label", "n1", f"load={generation}")
        await old.ctl("rc", "set-replicas", "churn", "2", "-y")
        if stop.is_set():
            return
        await asyncio.sleep(1)  # or these edits would take all of the processor


async def floor(fleet: Fleet, rc_id: str, stop: asyncio.Event) -> int:
    """The least number of healthy pods that a controller ever had, until told to stop."""
    least = 99
    prefix = fleet.keys.tree("reality")
    while not stop.is_set():
        page = await fleet.client.list(prefix, mode="consistent")
        found = [json.loads(raw.decoded()) for raw in page.items if raw.key.rpartition("/")[2] == "checked"]
        health = [each.get("health", {}).get("state") for each in found if each["owner"] == rc_id]
        least = min(least, health.count("passing"))
        await asyncio.sleep(0.1)
    return least


async def upgrade_agents(fleet: Fleet) -> None:
    """Two agents one by one; the second goes back to the old version once more."""
    await fleet.replace(fleet.new, "agent", "n1", signal.SIGTERM)
    await fleet.replace(fleet.new, "agent", "n2", signal.SIGKILL)
    await fleet.replace(fleet.old, "agent", "n2", signal.SIGKILL)
    await fleet.replace(fleet.new, "agent", "n2", signal.SIGTERM)


async def upgrade_other_agents(fleet: Fleet) -> None:
    await fleet.replace(fleet.new, "agent", "n3", signal.SIGTERM)
    await fleet.replace(fleet.new, "agent", "n4", signal.SIGKILL)


async def upgrade_farms(fleet: Fleet) -> None:
    """The new farm goes away again, and the old ones take its work over; then they leave one by one."""
    await fleet.end("f3", signal.SIGTERM)

    async def taken_over() -> bool:
        return set((await fleet.owners("rcs")).values()) == {"old"}

    await fleet.until(taken_over, "old farms that own all controllers")
    await fleet.well("taken back")
    await fleet.replace(fleet.new, "run", "f1", signal.SIGTERM)
    await fleet.replace(fleet.new, "run", "f2", signal.SIGKILL)


async def read_by_both(fleet: Fleet) -> None:
    """Both versions show the same states and reasons, and fail at nothing."""

    async def accounts() -> list[dict[str, tuple[str, str]]]:
        said = []
        for version in (fleet.old, fleet.new):
            rows = await version.rows("rc") | await version.rows("daemonset")
            said.append({name: (rows[name]["state"], rows[name]["status"]["reason"]) for name in STEADY})
        return said

    async def alike() -> dict[str, tuple[str, str]]:
        old, new = await accounts()
        # Their pods may be on the very nodes whose agents were replaced.
        at_rest = all(new[name][0] == "converged" for name in ("web", "logs"))
        return new if old == new and at_rest else {}

    account = await fleet.until(alike, "one account of all owners by both versions")
    assert {name: state for name, (state, _) in account.items()} == {
        "web": "converged",
        "room": "blocked",
        "sick": "progressing",
        "idle": "disabled",
        "logs": "converged",
    }
    assert "found no place" in account["room"][1]
    shown = (("node", "list"), ("pod", "list"), ("top",), ("rc", "describe", "checked"))
    await asyncio.gather(*(version.ctl(*words) for version in (fleet.old, fleet.new) for words in shown))


async def edit_crosswise(fleet: Fleet) -> None:
    """Each version edits what the other wrote."""
    await fleet.new.ctl("rc", "update", *FILE, stdin=documents(checked(fleet, 1)))
    await fleet.new.ctl("rc", "create", "-f", "-", stdin=documents(rc(fleet, "late", min_healthy_time=1.5)))
    await fleet.old.ctl("rc", "set-replicas", "late", "2")


async def deletions(fleet: Fleet) -> asyncio.Future[list[Any]]:
    """Delete, with the other version's farmctl each, a controller of an old farm and one of a new farm.

    Returns what ends when both farmctl have seen the end.
    """
    waits = {}
    for batch in count():
        names = [f"gone-{batch}-{number}" for number in range(3)]
        await fleet.old.ctl("rc", "create", "-f", "-", stdin=documents(*(rc(fleet, name) for name in names)))
        ids = {name: row["id"] for name, row in (await fleet.old.rows("rc")).items() if name in names}

        async def owned(wanted: dict[str, str] = ids) -> dict[str, str]:
            owners = await fleet.owners("rcs")
            return owners if set(wanted.values()) <= owners.keys() else {}

        owners = await fleet.until(owned, f"owners of {names}")
        for name, item in ids.items():
            other = fleet.new if owners[item] == "old" else fleet.old
            if other.name not in waits:
                command = ("rc", "delete", name, "--cascade", "-y", "--timeout", "150s")
                waits[other.name] = asyncio.create_task(other.ctl(*command))
        if len(waits) == 2:
            return asyncio.gather(*waits.values())
    raise AssertionError


async def converged(fleet: Fleet) -> None:
    """Wait until nothing is left to do, and both versions say so."""
    last: list[str] = []

    async def done() -> bool:
        nonlocal last
        dump = await fleet.dump()
        leaving = [f"{each.name} is there" for each in dump.owners.values() if each.deleting]
        last = [*unfinished(dump), *leaving]
        return not last

    try:
        await fleet.until(done, "convergence")
    except AssertionError as error:
        raise AssertionError(f"{last}: {error}") from None
    names = ("web", "room", "sick", "dyn", "mover", "checked", "churn", "late")
    for version in (fleet.new, fleet.old):
        await states(fleet, version, idle="disabled", **dict.fromkeys(names, "converged"))


def test_the_earlier_version_is_really_another_code() -> None:
    tree = earlier.tree()
    for package, file in earlier.imported(tree).items():
        assert file == tree / package / "__init__.py"
    assert (tree / "farmd" / "edits.py").exists()
    assert not (earlier.ROOT / "farmd" / "edits.py").exists()


def test_a_clone_without_the_earlier_version_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(earlier.NoHistory, match="git fetch --unshallow") as failure:
        earlier.tree("0123456789" * 4, cache=tmp_path)
    assert "\n" not in str(failure.value)


@pytest.mark.slow
async def test_a_cluster_of_the_earlier_version_is_upgraded_under_load(fleet: Fleet) -> None:
    await old_cluster(fleet)
    await half_done(fleet)
    before, began = fleet.starts(), await fleet.index()
    named = [await fleet.old.rows(noun) for noun in ("rc", "daemonset")]
    ids = {name: row["id"] for rows in named for name, row in rows.items()}
    async with asyncio.TaskGroup() as beside:
        enough, over = asyncio.Event(), asyncio.Event()
        load = beside.create_task(people(fleet, enough))
        least = beside.create_task(floor(fleet, ids["checked"], over))

        # Old and new farms beside each other, old and new agents.
        await asyncio.gather(fleet.start(fleet.new, "run", "f3"), upgrade_agents(fleet))
        assert {await fleet.version_of(fleet.keys.agent(node)) for node in NODES} == {"old", "new"}
        waits, *_ = await asyncio.gather(deletions(fleet), read_by_both(fleet), edit_crosswise(fleet))
        await fleet.well("mixed")

        # The old farms leave; each is there again, new, under its name.
        await asyncio.gather(upgrade_farms(fleet), upgrade_other_agents(fleet))
        for name in ("dyn-n2", "mover-n1", "going-may-end", "parting-may-end", "sick-n2", "sick-n3"):
            fleet.file(name).touch()
        last_change = documents(checked(fleet, 2, min_healthy_time=3))
        await fleet.new.ctl("rc", "update", *FILE, stdin=last_change)
        await waits
        enough.set()
        await load

        # The new version ends what the old one began.
        await fleet.new.ctl("rc", "set-replicas", "room", "2", "-y")
        await converged(fleet)
        over.set()
    dump, after = await fleet.well("in the end"), fleet.starts()
    assert counts_hold(dump) == []
    assert nothing_restarted(after, dump) == []
    assert [line for name in STEADY for line in left_alone(dump, ids[name], began)] == []
    assert least.result() >= 1
    steady = {place for place in before if place[1] in STEADY}
    assert {place: after[place] for place in steady} == {place: before[place] for place in steady}
    assert (await fleet.new.rows("rc"))["late"]["min_healthy_time"] == 1.5
    assert (nodes_of(dump, ids["dyn"]), nodes_of(dump, ids["mover"])) == ({"n2"}, {"n1"})
    for version in (fleet.old, fleet.new):
        assert (await version.ctl("doctor", "-o", "json")).json["items"] == []
