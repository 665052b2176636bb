"""What people ask of replication controllers; called by the command line and over HTTP alike.

Each function validates, reads, and returns a ``Mutation`` that has written nothing yet; callers show
its change and pass it to ``farmd.mutation.commit``. What must never break: every edit names the
record's version and respects its mutation lock (R13), the membership of a controller that a rollout
manages is left alone (R14), a manifest is set again by whoever refers to it (R24), and nothing
deletes a controller that may still have pods.
"""

from __future__ import annotations

import msgspec

from farmd.mutation import Call, Change, Guard, Mutation, guard, registered
from farmd.mutation import commit as write
from farmd.replication import difference
from farmd.replication.spec import ControllerSpec, check_count, record
from store import manifests
from store.entry import Stored
from store.errors import Conflict, InputInvalid, NotFound, NotRegistered, RecordInvalid
from store.keys import is_sentinel
from store.manifests import Manifest
from store.operations import Operation
from store.rcs import KIND, ReplicationController, ReplicationControllerStore

Controller = Stored[ReplicationController]


async def create(call: Call, spec: ControllerSpec) -> Mutation:
    """Create a controller under a random id; if an equal one bears the name there is nothing to do.

    Raises:
        Conflict: another one bears the name; the message and ``fields["differs"]`` name the fields.
        InputInvalid: the spec says no ``replicas``.
        NotRegistered: there is no cluster.
    """
    store = ReplicationControllerStore(call.client, call.keys)
    body = manifests.canonical(spec.pod)
    sha = manifests.digest(body)
    wanted = record(spec, call.ids.new(), sha)
    cluster = await registered(call)
    existing, name_index = await store.named(spec.name)
    if existing is not None:
        return await _same(call, existing, wanted, spec.pod)
    change = Change(
        KIND,
        wanted.id,
        wanted.name,
        "rc.create",
        after={"replicas": wanted.replicas_desired, **({"disabled": True} if wanted.disabled else {})},
        manifest=sha,
    )
    operations = (cluster, manifests.ensure(call.keys, body), *store.create(wanted, name_index=name_index))
    return Mutation(change, operations)


async def commit_create(call: Call, mutation: Mutation, spec: ControllerSpec) -> Mutation:
    """Commit a creation; if somebody else created an equal one meanwhile, that is as good.

    Raises:
        Conflict: somebody created a different one meanwhile.
    """
    try:
        await write(call, mutation)
    except Conflict:
        again = await create(call, spec)
        if again.needed:
            raise
        return again
    return mutation


async def set_replicas(call: Call, target: str, replicas: int) -> Mutation:
    """Set the desired count of the controller with that name, id or beginning of an id.

    Raises:
        InputInvalid: a negative or absurd count.
        Conflict: a rollout manages it (R14), it is being deleted, or it is locked (R13).
    """
    check_count(replicas, "replicas")
    stored, held = await _editable(call, target, membership=True)
    wanted = msgspec.structs.replace(stored.record, replicas_desired=replicas)
    return _edit(
        call, stored, wanted, held, "rc.set-replicas", destructive=replicas < stored.record.replicas_desired
    )


async def enable(call: Call, target: str) -> Mutation:
    """Let the farms work on a controller again.

    Raises:
        Conflict: it is being deleted, or locked (R13).
    """
    stored, held = await _editable(call, target)
    return _edit(call, stored, msgspec.structs.replace(stored.record, disabled=False), held, "rc.enable")


async def disable(call: Call, target: str) -> Mutation:
    """Keep the farms from adding and removing pods; those that run keep running.

    Raises:
        Conflict: it is being deleted, or locked (R13).
    """
    stored, held = await _editable(call, target)
    return _edit(call, stored, msgspec.structs.replace(stored.record, disabled=True), held, "rc.disable")


async def update(call: Call, spec: ControllerSpec, *, now: bool) -> Mutation:
    """Change an existing controller to what its file says; pods are replaced in place.

    The worker keeps at most ``max_unavailable`` of them down at a time.

    Raises:
        InputInvalid: without ``now``, since there are no gated rollouts yet; or another pod id.
        NotFound: no controller bears the name.
        Conflict: a rollout manages it (R14), it is being deleted, or it is locked (R13).
    """
    if not now:
        raise InputInvalid(
            "rc update: gated rollouts are not there yet, expected --now (replace in place)",
            field="now",
            hint="--now has at most max_unavailable pods down at a time",
        )
    stored, held = await _editable(call, spec.name, by_name=True)
    body = manifests.canonical(spec.pod)
    wanted = record(spec, stored.record.id, manifests.digest(body), stored.record)
    before = stored.record
    replaces = wanted.manifest != before.manifest
    if replaces or wanted.replicas_desired != before.replicas_desired:
        _refuse_managed(before)
    if wanted.pod_id != before.pod_id:
        raise InputInvalid(
            f"{spec.name}: pod.id: found {wanted.pod_id!r}, expected {before.pod_id!r}, which its pods bear",
            field="pod.id",
        )
    return _edit(
        call,
        stored,
        wanted,
        held,
        "rc.update",
        destructive=replaces or wanted.replicas_desired < before.replicas_desired,
        details=await _manifest_lines(call, before.manifest, spec.pod) if replaces else (),
        extra=(manifests.ensure(call.keys, body),),
    )


