"""What a reading says of preemption: where this RC waits for room, which of its own pods must make room for
others, and who keeps it waiting. Nominations are few; where there are none, nothing of this costs anything.
"""

from __future__ import annotations

import dataclasses
from textwrap import shorten
from typing import TYPE_CHECKING

import msgspec

from farmd.replication.model import Place, Snapshot
from scheduler.model import NodeView
from scheduler.victims import victims
from store import codec
from store.errors import RecordInvalid
from store.status import Status

if TYPE_CHECKING:
    from farmd.replication.kind import Tools

# Who waits for somebody who waits in turn tells no endless story.
HOLDERS_ASKED, SAID_LIMIT = 3, 240


def nominated(item: str, tools: Tools) -> frozenset[Place]:
    """Where this RC waits for room; nodes that nobody speaks of cannot be changed."""
    nominations = tools.world.nominations
    if not nominations.nodes() or not (own := nominations.of(item)):
        return frozenset()
    view = tools.world.fleet()
    return frozenset(place for place in own if place[0] in view)


def with_preempted(snapshot: Snapshot, item: str, tools: Tools) -> Snapshot:
    """Marks the pods that must make room; costs nothing where nobody waits for any."""
    nominations = tools.world.nominations
    nodes = {node for node, _ in snapshot.pods if nominations.on(node)}
    if not nodes or not tools.preemption:
        return snapshot
    view = tools.world.fleet()
    going = {
        (node, victim.instance): _foremost(view[node], tools)
        for node in nodes & view.keys()
        for victim in victims(view[node], nominations.yielding())
        if victim.owner == item
    }
    pods = {
        place: msgspec.structs.replace(state, preempted=going[place]) if place in going else state
        for place, state in snapshot.pods.items()
    }
    return dataclasses.replace(snapshot, pods=pods) if going else snapshot


def _foremost(node: NodeView, tools: Tools) -> str:
    """Who waits for room on a node before all others."""
    waiting = min((-one.priority, one.since, one.owner) for one in node.reserved.nominations.values())
    return _title(waiting[2], tools)


async def with_holders(snapshot: Snapshot, tools: Tools) -> Snapshot:
    """What keeps the room that is waited for: the owners' own words."""
    preemption = snapshot.offer.preemption
    if preemption is None:
        return snapshot
    owners = dict.fromkeys(victim.owner for one in preemption.keep for victim in one.victims)
    owners |= dict.fromkeys(preemption.barred)
    holders = {owner: await _holder(owner, tools) for owner in list(owners)[:HOLDERS_ASKED]}
    return dataclasses.replace(snapshot, holders=holders)


async def _holder(owner: str, tools: Tools) -> str:
    """An owner's title, and why its pods are still there, if it says so."""
    stored = tools.caches.rcs.get(tools.keys.record("rcs", owner))
    if stored is None:
        return f"{_title(owner, tools)} (no controller's pods)"
    if stored.record.disabled or stored.record.managed_by:
        return f"{_title(owner, tools)} ({stored.record.managed_by or 'disabled'})"
    entry = await tools.client.read(tools.keys.status("rcs", owner))
    try:
        said = codec.decode(Status, entry.value, entry.key).reason if entry is not None else ""
    except RecordInvalid:
        said = ""
    return f"{_title(owner, tools)} ({shorten(said, SAID_LIMIT)})" if said else _title(owner, tools)


def _title(owner: str, tools: Tools) -> str:
    stored = tools.caches.rcs.get(tools.keys.record("rcs", owner))
    return f"rcs/{stored.record.name}" if stored is not None else owner
