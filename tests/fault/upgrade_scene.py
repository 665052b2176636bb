"""What a cluster of the earlier version holds before its upgrade: all that it knows, and things half done."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from tests.fault.upgrade_rig import STUBBORN, WARMING, Fleet, Version
from tests.fleet import Cluster
from tests.obedient import Obedient, obedient

MAIN = "role=main"
NODES = {
    "n1": {"role": "main", "disk": "ssd"},
    "n2": {"role": "main", "disk": "hdd"},
    "n3": {"role": "main", "disk": "hdd", "part": "yes"},
    "n4": {"role": "spare", "disk": "hdd", "mover": "yes"},
}
SLOTS = {"n1": 2.0, "n2": 1.0, "n3": 0.0, "n4": 1.0}
POLICY = {"stages": [1, {"to": "100%", "approve": True}], "progress_deadline": 600}
STEADY = ("web", "room", "sick", "idle", "logs")
"""Owners of whose pods nobody asks anything during the upgrade."""


def documents(*specs: dict[str, Any]) -> str:
    return "\n---\n".join(map(json.dumps, specs))


def rc(
    fleet: Fleet, name: str, replicas: int = 1, *, pod: dict[str, Any] | None = None, **fields: Any
) -> Any:
    return {
        "name": name,
        "replicas": replicas,
        "node_selector": MAIN,
        "pod": pod or fleet.pod(name),
        **fields,
    }


def checked(fleet: Fleet, generation: int, **fields: Any) -> Any:
    """A controller whose pods must not be down both at once."""
    pod = fleet.pod("checked", WARMING, healthy="warm-@")
    return rc(fleet, "checked", 2, pod={**pod, "args": [f"generation-{generation}"]}, **fields)


def churn(fleet: Fleet, generation: int, replicas: int) -> Any:
    pod = {**fleet.pod("churn"), "args": [f"generation-{generation}"]}
    return rc(fleet, "churn", replicas, pod=pod, max_unavailable=2)


def beat(fleet: Fleet, generation: int) -> Any:
    pod = {**fleet.pod("beat"), "args": [f"generation-{generation}"]}
    return {"name": "beat", "node_selector": MAIN, "min_health": 0, "pod": pod}


def controllers(fleet: Fleet) -> list[Any]:
    """Controllers at rest, moving ones, and one that is to be deleted; files say which pods are healthy."""
    slot = {"resources": {"slots": 1.0}}
    mover = fleet.pod("mover", healthy="mover-@", **slot)
    return [
        rc(fleet, "web", 3),
        rc(fleet, "room", 3, pod=fleet.pod("room", priority=70, **slot)),
        rc(fleet, "sick", 3, pod=fleet.pod("sick", healthy="sick-@"), unhealthy_after=0),
        rc(fleet, "idle", 2),
        {
            **rc(fleet, "dyn", pod=fleet.pod("dyn", healthy="dyn-@"), strategy="dynamic"),
            "node_selector": "disk=ssd",
        },
        {**rc(fleet, "mover", pod=mover), "node_selector": "mover=yes"},
        rc(fleet, "going", pod=fleet.pod("going", STUBBORN)),
        checked(fleet, 0),
        churn(fleet, 0, 2),
    ]


def daemonsets(fleet: Fleet) -> list[Any]:
    """One at rest, one that people change, one that is to be deleted."""
    parting = {"name": "parting", "node_selector": "part=yes", "pod": fleet.pod("parting", STUBBORN)}
    return [{"name": "logs", "node_selector": MAIN, "pod": fleet.pod("logs")}, beat(fleet, 0), parting]


async def old_cluster(fleet: Fleet) -> None:
    """Everything that the earlier version knows, at rest."""
    for name in ("sick-n1", "dyn-n1", "mover-n4"):
        fleet.file(name).touch()
    await fleet.start(fleet.old, "run", "f1")  # it registers the cluster
    await asyncio.gather(fleet.start(fleet.old, "run", "f2"), fleet.start(fleet.old, "agent", *NODES))
    for node, labels in NODES.items():
        await fleet.state(node, labels=labels, capacity={"slots": SLOTS[node]})
    await asyncio.gather(
        fleet.old.ctl("rc", "create", "-f", "-", stdin=documents(*controllers(fleet))),
        fleet.old.ctl("daemonset", "create", "-f", "-", stdin=documents(*daemonsets(fleet))),
    )
    at_rest = ("web", "idle", "dyn", "mover", "going", "checked", "churn")
    await states(fleet, fleet.old, sick="progressing", room="blocked", **dict.fromkeys(at_rest, "converged"))
    await states(fleet, fleet.old, "daemonset", logs="converged", beat="converged", parting="converged")


async def half_done(fleet: Fleet) -> None:
    """A taint, a disabled controller, a drain, two moves and two deletions under way."""
    ctl = fleet.old.ctl
    await fleet.state("n3", taints=[{"key": "gpu", "value": "only", "effect": "no-schedule"}])
    await asyncio.gather(
        ctl("rc", "disable", "idle"),
        ctl("rc", "delete", "going", "--cascade", "-y", "--no-wait"),
        ctl("daemonset", "delete", "parting", "--cascade", "-y", "--no-wait"),
        ctl("node", "label", "n1", "disk=hdd", "mover=yes"),
        ctl("node", "label", "n2", "disk=ssd"),
    )
    await ctl("node", "drain", "n4", "-y")
    rows = await fleet.old.rows("rc")

    async def under_way() -> bool:
        works = [await fleet.read(fleet.keys.work("rcs", rows[name]["id"])) for name in ("dyn", "mover")]
        phases = [((work or {}).get("transfer") or {}).get("phase") for work in works]
        node = await fleet.read(fleet.keys.node("n4")) or {}
        return phases == ["placed", "placed"] and node["drain"].get("stage", "pods") == "pods"

    await fleet.until(under_way, "a drain and two moves under way")


@asynccontextmanager
async def played(fleet: Fleet, nodes: Sequence[str]) -> AsyncIterator[Obedient]:
    """A farm of the earlier version, and nodes for containers whose agents the test plays."""
    await fleet.start(fleet.old, "run", "f1")  # it registers the cluster
    cluster = Cluster(fleet.client, fleet.keys)
    await cluster.add_nodes({name: {} for name in nodes}, "runtime.container", "runtime.process", "process")
    async with obedient(cluster) as agents:
        yield agents


async def rollout(fleet: Fleet, name: str) -> dict[str, Any]:
    """The record of a rollout with its status."""
    found: dict[str, Any] = (await fleet.new.ctl("rollout", "status", name, "-o", "json")).json
    return found


async def asks(fleet: Fleet, name: str) -> bool:
    """Whether a rollout waits for a person's word before the second stage of ``POLICY``."""
    return ((await rollout(fleet, name))["status"] or {}).get("asks") == 2


async def rolled_out(fleet: Fleet, name: str) -> bool:
    """Whether a rollout ended, as it should."""
    ended = (await fleet.new.ctl("rollout", "history", name, "-o", "json")).json["items"]
    assert [each["outcome"] for each in ended] in ([], ["done"])
    return bool(ended)


async def states(fleet: Fleet, version: Version, noun: str = "rc", **wanted: str) -> None:
    """Wait until farmctl of a version says so of these owners of pods.

    The new version, whose farmctl costs less to start, says so first.
    """
    if version is not fleet.new:
        await states(fleet, fleet.new, noun, **wanted)
    last: dict[str, str] = {}

    async def so() -> bool:
        nonlocal last
        rows = await version.rows(noun)
        last = {name: f"{rows[name]['state']} ({rows[name]['status']})" for name in wanted if name in rows}
        return all(rows.get(name, {}).get("state") == state for name, state in wanted.items())

    try:
        await fleet.until(so, f"{wanted}")
    except AssertionError as error:
        raise AssertionError(f"{last}: {error}") from None
