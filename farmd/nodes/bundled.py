"""Nodes in bundles: an app has single labels, taints and amounts of a node, never the node itself.

What must never break: what other apps and people say of a node stays, and a node that leaves its bundle only
loses what that bundle said.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from farmd.commands.bundled import FoundRecord, Wish, Written
from farmd.commands.edits import Readiness
from farmd.commands.mutation import Call, Mutation, Scalar
from farmd.commands.waiting import Spells
from farmd.nodes.commands import KIND, difference, edit
from store import codec, quantities, registration
from store.canonical import builtins
from store.entry import Stored
from store.errors import Conflict, NotFound
from store.keys import valid_segment
from store.nodes import Node, NodeRecords, NodeStore, Taint
from store.quantities import Amount
from store.selectors import valid_key, valid_node_labels, valid_value
from store.words import count_of


class NodeSpec(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """One document of a node."""

    name: str
    labels: dict[str, str] = {}
    taints: list[Taint] = []
    capacity: dict[str, Amount] = {}


class BundledNode:
    """What apps set on nodes; see ``farmd.commands.bundled.Bundled``."""

    spec = NodeSpec
    noun = "node"
    order = 0
    replaces = False

    def parse(self, document: Any, where: str) -> NodeSpec:
        spec = codec.parse_input(NodeSpec, document, where)
        valid_segment(spec.name, f"{where}: name")
        valid_node_labels(spec.labels, f"{where}: labels")
        for taint in spec.taints:
            valid_key(taint.key, f"{where}: taints")
            valid_value(taint.value, f"{where}: taints.{taint.key}")
        for resource in spec.capacity:
            valid_segment(resource, f"{where}: capacity")
        quantities.check_bytes(spec.capacity, f"{where}: capacity")
        return spec

    def wish(self, document: Mapping[str, Any], ignore: Collection[str] = ()) -> Wish:
        spec = self.parse(document, "document")
        return Wish(spec.name, spec, frozenset(document.keys() - {"name", *ignore}))

    async def find(self, call: Call, name: str) -> FoundRecord | None:
        try:
            view = await NodeStore(call.client, call.keys).get(name)
        except NotFound:
            return None
        return self.seen(call, _stored(view, call))

    def seen(self, call: Call, stored: Stored[Any]) -> FoundRecord:
        mine = stored.record.parts.values()
        return FoundRecord(stored, call.part_of if call.part_of in mine else "")

    def held(self, call: Call, found: FoundRecord, wish: Wish) -> FoundRecord:
        parts = found.stored.record.parts
        owners = {parts.get(field, "") for field in _fields(wish)}
        if not owners:  # nothing is stated, so nothing is another one's
            return found._replace(part_of=call.part_of)
        return found._replace(part_of=max(owners - {call.part_of}, default="") or found.part_of)

    async def differs(
        self,
        call: Call,
        found: FoundRecord,
        wish: Wish,
    ) -> tuple[dict[str, Scalar], dict[str, Scalar]]:
        """The fields that differ from the wish.

        Of a node that is not yet a part of the calling app, only fields that somebody set.
        """
        node: Node = found.stored.record
        if found.part_of == call.part_of:
            return difference(node, _marked(_said(node, wish), wish, call))
        before, after = difference(node, _said(node, wish))
        return before, {field: value for field, value in after.items() if field in before}

    async def create(self, call: Call, wish: Wish) -> Mutation:
        return await self.update(call, wish)

    async def update(self, call: Call, wish: Wish) -> Mutation:
        view = await _view(call, wish.name)
        _refuse_others(call, view, wish)
        found = await edit(call, view, _marked(_said(view.record, wish), wish, call), "node.update")
        if not found.needed or view.node is not None or view.agent is not None:
            return found
        sentinel = call.keys.sentinel(call.keys.intents(view.name))
        if await call.client.read(sentinel, mode="consistent") is not None:
            return found
        cluster = await registration.cluster_id(call.client, call.keys)
        return Mutation(found.change, (*found.operations, registration.sentinel(sentinel, cluster)))

    async def delete(self, call: Call, name: str) -> Mutation:
        view = await _view(call, name)
        return await edit(call, view, _without(view.record, _mine(view.record, call)), "node.update")

    async def mark(self, call: Call, name: str, to: str, wish: Wish | None = None) -> Mutation:
        view = await _view(call, name)
        if wish is not None:
            _refuse_others(call, view, wish)
            return await edit(call, view, _marked(view.record, wish, call), "node.adopt")
        mine = _mine(view.record, call)
        others = {field: owner for field, owner in view.record.parts.items() if field not in mine}
        parts = others | (dict.fromkeys(sorted(mine), to) if to else {})
        return await edit(call, view, replace(view.record, parts=parts), "node.release")

    async def written(self, call: Call) -> Written:
        listing = await NodeStore(call.client, call.keys).list()
        found = Written({self.noun: []}, [], [error.message for error in listing.broken])
        for name, view in sorted(listing.items.items()):
            said = _without(view.record, view.record.parts.keys())
            spec = NodeSpec(name=name, labels=said.labels, taints=said.taints, capacity=said.capacity)
            if (document := builtins(spec)).keys() != {"name"}:
                found.files[self.noun].append(document)
            if said.drain is not None:
                found.left.append(f"node/{name}: is being drained")
            elif said.cordoned:
                why = ["--reason", said.cordon_reason] if said.cordon_reason else []
                found.commands.append(["farmctl", "node", "cordon", name, *why])
            own = {"--address": said.address, "--signatures": said.signatures}
            if flags := [word for flag, value in own.items() if value for word in (flag, value)]:
                found.commands.append(["farmctl", "node", "set", name, *flags])
            if said.volumes:
                found.left.append(f"node/{name}: has {count_of(len(said.volumes), 'volume')}")
        return found

    async def verdict(
        self,
        call: Call,  # noqa: ARG002
        found: FoundRecord,  # noqa: ARG002
        spells: Spells,  # noqa: ARG002
        wish: Wish | None = None,  # noqa: ARG002
    ) -> Readiness:
        return Readiness("ready")


async def _view(call: Call, name: str) -> NodeRecords:
    """A node's records; of a node that nobody knows, empty ones."""
    try:
        return await NodeStore(call.client, call.keys).get(name)
    except NotFound:
        return NodeRecords(name, None, None)


