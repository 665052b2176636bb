"""``job stop | resume | delete`` in Kubernetes: a change is of the very job that was read, by its uid.

What must never break: the audit record is written before the change (R16), because no transaction holds both.
"""

from __future__ import annotations

from typing import Any

from farmd.commands.mutation import Call, Change, Mutation, commit, registered
from farmd.kubernetes.kind import KIND
from farmd.kubernetes.people import view
from farmd.kubernetes.people.found import FoundJob, Jobs
from farmd.kubernetes.people.refusals import refusals
from store.errors import Conflict


async def suspend(call: Call, found: FoundJob, verb: str, *, wanted: bool) -> Mutation:
    """The change that takes a job's members away (``wanted``), or lets it go on.

    Raises:
        Conflict: it is being deleted, or already over.
    """
    if found.job.metadata.terminating:
        raise Conflict(f"job {found.name!r} is being deleted", id=found.job.metadata.uid)
    if outcome := view.run(found).outcome:
        raise Conflict(f"job {found.name!r} is over: {outcome}", id=found.job.metadata.uid)
    before = view.suspended(found)
    if before == wanted:
        return Mutation(_change(found, verb))
    shown = {"before": {"suspend": before}, "after": {"suspend": wanted}}
    return Mutation(_change(found, verb, **shown, destructive=wanted), (await registered(call),))


async def delete(call: Call, found: FoundJob) -> Mutation:
    """The deletion of a job, whose members go first; one that is being deleted is only waited for."""
    if found.job.metadata.terminating:
        return Mutation(_change(found, "mark-deleted"))
    return Mutation(_change(found, "mark-deleted", destructive=True), (await registered(call),))


async def write(call: Call, jobs: Jobs, found: FoundJob, mutation: Mutation) -> None:
    """Write the audit record, then the change.

    Raises:
        StoreError: the API server refuses it, or gave no answer; the job is another one by now.
    """
    await commit(call, mutation)
    meta, objects = found.job.metadata, jobs.of(found.kind)
    with refusals(f"job/{found.name}"):
        if "suspend" not in mutation.change.after:
            await objects.delete(meta.namespace, meta.name, uid=meta.uid, cascade="Foreground")
            return
        policy = {"suspend": mutation.change.after["suspend"]}
        patch = {"metadata": {"uid": meta.uid}, "spec": {"runPolicy": policy}}
        await objects.patch(meta.namespace, meta.name, patch)


def _change(found: FoundJob, verb: str, **more: Any) -> Change:
    return Change(KIND, found.job.metadata.uid, found.name, f"job.{verb}", object=f"job/{found.name}", **more)
