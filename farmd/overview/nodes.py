"""Nodes: people's settings, agents, numbers of pods, and what farms report."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from farmd.overview.owners import OUTDATED, farms, holders
from store import families
from store.failsafe import Failsafe, FailsafeStore, frozen
from store.farms import Member
from store.keys import Keys
from store.nodes import Agent, Condition, Drain, NodeListing, NodeRecords, NodeStatus, NodeStore, Taint
from store.times import Time

if TYPE_CHECKING:
    from store.consul.client import ConsulClient


class NodeRow(msgspec.Struct, frozen=True, kw_only=True):
    """One node: people's settings, its agent, the number of its pods, and what farms report.

    ``left`` pods keep a drain from its end, for the reasons in ``waiting``. ``stated``: the labels that an
    absent agent stated last.
    """

    name: str
    state: str
    labels: dict[str, str]
    stated: dict[str, str] = {}
    pods: int = 0
    taints: list[Taint] = []
    cordon_reason: str = ""
    drain: Drain | None = None
    agent: Agent | None = None
    lost_since: Time = 0.0
    absent_since: Time = 0.0
    left: int = 0
    waiting: list[str] = []
    reason: str = ""


class Nodes(msgspec.Struct, frozen=True):
    """Rows by name, and one line for each record that does not decode."""

    rows: list[NodeRow]
    broken: list[str]


async def nodes(client: ConsulClient, keys: Keys) -> Nodes:
    """All nodes that have a record or an agent."""
    listing: NodeListing = await NodeStore(client, keys).list()
    page = await client.keys(keys.tree("intent"))
    counts = Counter(node for node, _ in families.intent_places(keys, page.items))
    said = await NodeStore(client, keys).conditions()
    views = listing.items.values()
    rows = [node_row(view, said.get(view.name, Condition()), counts[view.name]) for view in views]
    return Nodes(rows, [error.message for error in listing.broken])


def node_row(view: NodeRecords, condition: Condition, pods: int) -> NodeRow:
    """One node's row."""
    record, status = view.record, condition.status
    there = view.agent is not None or bool(view.unreadable)
    told = status if status is not None and (record.draining or status.state == "blocked") else None
    return NodeRow(
        name=view.name,
        state=node_state(view, lost=condition.lost_since > 0),
        labels=view.labels,
        stated=status.labels if status is not None and not there else {},
        pods=pods,
        taints=record.taints,
        cordon_reason=record.cordon_reason,
        drain=record.drain,
        agent=view.agent,
        lost_since=0.0 if there else condition.lost_since,
        absent_since=0.0 if there else condition.absent_since,
        left=told.left if told is not None else 0,
        waiting=told.waiting if told is not None else [],
        reason=_reason(view, condition, told),
    )


def _reason(view: NodeRecords, condition: Condition, told: NodeStatus | None) -> str:
    if told is not None:
        return OUTDATED if condition.outdated(view) else told.reason
    return view.agent.closed if view.agent is not None else ""


def node_state(view: NodeRecords, *, lost: bool) -> str:
    """One or two words: ``ready``, ``unreadable``, ``absent`` or ``lost``, and ``cordoned``, ``draining``
    or ``drained``. ``unreadable``: the agent's record does not decode; ``closed``: its agent starts no pod.
    """
    record = view.record
    silent = "unreadable" if view.unreadable else "lost" if lost else "absent"
    words = [silent if view.agent is None else "ready"]
    if record.drain is not None:
        words.append("drained" if record.drain.stage == "done" else "draining")
    elif record.cordoned:
        words.append("cordoned")
    if view.agent is not None and view.agent.closed:
        words.append("closed")
    return ",".join(words)


# Farms that are present, how many items they hold, and the freezes in force.


class FarmRow(msgspec.Struct, frozen=True, kw_only=True):
    """One farm, and how many items of each kind of work it holds."""

    member: Member
    items: dict[str, int] = {}


async def farm_rows(client: ConsulClient, keys: Keys) -> list[FarmRow]:
    """All farms that are present, by id, with how many items they hold."""
    members = await farms(client, keys)
    held: dict[str, Counter[str]] = {}
    for item, farm in (await holders(client, keys, "")).items():
        held.setdefault(farm, Counter())[item.partition("/")[0]] += 1
    return [
        FarmRow(member=member, items=dict(sorted(held.get(member.id, Counter()).items())))
        for member in members
    ]


async def freezes(client: ConsulClient, keys: Keys, now: float) -> dict[str, Failsafe]:
    """The freezes that are in force, by kind of work."""
    stored = await FailsafeStore(client, keys).list()
    return {kind: item.record for kind, item in stored.items() if frozen(item.record, now)}
