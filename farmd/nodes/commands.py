"""What people ask of nodes; called by the command line and over HTTP alike.

As in ``farmd.replication.commands``, each function returns a ``Mutation`` that has written nothing
yet. People's word lives in ``nodes/<node>``; the agent's own facts are never touched here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from farmd.mutation import Call, Change, Mutation, Scalar, guard, registered
from store.errors import InputInvalid
from store.keys import valid_segment
from store.nodes import Node, NodeStore, NodeView
from store.selectors import valid_key, valid_labels

KIND = "nodes"


async def label(call: Call, name: str, labels: Mapping[str, str], remove: Sequence[str] = ()) -> Mutation:
    """Set and remove labels of a node; they win over the agent's facts.

    Raises:
        InputInvalid: a bad key or value, or a key that is both set and removed.
        NotFound: no such node. Locked: somebody holds its mutation lock.
    """
    valid_labels(labels, "labels")
    for key in remove:
        valid_key(key, "labels")
        if key in labels:
            raise InputInvalid(
                f"labels: found {key!r} both set and removed, expected one of both", field="labels"
            )
    view = await _view(call, name)
    kept = {key: value for key, value in view.record.labels.items() if key not in remove}
    return await _edit(
        call, view, msgspec.structs.replace(view.record, labels={**kept, **labels}), "node.label"
    )


async def cordon(call: Call, name: str) -> Mutation:
    """Keep new pods away from a node; those that run there keep running.

    Raises:
        NotFound: no such node. Locked: somebody holds its mutation lock.
    """
    view = await _view(call, name)
    record = msgspec.structs.replace(view.record, cordoned=True, cordon_reason=call.reason)
    if view.record.cordoned and not call.reason:
        record = view.record
    return await _edit(call, view, record, "node.cordon")


async def uncordon(call: Call, name: str) -> Mutation:
    """Let pods onto a node again.

    Raises:
        NotFound: no such node. Locked: somebody holds its mutation lock.
    """
    view = await _view(call, name)
    record = msgspec.structs.replace(view.record, cordoned=False, cordon_reason="")
    return await _edit(call, view, record, "node.uncordon")


async def _view(call: Call, name: str) -> NodeView:
    return await NodeStore(call.client, call.keys).get(valid_segment(name, "node"))


async def _edit(call: Call, view: NodeView, record: Node, action: str) -> Mutation:
    before, after = _difference(view.record, record)
    if not after:
        return Mutation(Change(KIND, view.name, view.name, action))
    held = await guard(call, KIND, view.name, f"node {view.name!r}")
    change = Change(
        KIND,
        view.name,
        view.name,
        action,
        before={**before, **held.before},
        after={**after, **held.after},
        destructive=bool(held.before),
    )
    write = NodeStore(call.client, call.keys).write(view, record)
    return Mutation(change, (await registered(call), *held.operations, write))


def _difference(old: Node, new: Node) -> tuple[dict[str, Scalar], dict[str, Scalar]]:
    before: dict[str, Scalar] = {}
    after: dict[str, Scalar] = {}
    for key in sorted({*old.labels, *new.labels}):
        if old.labels.get(key) != new.labels.get(key):
            before[f"labels.{key}"] = old.labels.get(key, "")
            after[f"labels.{key}"] = new.labels.get(key, "")
    for name in ("cordoned", "cordon_reason"):
        if getattr(old, name) != getattr(new, name):
            before[name], after[name] = getattr(old, name), getattr(new, name)
    return before, after
