"""What one node's decision is made from: its record, its agent, and what a drain waits for (R15).

An idle node costs no request; only a drain reads, each time anew, what is left.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from farmd.nodes import leftovers
from farmd.nodes.model import Leftover, Snapshot
from store.errors import NotRegistered
from store.nodes import NodeStatus
from store.work import Work

if TYPE_CHECKING:
    from farmd.nodes.kind import Tools

OWNERS_AT_MOST = 20
_NO_WORK = Work()


async def read(node: str, status: NodeStatus | None, tools: Tools) -> Snapshot | None:
    """The node as it is; None when nobody speaks of it any more. ``status`` is the one that stands."""
    key = tools.keys.node(node)
    stored, broken = tools.caches.nodes.get(key), tools.caches.nodes.broken.get(key)
    present = tools.absences.present(node)
    if stored is None and broken is None and not present:
        return None
    work = tools.caches.work.get(tools.keys.work("nodes", node))
    snapshot = Snapshot(
        node=stored.record if stored is not None else None,
        present=present,
        work=work.record if work is not None else _NO_WORK,
        absent_for=None if present else tools.absences.seconds(node),
        grace=tools.absences.grace,
        frozen=tools.guard.frozen(),
        now=tools.clock.now(),
        farm=tools.farm,
        status=status,
        broken=broken.message if broken is not None else "",
        index=index(node, tools),
    )
    return await _with_leftovers(node, snapshot, tools) if snapshot.draining is not None else snapshot


def index(node: str, tools: Tools) -> int:
    """ModifyIndex of the node's record, whether or not it decodes; 0: there is none."""
    stored = tools.caches.nodes.get(tools.keys.node(node))
    broken = tools.caches.nodes.broken.get(tools.keys.node(node))
    if stored is None:
        return int(broken.fields.get("index", 0)) if broken is not None else 0
    return stored.index


async def _with_leftovers(node: str, snapshot: Snapshot, tools: Tools) -> Snapshot:
    """What the drain waits for; where the node is lost, nobody can say what runs there."""
    try:
        left = await leftovers.read(tools.client, tools.keys, node, tools.system, running=not snapshot.lost)
    except NotRegistered as error:
        return dataclasses.replace(snapshot, waiting=(error.message,))
    return dataclasses.replace(snapshot, left=left, waiting=await _reasons(left, tools))


async def _reasons(left: tuple[Leftover, ...], tools: Tools) -> tuple[str, ...]:
    reasons = []
    for owner in sorted({pod.owner for pod in left})[:OWNERS_AT_MOST]:
        rc = tools.caches.rcs.get(tools.keys.record("rcs", owner))
        ds = tools.caches.daemonsets.get(tools.keys.record("daemonsets", owner))
        known = leftovers.owner_of(rc.record if rc else None, ds.record if ds else None, owner)
        reasons.append(await leftovers.reason(tools.client, tools.keys, owner, known))
    return tuple(text for text in reasons if text)
