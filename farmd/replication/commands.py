"""What people ask of replication controllers; called by the command line and over HTTP alike.

Each function validates, reads, and returns a ``Mutation`` that has written nothing yet; callers show
its change and pass it to ``farmd.commands.mutation.commit``. What must never break: every edit names the
record's version and respects its mutation lock (R13), the membership of a controller that a rollout
manages is left alone (R14), a manifest is set again by whoever refers to it (R24), and nothing
deletes a controller that may still have pods.
"""

from __future__ import annotations

import msgspec

from farmd.commands.edits import Family, body_lost, commit_creation, manifest_lines, pods_left, processes_left
from farmd.commands.mutation import Call, Change, Guard, Mutation, registered
from farmd.commands.specs import check_count
from farmd.replication.spec import ControllerSpec, record
from store import manifests
from store.entry import Stored
from store.errors import Conflict, InputInvalid
from store.rcs import KIND, ReplicationController, ReplicationControllerStore

Controller = Stored[ReplicationController]

_UPDATE_HINT = "farmctl rc update -f FILE --now changes it, farmctl rc set-replicas its count"


async def create(call: Call, spec: ControllerSpec) -> Mutation:
    """Create a controller under a random id; if an equal one bears the name there is nothing to do.

    Raises:
        Conflict: another one bears the name; the message and ``fields["differs"]`` name the fields.
        InputInvalid: the spec says no ``replicas``.
        NotRegistered: there is no cluster.
    """
    family = family_of(call)
    body = manifests.canonical(spec.pod)
    sha = manifests.digest(body)
    wanted = record(spec, call.ids.new(), sha)
    cluster = await registered(call)
    existing, name_index = await family.records.named(spec.name)
    if existing is not None:
        return await family.same(call, existing, wanted, spec.pod, _UPDATE_HINT)
    change = Change(
        KIND,
        wanted.id,
        wanted.name,
        "rc.create",
        after={"replicas": wanted.replicas_desired, **({"disabled": True} if wanted.disabled else {})},
        manifest=sha,
    )
    creation = family.records.create(wanted, name_index=name_index)
    return Mutation(change, (cluster, manifests.ensure(call.keys, body), *creation))


async def commit_create(call: Call, mutation: Mutation, spec: ControllerSpec) -> Mutation:
    """Commit a creation; if somebody else created an equal one meanwhile, that is as good.

    Raises:
        Conflict: somebody created a different one meanwhile.
    """
    return await commit_creation(call, mutation, lambda: create(call, spec))


async def set_replicas(call: Call, target: str, replicas: int) -> Mutation:
    """Set the desired count of the controller with that name, id or beginning of an id.

    Raises:
        InputInvalid: a negative or absurd count.
        Conflict: a rollout manages it (R14), it is being deleted, or it is locked (R13).
    """
    check_count(replicas, "replicas")
    stored, held = await _editable(call, target, membership=True)
    wanted = msgspec.structs.replace(stored.record, replicas_desired=replicas)
    fewer = replicas < stored.record.replicas_desired
    return family_of(call).edit(stored, wanted, held, "set-replicas", destructive=fewer)


async def enable(call: Call, target: str) -> Mutation:
    """Let the farms work on a controller again.

    Raises:
        Conflict: it is being deleted, or locked (R13).
    """
    stored, held = await _editable(call, target)
    wanted = msgspec.structs.replace(stored.record, disabled=False)
    return family_of(call).edit(stored, wanted, held, "enable")


async def disable(call: Call, target: str) -> Mutation:
    """Keep the farms from adding and removing pods; those that run keep running.

    Raises:
        Conflict: it is being deleted, or locked (R13).
    """
    stored, held = await _editable(call, target)
    wanted = msgspec.structs.replace(stored.record, disabled=True)
    return family_of(call).edit(stored, wanted, held, "disable")


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
    lost = not replaces and await body_lost(call, before.manifest)
    details = await manifest_lines(call, before.manifest, spec.pod) if replaces else ()
    details = ("writes its manifest again, which is missing or corrupt",) if lost else details
    if replaces or wanted.replicas_desired != before.replicas_desired:
        _refuse_managed(before)
    if wanted.pod_id != before.pod_id:
        raise InputInvalid(
            f"{spec.name}: pod.id: found {wanted.pod_id!r}, expected {before.pod_id!r}, which its pods bear",
            field="pod.id",
        )
    return family_of(call).edit(
        stored,
        wanted,
        held,
        "update",
        destructive=replaces or wanted.replicas_desired < before.replicas_desired,
        details=details,
        extra=(manifests.ensure(call.keys, body),),
        anew=lost,
    )


async def delete(call: Call, target: str, *, cascade: bool) -> Mutation:
    """Delete a controller that wants no pods and has none; otherwise mark it for its worker to delete.

    The mark sets the count to 0; the worker removes the pods, and the record once their processes are gone
    (``farmd.work.deletion``). One that wants or has pods needs ``cascade``.

    Raises:
        Conflict: pods remain and ``cascade`` is not set; a rollout manages it; it is locked.
    """
    family = family_of(call)
    stored = await family.find(target)
    rc = stored.record
    held = await family.guard(call, rc)
    _refuse_managed(rc)
    pods = await pods_left(call, rc.id)
    left = bool(rc.replicas_desired or pods)
    if not left and not await processes_left(call, rc.id):
        return await family.removal(call, stored, held)
    if left and not cascade and not rc.deleting:
        raise Conflict(
            f"rc {rc.name!r} wants {rc.replicas_desired} replicas and has {pods} pods, expected 0 and 0",
            id=rc.id,
            pods=pods,
            hint="scale it to 0 first, or let --cascade remove the pods",
        )
    wanted = msgspec.structs.replace(rc, replicas_desired=0, disabled=False, deleting=True)
    details = (f"removes {pods} pods, then the controller",)
    return family.edit(stored, wanted, held, "mark-deleted", destructive=True, details=details)


def family_of(call: Call) -> Family[ReplicationController]:
    """The words and records of controllers, for edits of one."""
    return Family(KIND, "rc", ReplicationControllerStore(call.client, call.keys))


async def _editable(
    call: Call, target: str, *, membership: bool = False, by_name: bool = False
) -> tuple[Controller, Guard]:
    family = family_of(call)
    stored = await family.find(target, by_name=by_name)
    if membership:
        _refuse_managed(stored.record)
    family.refuse_deleting(stored.record)
    return stored, await family.guard(call, stored.record)


def _refuse_managed(rc: ReplicationController) -> None:
    if rc.managed_by:
        raise Conflict(
            f"rc {rc.name!r} is managed by {rc.managed_by}, which alone changes its count and manifest",
            id=rc.id,
            managed_by=rc.managed_by,
            hint="change or end the rollout instead",
        )