async def delete(call: Call, target: str, *, cascade: bool) -> Mutation:
    """Delete a controller that wants no pods and has none; with ``cascade`` set it on its way there.

    A cascading delete first sets the count to 0 and marks the record; the farms then remove the pods,
    and ``delete`` once more takes the record away (``farmd.replication.waiting.deletion``).

    Raises:
        Conflict: pods remain and ``cascade`` is not set; a rollout manages it; it is locked.
    """
    stored = await ReplicationControllerStore(call.client, call.keys).find(target)
    held = await _guard(call, stored)
    rc = stored.record
    _refuse_managed(rc)
    pods = await pods_left(call, rc.id)
    if rc.replicas_desired == 0 and not pods:
        change = Change(
            KIND,
            rc.id,
            rc.name,
            "rc.delete",
            before={"exists": True, **held.before},
            after={"exists": False, **held.after},
            destructive=True,
        )
        store = ReplicationControllerStore(call.client, call.keys)
        return Mutation(change, (*held.operations, *store.delete(stored)))
    if not cascade:
        raise Conflict(
            f"rc {rc.name!r} wants {rc.replicas_desired} replicas and has {pods} pods, expected 0 and 0",
            id=rc.id,
            pods=pods,
            hint="scale it to 0 first, or let --cascade remove the pods",
        )
    wanted = msgspec.structs.replace(rc, replicas_desired=0, disabled=False, deleting=True)
    return _edit(
        call,
        stored,
        wanted,
        held,
        "rc.mark-deleted",
        destructive=True,
        details=(f"removes {pods} pods, then the controller",),
    )


async def pods_left(call: Call, rc_id: str) -> int:
    """How many pods a controller has now, by a read that no stale server answers (R15).

    Raises:
        NotRegistered: nothing was found, and no sentinel proves that there is nothing (R20).
    """
    page = await call.client.keys(call.keys.pods(rc_id), mode="consistent")
    if not page.items:
        sentinel = call.keys.sentinel(call.keys.tree("pods"))
        if await call.client.read(sentinel, mode="consistent") is None:
            raise NotRegistered(f"pods of {rc_id}: found no sentinel, expected {sentinel}", key=sentinel)
    return sum(not is_sentinel(key) for key in page.items)


def _edit(
    call: Call,
    stored: Controller,
    wanted: ReplicationController,
    held: Guard,
    action: str,
    *,
    destructive: bool = False,
    details: tuple[str, ...] = (),
    extra: tuple[Operation, ...] = (),
) -> Mutation:
    before, after = difference.fields(stored.record, wanted)
    if wanted.deleting and not stored.record.deleting:
        before, after = {**before, "deleting": False}, {**after, "deleting": True}
    rc = stored.record
    manifest = wanted.manifest if wanted.manifest != rc.manifest else ""
    change = Change(
        KIND,
        rc.id,
        rc.name,
        action,
        before={**before, **held.before},
        after={**after, **held.after},
        details=details,
        destructive=destructive or bool(held.before),
        manifest=manifest,
    )
    if wanted == rc:
        return Mutation(change)
    replace = ReplicationControllerStore(call.client, call.keys).replace(stored, wanted)
    return Mutation(change, (*held.operations, *extra, replace))


async def _editable(
    call: Call, target: str, *, membership: bool = False, by_name: bool = False
) -> tuple[Controller, Guard]:
    store = ReplicationControllerStore(call.client, call.keys)
    if by_name:
        named, _ = await store.named(target)
        if named is None:
            raise NotFound(
                f"rc {target!r} does not exist", kind=KIND, id=target, hint="farmctl rc create makes it"
            )
        stored = named
    else:
        stored = await store.find(target)
    if membership:
        _refuse_managed(stored.record)
    if stored.record.deleting:
        raise Conflict(
            f"rc {stored.record.name!r} is being deleted",
            id=stored.record.id,
            hint=f"finish with farmctl rc delete --cascade {stored.record.name}",
        )
    return stored, await _guard(call, stored)


async def _guard(call: Call, stored: Controller) -> Guard:
    return await guard(call, KIND, stored.record.id, f"rc {stored.record.name!r}")


def _refuse_managed(rc: ReplicationController) -> None:
    if rc.managed_by:
        raise Conflict(
            f"rc {rc.name!r} is managed by {rc.managed_by}, which alone changes its count and manifest",
            id=rc.id,
            managed_by=rc.managed_by,
            hint="change or end the rollout instead",
        )


async def _same(call: Call, existing: Controller, wanted: ReplicationController, pod: Manifest) -> Mutation:
    before, after = difference.fields(existing.record, wanted)
    if not before and not existing.record.deleting:
        rc = existing.record
        return Mutation(Change(KIND, rc.id, rc.name, "rc.create"))
    if existing.record.deleting:
        raise Conflict(
            f"rc {wanted.name!r} is being deleted", id=existing.record.id, hint="wait until it is gone"
        )
    names = [f"{name} ({before[name]} -> {after[name]})" for name in after if name != "pod"]
    if "pod" in after:
        names += [
            line.partition(":")[0] for line in await _manifest_lines(call, existing.record.manifest, pod)
        ]
    raise Conflict(
        f"rc {wanted.name!r} exists and differs: {', '.join(names)}",
        id=existing.record.id,
        differs=list(after),
        hint="farmctl rc update -f FILE --now changes it, farmctl rc set-replicas its count",
    )


async def _manifest_lines(call: Call, sha: str, pod: Manifest) -> tuple[str, ...]:
    try:
        before = await manifests.read(call.client, call.keys, sha)
    except (NotFound, RecordInvalid):
        before = None
    return tuple(difference.manifest_lines(before, pod))
