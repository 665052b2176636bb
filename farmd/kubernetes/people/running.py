"""``job run`` in Kubernetes: a document becomes a job under its name, once.

What must never break: the API server judges everything in a dry run before anything is created; a job that
has the name is never changed; the audit record is written before the job.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from farmd.commands.mutation import Call, Change, Mutation, commit, registered
from farmd.jobs.model import Slot
from farmd.jobs.resources import bodies
from farmd.jobs.resources.kindfile import JobKind
from farmd.kubernetes.client import DRY_RUN
from farmd.kubernetes.errors import AdmissionFailed, AlreadyExists, Denied, Forbidden, Invalid
from farmd.kubernetes.errors import Conflict as Stale
from farmd.kubernetes.kind import KIND
from farmd.kubernetes.people.files import Document
from farmd.kubernetes.people.found import Jobs
from farmd.kubernetes.people.refusals import refusal, refusals
from farmd.kubernetes.unit import JobObject
from store.errors import Conflict
from store.words import listed

MANAGER = "farmctl"
TRIES = 5
_UNKNOWN_FIELD = "strict decoding error"
_STRICT = (("fieldManager", MANAGER), ("fieldValidation", "Strict"))


async def prepare(call: Call, jobs: Jobs, document: Document) -> Mutation:
    """The creation of a document's job, if none has its name; nothing to do if an equal one has it.

    Raises:
        Conflict: another job has the name, or one that is being deleted. InputInvalid, AccessDenied: the API
            server refuses the job.
    """
    with refusals(document.source):
        existing = await jobs.of(document.kind).get(document.namespace, document.job)
        if existing is not None:
            return await _same(jobs, document)
        await jobs.of(document.kind).create(document.namespace, document.body, params=(*DRY_RUN, *_STRICT))
    await _judge_pods(jobs, document)
    told = {"kind": document.kind.kind, "slots": document.read().job.size}
    change = _change(document, "create", after=told, details=("the API server accepts it",))
    return Mutation(change, (await registered(call),))


async def _judge_pods(jobs: Jobs, document: Document) -> None:
    """Have the API server judge a pod of each type in a dry run: of a job it keeps templates as they are.

    Raises:
        InputInvalid: it refuses one. A person who may not create pods, and a full quota, prove nothing.
    """
    read = document.read()
    kind = JobKind(document.kind, lambda *_: None, jobs.of(document.kind).get)
    for each in (each for each in read.job.types if each.replicas):
        body = bodies.pod_body(kind, read, Slot(each.name, 0), 0)
        del body["metadata"]["ownerReferences"]  # the job has no uid yet
        where = f"{document.source}: spec.{document.kind.replica_specs}.{each.name}.template"
        try:
            await jobs.pods.create(document.namespace, body, params=(*DRY_RUN, *_STRICT))
        except (Invalid, Denied) as error:
            if error.status == 422 or _UNKNOWN_FIELD in error.text:
                raise refusal(error, where) from error
        except (Forbidden, AlreadyExists, AdmissionFailed):
            continue


async def create(call: Call, jobs: Jobs, document: Document, mutation: Mutation) -> None:
    """Write the audit record, and create the job; one that somebody else created meanwhile must be equal.

    Raises:
        Conflict: it is another one. StoreError: the API server refuses it, or gave no answer.
    """
    await commit(call, mutation)
    with refusals(document.source):
        try:
            await jobs.of(document.kind).create(document.namespace, document.body, params=_STRICT)
        except AlreadyExists:
            await _same(jobs, document)


async def _same(jobs: Jobs, document: Document) -> Mutation:
    """Nothing to do, if the job that has the name is what the document asks for."""
    uid, differs = await _compared(jobs, document)
    if differs:
        raise Conflict(
            f"job {document.name!r} exists and differs: {listed(differs)}",
            differs=differs,
            hint="run it under another name (--name), or delete the one that is there first",
        )
    return Mutation(_change(document, "create", uid=uid))


async def _compared(jobs: Jobs, document: Document, tries: int = TRIES) -> tuple[str, list[str]]:
    """The uid of the job that has the name, and the fields in which it differs from the document."""
    existing = await jobs.of(document.kind).get(document.namespace, document.job)
    if existing is None or existing.metadata.terminating:
        raise Conflict(f"job {document.name!r} is being deleted", hint="wait until it is gone")
    try:
        return existing.metadata.uid, await _differences(jobs, document, existing)
    except Stale:  # its farm wrote its status meanwhile
        if tries == 1:
            raise
    return await _compared(jobs, document, tries - 1)


async def _differences(jobs: Jobs, document: Document, existing: JobObject) -> list[str]:
    """The fields in which a job differs from what the document would make of it. The API server says what
    that is, defaults included; the document is compared as it is where the server would refuse the change.
    """
    present = msgspec.json.decode(existing.spec)
    version = {"uid": existing.metadata.uid, "resourceVersion": existing.metadata.resource_version}
    body = {**document.body, "metadata": {**document.body["metadata"], **version}}
    try:
        wanted = msgspec.json.decode(
            (await jobs.of(document.kind).replaced(*_key(document), body, _STRICT)).spec
        )
    except Invalid:
        wanted = document.spec
    if "suspend" not in (document.spec.get("runPolicy") or {}):  # people stop and resume it
        present, wanted = _without_suspend(present), _without_suspend(wanted)
    found = list(_fields("spec", present, wanted))
    labels = document.body["metadata"].get("labels") or {}
    return found + [
        f"metadata.labels.{name}"
        for name, value in labels.items()
        if existing.metadata.labels.get(name) != value
    ]


def _key(document: Document) -> tuple[str, str]:
    return document.namespace, document.job


def _without_suspend(spec: Mapping[str, Any]) -> dict[str, Any]:
    policy = spec.get("runPolicy")
    if isinstance(policy, dict):
        policy = {name: each for name, each in policy.items() if name != "suspend"}
    rest = {name: each for name, each in spec.items() if name != "runPolicy"}
    return {**rest, "runPolicy": policy} if policy else rest


def _fields(path: str, before: Any, after: Any) -> Iterator[str]:
    """The paths of what differs, as deep as both have the same form."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in dict.fromkeys([*before, *after]):
            yield from _fields(f"{path}.{name}", before.get(name), after.get(name))
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for place, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from _fields(f"{path}[{place}]", one, other)
    elif before != after:
        yield path


def _change(document: Document, verb: str, *, uid: str = "", **more: Any) -> Change:
    return Change(
        KIND, uid or document.name, document.name, f"job.{verb}", object=f"job/{document.name}", **more
    )
