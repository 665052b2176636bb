"""One RC's world as a value, for tables of decisions: who is healthy, retained, lost, drained, moving.

Places offered are given by hand here; ``tests/unit/replication/test_rc_plan.py`` asks the scheduler.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from farmd.pods.state import PodState
from farmd.replication.facts import Offer, Snapshot
from scheduler.model import Assignment
from store.entry import Stored
from store.pods import Pod
from store.rcs import ReplicationController
from store.reality import Glance, Intent
from store.work import Transfer

RC = "00aa"
POD = "web"
SHA, NEWER = "a" * 64, "b" * 64
NOW = 10_000.0

Place = tuple[str, str]


def controller(replicas: int, **fields: Any) -> ReplicationController:
    """A dynamic RC whose healthy pods are available at once, unless said otherwise."""
    return ReplicationController(
        id=RC,
        name="web",
        manifest=SHA,
        replicas_desired=replicas,
        pod_id=POD,
        **({"strategy": "dynamic", "min_healthy_time": 0.0} | fields),
    )


def pod(
    *,
    healthy: bool = True,
    at: float = 0.0,
    since: float = 0.0,
    intent: int = 5,
    acted: int = 5,
    state: str = "critical",
    phase: str = "running",
    started: float = 1.0,
    manifest: str = SHA,
    reality: bool = True,
    restart: int = 0,
    **fields: Any,
) -> PodState:
    """A pod whose agent acted on intent ``acted``; its intent's index is ``intent``."""
    health = "passing" if healthy else state
    seen = Glance(manifest, RC, phase, started, health, acted, since)  # type: ignore[arg-type]
    return PodState(
        Stored("pod", Pod(manifest=manifest, at=at), 4, b""),
        Stored("intent", Intent(manifest, RC, restart), intent, b""),
        seen if reality else None,
        **fields,
    )


def moving(old: str = "n1", new: str = "n9", **fields: Any) -> Transfer:
    """A move that began a moment ago, placed unless said otherwise."""
    move = Transfer(
        id="t1",
        old_node=old,
        old_instance=POD,
        new_node=new,
        new_instance=POD,
        phase="placed",
        since=NOW - 10,
        deadline=NOW + 290,
    )
    return msgspec.structs.replace(move, **fields)


def world(rc: ReplicationController, pods: Mapping[str, PodState], **fields: Any) -> Snapshot:
    """A snapshot; pods by node."""
    held = {(node, POD): state for node, state in pods.items()}
    return Snapshot(rc=rc, pods=held, **({"now": NOW} | fields))


def offered(purpose: str, nodes: Iterable[str], *, missing: int = 0, **fields: Any) -> Offer:
    """Places on these nodes."""
    places = tuple(Assignment(node, POD) for node in nodes)
    why = f"{missing} pods found no place" if missing else ""
    return Offer(places, missing, why, purpose, **fields)  # type: ignore[arg-type]


def nodes(places: Iterable[Place]) -> list[str]:
    """The nodes of places, sorted."""
    return sorted(node for node, _ in places)
