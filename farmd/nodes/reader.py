"""Reads the input of one node's decision: its record, its agent, and what a drain waits for (R15).

An idle node costs no request; only a drain reads what is left, each time.
"""

from __future__ import annotations

import dataclasses

from farmd.cache.caches import Caches
from farmd.nodes import leftovers
from farmd.nodes.absence import Absences
from farmd.nodes.leftovers import SystemPods
from farmd.nodes.model import Leftover, Snapshot
from farmd.work.context import Context
from farmd.work.kind import Kind
from store.entry import Stored
from store.errors import NotRegistered, RecordInvalid
from store.nodes import Node, NodeStatus
from store.work import Work

OWNERS_AT_MOST = 20
_NO_WORK = Work()


async def barrier(caches: Caches) -> None:
    """Read the input of verdicts and drains (R15)."""
    for tree in (caches.nodes, caches.agents, caches.work):
        await tree.barrier()


async def read(
    node: str,
    stored: Stored[Node] | RecordInvalid | None,
    status: NodeStatus | None,
    absences: Absences,
    system: SystemPods,
    kind: Kind,
) -> Snapshot:
    """The present snapshot. ``status`` is the stored one."""
    context = kind.context
    present = absences.present(node)
    work = context.caches.work.get(context.keys.work(kind.name, node))
    snapshot = Snapshot(
        node=stored.record if isinstance(stored, Stored) else None,
        present=present,
        work=work.record if work is not None else _NO_WORK,
        absent_for=None if present else absences.seconds(node),
        grace=absences.grace,
        frozen=kind.guard.frozen(),
        now=context.clock.now(),
        farm=context.farm,
        stated=context.fleet.stated(node),
        status=status,
        broken=stored.message if isinstance(stored, RecordInvalid) else "",
    )
    if snapshot.draining is None:
        return snapshot
    # On a lost node the running processes are unknown.
    running = not snapshot.lost
    try:
        left = await leftovers.read(context.client, context.keys, node, system, running=running)
    except NotRegistered as error:
        return dataclasses.replace(snapshot, waiting=(error.message,))
    return dataclasses.replace(snapshot, left=left, waiting=await _reasons(left, context))


async def _reasons(left: tuple[Leftover, ...], context: Context) -> tuple[str, ...]:
    """Why the pods stay that a drain waits for, from their owners' statuses."""
    reasons = []
    for owner in sorted({pod.owner for pod in left})[:OWNERS_AT_MOST]:
        known = _owner(context, owner) or await leftovers.find_owner(context.client, context.keys, owner)
        reasons.append(await leftovers.reason(context.client, context.keys, owner, known))
    return tuple(text for text in reasons if text)


def _owner(context: Context, owner_id: str) -> leftovers.Owner | None:
    for tree in context.caches.owners():
        stored = tree.get(context.keys.record(tree.family, owner_id))
        if stored is not None:
            return leftovers.owner_of(tree.family, stored.record)
    return None
