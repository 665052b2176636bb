"""Takes another cluster for the one that a name stands for, at a person's word."""

from __future__ import annotations

import msgspec

from farmd.commands.mutation import Call, Change, Mutation
from farmd.kubernetes.identity import uid_of
from farmd.kubernetes.transport import REQUEST_SECONDS, KubernetesTransport
from store import codec, operations
from store.errors import AccessDenied
from store.farms import PinnedCluster
from store.keys import valid_name


async def accept(call: Call, transport: KubernetesTransport, name: str) -> Mutation:
    """Pin the cluster behind ``transport`` under a name; farms go on there within seconds.

    Raises:
        AccessDenied: its identity may not be read. InputInvalid: no such name is possible.
    """
    key = call.keys.other_cluster(valid_name(name))
    if not (uid := await uid_of(transport, REQUEST_SECONDS)):
        raise AccessDenied(
            f"{transport.access.url}: the uid of the namespace kube-system cannot be read",
            hint="the user needs the right to get that namespace",
        )
    entry = await call.client.read(key, mode="consistent")
    before = PinnedCluster() if entry is None else codec.decode(PinnedCluster, entry.value, key)
    change = Change(
        "kubernetes",
        name,
        name,
        "kubernetes.accept",
        before={"uid": before.uid},
        after={"uid": uid},
        details=(f"it answers at {transport.access.url}",),
        destructive=True,
        object=f"kubernetes/{name}",
    )
    if uid == before.uid:
        return Mutation(change)
    after = msgspec.structs.replace(before, uid=uid, by=call.actor, since=call.clock.now())
    value = codec.encode(after) if entry is None else codec.rewrite(after, entry.value)
    return Mutation(change, (operations.cas(key, value, 0 if entry is None else entry.modify_index),))
