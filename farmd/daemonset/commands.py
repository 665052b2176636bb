"""What people ask of daemon sets; called by the command line and over HTTP alike.

Each function validates, reads, and returns a ``Mutation`` that has written nothing yet; callers show
its change and pass it to ``farmd.commands.mutation.commit``. What must never break: every edit names the
record's version and respects its mutation lock (R13), a manifest is set again by whoever refers to it
(R24), and nothing deletes a daemon set that may still have pods.
"""

from __future__ import annotations

import msgspec

from farmd.commands.edits import Family, body_lost, commit_creation, manifest_lines, pods_left, processes_left
from farmd.commands.mutation import Call, Change, Mutation, Scalar, registered
from farmd.daemonset.spec import DaemonSetSpec, record
from store import manifests
from store.daemonsets import KIND, DaemonSet, DaemonSetStore
from store.entry import Stored
from store.errors import Conflict, InputInvalid

NOUN = "daemonset"
_UPDATE_HINT = "farmctl daemonset update -f FILE --now changes it"


async def create(call: Call, spec: DaemonSetSpec) -> Mutation:
    """Create a daemon set under a random id; if an equal one bears the name there is nothing to do.

    Raises:
        Conflict: another one bears the name; the message and ``fields["differs"]`` name the fields.
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
    after: dict[str, Scalar] = {"node_selector": wanted.node_selector or "every node"}
    if wanted.disabled:
        after["disabled"] = True
    change = Change(KIND, wanted.id, wanted.name, f"{NOUN}.create", after=after, manifest=sha)
    operations = (
        cluster,
        manifests.ensure(call.keys, body),
        *family.records.create(wanted, name_index=name_index),
    )
    return Mutation(change, operations)


async def commit_create(call: Call, mutation: Mutation, spec: DaemonSetSpec) -> Mutation:
    """Commit a creation; if somebody else created an equal one meanwhile, that is as good.

    Raises:
        Conflict: somebody created a different one meanwhile.
    """
    return await commit_creation(call, mutation, lambda: create(call, spec))


async def enable(call: Call, target: str) -> Mutation:
    """Let the farms work on a daemon set again.

    Raises:
        Conflict: it is being deleted, or locked (R13).
    """
    stored = await _editable(call, target)
    return await _edit(call, stored, msgspec.structs.replace(stored.record, disabled=False), "enable")


async def disable(call: Call, target: str) -> Mutation:
    """Keep the farms from adding and removing pods; those that run keep running.

    Raises:
        Conflict: it is being deleted, or locked (R13).
    """
    stored = await _editable(call, target)
    return await _edit(call, stored, msgspec.structs.replace(stored.record, disabled=True), "disable")


async def update(call: Call, spec: DaemonSetSpec, *, now: bool) -> Mutation:
    """Change an existing daemon set to what its file says; pods are replaced in place.

    The worker keeps ``min_health`` pods healthy and changes at most ``rate`` nodes a minute.

    Raises:
        InputInvalid: without ``now``, since there are no gated rollouts yet; or another pod id.
        NotFound: no daemon set bears the name.
        Conflict: it is being deleted, or locked (R13).
    """
    if not now:
        raise InputInvalid(
            "daemonset update: gated rollouts are not there yet, expected --now (replace in place)",
            field="now",
            hint="--now keeps min_health pods healthy and changes at most rate nodes a minute",
        )
    stored = await _editable(call, spec.name, by_name=True)
    body, before = manifests.canonical(spec.pod), stored.record
    wanted = record(spec, before.id, manifests.digest(body), before)
    if wanted.pod_id != before.pod_id:
        raise InputInvalid(
            f"{spec.name}: pod.id: found {wanted.pod_id!r}, expected {before.pod_id!r}, which its pods bear",
            field="pod.id",
        )
    replaces = wanted.manifest != before.manifest
    lost = not replaces and await body_lost(call, before.manifest)
    details = await manifest_lines(call, before.manifest, spec.pod) if replaces else ()
    details = ("writes its manifest again, which is missing or corrupt",) if lost else details
    held = await family_of(call).guard(call, before)
    return family_of(call).edit(
        stored,
        wanted,
        held,
        "update",
        destructive=replaces or wanted.node_selector != before.node_selector,
        details=details,
        extra=(manifests.ensure(call.keys, body),),
        anew=lost,
    )


async def delete(call: Call, target: str, *, cascade: bool) -> Mutation:
    """Delete a daemon set that wants no pods and has none; otherwise mark it for its worker to delete.

    The worker removes the pods, and the record once their processes are gone (``farmd.work.deletion``).
    One that has pods needs ``cascade``.

    Raises:
        Conflict: pods remain and ``cascade`` is not set; it is locked.
    """
    family = family_of(call)
    stored = await family.find(target)
    daemonset = stored.record
    held = await family.guard(call, daemonset)
    pods = await pods_left(call, daemonset.id)
    if not (pods or daemonset.wants_pods or await processes_left(call, daemonset.id)):
        return await family.removal(call, stored, held)
    if pods and not cascade and not daemonset.deleting:
        raise Conflict(
            f"daemonset {daemonset.name!r} has {pods} pods, expected 0",
            id=daemonset.id,
            pods=pods,
            hint="let --cascade remove the pods",
        )
    wanted = msgspec.structs.replace(daemonset, disabled=False, deleting=True)
    details = (f"removes {pods} pods, then the daemon set",)
    return family.edit(stored, wanted, held, "mark-deleted", destructive=True, details=details)


def family_of(call: Call) -> Family[DaemonSet]:
    """The words and records of daemon sets, for edits of one."""
    return Family(KIND, NOUN, DaemonSetStore(call.client, call.keys))


async def _editable(call: Call, target: str, *, by_name: bool = False) -> Stored[DaemonSet]:
    family = family_of(call)
    stored = await family.find(target, by_name=by_name)
    family.refuse_deleting(stored.record)
    return stored


async def _edit(call: Call, stored: Stored[DaemonSet], wanted: DaemonSet, action: str) -> Mutation:
    family = family_of(call)
    return family.edit(stored, wanted, await family.guard(call, stored.record), action)