def _stored(view: NodeRecords, call: Call) -> Stored[Node]:
    if view.node is not None:
        return view.node
    return Stored(key=call.keys.node(view.name), record=Node(), index=0, raw=b"{}")


def _taint(taint: Taint) -> str:
    return f"taints.{taint.key}:{taint.effect}"


def _fields(wish: Wish) -> list[str]:
    named = _named(wish.spec)
    return [name for field in sorted(wish.stated) for name in named[field]]


def _named(spec: NodeSpec) -> dict[str, list[str]]:
    """What a document speaks of, by its fields."""
    return {
        "labels": [f"labels.{key}" for key in spec.labels],
        "taints": [_taint(each) for each in spec.taints],
        "capacity": [f"capacity.{key}" for key in spec.capacity],
    }


def _said(node: Node, wish: Wish) -> Node:
    """A node with what a document states of it."""
    spec: NodeSpec = wish.spec
    taints = {(each.key, each.effect): each for each in node.taints}
    told = {(each.key, each.effect): each for each in spec.taints}
    values: dict[str, Any] = {
        "labels": {**node.labels, **spec.labels},
        "taints": list({**taints, **told}.values()),
        "capacity": {**node.capacity, **spec.capacity},
    }
    return replace(node, **{name: value for name, value in values.items() if name in wish.stated})


def _mine(node: Node, call: Call) -> set[str]:
    return {field for field, owner in node.parts.items() if owner == call.part_of}


def _without(node: Node, gone: Collection[str]) -> Node:
    """A node without some of what is said of it."""
    return replace(
        node,
        labels={key: value for key, value in node.labels.items() if f"labels.{key}" not in gone},
        taints=[each for each in node.taints if _taint(each) not in gone],
        capacity={key: value for key, value in node.capacity.items() if f"capacity.{key}" not in gone},
        parts={field: owner for field, owner in node.parts.items() if field not in gone},
    )


def _marked(node: Node, wish: Wish, call: Call) -> Node:
    """A node whose stated fields are the caller's; what the caller said before and states no more goes."""
    if not call.part_of:
        return node
    left = _without(node, _mine(node, call).difference(*_named(wish.spec).values()))
    return replace(left, parts=left.parts | dict.fromkeys(_fields(wish), call.part_of))


def _refuse_others(call: Call, view: NodeRecords, wish: Wish) -> None:
    for field in _fields(wish):
        owner = view.record.parts.get(field, "")
        if owner not in ("", call.part_of):
            text = f"node/{view.name}: {field} belongs to {owner}"
            raise Conflict(text, id=view.name, field=field, kind=KIND)


BUNDLED: BundledNode = BundledNode()
