"""The commands on jobs in Kubernetes: files are checked, changed and awaited."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from msgspec.structs import replace as replaced

from farmd.commands import waiting
from farmd.commands.mutation import Call, Change, Mutation, commit, registered
from farmd.commands.waiting import Look, Report
from farmd.jobs import parameters
from farmd.jobs.facts import Slot
from farmd.jobs.waiting import STOP, JobView, over
from farmd.kubernetes.client import DRY_RUN
from farmd.kubernetes.commands import refusal, refusals
from farmd.kubernetes.errors import AdmissionFailed, AlreadyExists, Denied, Forbidden, Invalid
from farmd.kubernetes.errors import Conflict as Stale
from farmd.kubernetes.jobs import bodies, resource, view
from farmd.kubernetes.jobs.bodies import containers, environment, first
from farmd.kubernetes.jobs.kind import KIND
from farmd.kubernetes.jobs.kindfile import JobKind, KindFile, kinds
from farmd.kubernetes.jobs.unit import JobObject
from farmd.kubernetes.jobs.view import FoundJob, Jobs, told
from farmd.runtime.errors import WaitTimeout
from store import mistakes
from store.errors import Conflict, InputInvalid, NotFound, refuse
from store.mistakes import nearest, shown
from store.words import count_of, listed

# ``job stop | resume | delete`` in Kubernetes: a change is of the very job that was read, by its uid.
#
# What must never break: the audit record is written before the change (R16), because no transaction holds
# both.


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


# Files with jobs for Kubernetes: each document is checked here before the API server sees it.
#
# Each refusal is one line that names the file and the field, what was found and what was expected. What
# only the API server's schema knows, the server says.

_TOP = ("apiVersion", "kind", "metadata", "spec")
# What the API server writes, and an exported object has.
_OF_THE_SERVER = ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "selfLink")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_VARIABLE = re.compile(r"\$[({]?(FARMD_[A-Z_]+)")
_TEXT = frozenset(
    {"name", "namespace", "value", "annotations", "nodeSelector", "matchLabels", "image", "workingDir"}
)


@dataclass(frozen=True, slots=True)
class Document:
    """One job of a file: its kind, the object as the API server gets it, and where it stands."""

    kind: KindFile
    body: Mapping[str, Any]
    source: str
    namespace: str

    @property
    def job(self) -> str:
        """Its name alone."""
        return str(self.body["metadata"]["name"])

    @property
    def name(self) -> str:
        """As people write it: ``ml/bert``."""
        return f"{self.namespace}/{self.job}"

    @property
    def spec(self) -> Mapping[str, Any]:
        """What is asked."""
        found: Mapping[str, Any] = self.body["spec"]
        return found

    def read(self) -> resource.Resource:
        """The job as farms read it."""
        return resource.read(self.kind, self.body)

    def within(self, namespace: str) -> Document:
        """The same job; in this namespace, if it names none."""
        own = self.namespace or namespace
        meta = {**self.body["metadata"], "namespace": own}
        return replace(self, namespace=own, body={**self.body, "metadata": meta})

    def renamed(self, name: str) -> Document:
        """The same job under another name.

        Raises:
            InputInvalid: no job can have it.
        """
        body = {**self.body, "metadata": {**self.body["metadata"], "name": name}}
        return _checked(replace(self, body=body))


def parse(data: Mapping[str, Any], source: str, given: Mapping[str, str], namespace: str = "") -> Document:
    """One document; ``given`` are values of its parameters, ``namespace`` is that which a person named.

    Raises:
        InputInvalid: it is no job that the API server could take.
    """
    kind = _kind(data, source)
    filled = parameters.filled(data, given, source, _TEXT)
    for name in filled:
        if name not in (*_TOP, "status"):
            raise InputInvalid(f"{source}: {name}: unknown key{nearest(name, list(_TOP))}", field=name)
    for name in ("metadata", "spec"):
        if not isinstance(filled.get(name), dict):
            refuse(f"{source}: {name}", shown(filled.get(name)), "a mapping")
    meta = {name: text for name, text in filled["metadata"].items() if name not in _OF_THE_SERVER}
    own = meta.get("namespace") or namespace
    if namespace and own != namespace:
        refuse(f"{source}: metadata.namespace", repr(own), f"{namespace!r}, because --namespace says so")
    body = {**filled, "metadata": meta}
    body.pop("status", None)
    return _checked(Document(kind, body, source, own))


def _kind(data: Mapping[str, Any], source: str) -> KindFile:
    by_name = {each.kind: each for each in kinds().values()}
    found = data.get("kind")
    if not isinstance(found, str):
        refuse(f"{source}: kind", shown(found), f"one of {', '.join(by_name)}", field="kind")
    if found not in by_name:
        raise InputInvalid(f"{source}: kind: found {found!r}{nearest(found, list(by_name))}", field="kind")
    kind = by_name[found]
    if data.get("apiVersion") != (expected := f"{kind.group}/{kind.version}"):
        refuse(f"{source}: apiVersion", shown(data.get("apiVersion")), f"{expected!r} for a {kind.kind}")
    return kind


def _checked(document: Document) -> Document:
    """The document, if it can be a job of its kind.

    Raises:
        InputInvalid: naming the file, the field, what was found and what was expected.
    """
    kind, source, meta = document.kind, document.source, document.body["metadata"]
    name = meta.get("name")
    if not (isinstance(name, str) and len(name) <= 63 and _NAME.fullmatch(name)):
        refuse(f"{source}: metadata.name", shown(name), "1 to 63 of a-z, 0-9 and '-', not at the ends")
    if kind.closed:
        _refuse_unknown(document)
    gang = bool((_policy(document) or {}).get("schedulingPolicy"))
    try:
        found = resource.read(kind, document.body, gangs=gang)
    except InputInvalid as error:
        raise InputInvalid(f"{source}: {error.message}", field=str(error.fields.get("field", ""))) from error
    known = environment(found, first(found), 0)
    for field, text, own in _texts(document, found):
        for use in _VARIABLE.finditer(text):
            if use[1] not in known.keys() | own:
                names = [each for each in known if each.startswith("FARMD_")]
                expected = f"one of {', '.join(names)}" if names else f"none: a {kind.kind} has no such"
                refuse(f"{source}: {field}", repr(use[1]), expected, field=field)
    return document


def _policy(document: Document) -> Mapping[str, Any] | None:
    found = document.spec.get("runPolicy")
    return found if isinstance(found, Mapping) else None


def _refuse_unknown(document: Document) -> None:
    """Refuse a field that a kind of farmd's own does not have."""
    types = document.kind.replica_specs
    common = {name: each for name, each in document.spec.items() if name != types}
    specs = {types: document.spec.get(types, {})}
    for model, data, field in (
        (resource.Common, common, "spec"),
        (dict[str, dict[str, resource.ReplicaSpec]], specs, "spec"),
    ):
        found = mistakes.first(model, data)
        if found is not None and "unknown key" in found[1]:
            raise InputInvalid(f"{document.source}: {field}.{found[0]}: {found[1]}", field=found[0])


def _texts(document: Document, of: resource.Resource) -> Iterator[tuple[str, str, set[str]]]:
    """All text of environments, commands and arguments, with its field and its container's own variables."""
    for name in document.spec[document.kind.replica_specs]:
        own = of.templates.get(of.kind.canonical(name), {})
        for place, each in enumerate(containers(own)):
            field = f"spec.{document.kind.replica_specs}.{name}.template.spec.containers[{place}]"
            env = [one for one in each.get("env") or [] if isinstance(one, Mapping)]
            named = {str(one.get("name")) for one in env}
            for at, one in enumerate(env):
                if isinstance(one.get("value"), str):
                    yield f"{field}.env[{at}].value", one["value"], named
            for part in ("command", "args"):
                for at, text in enumerate(each.get(part) or []):
                    if isinstance(text, str):
                        yield f"{field}.{part}[{at}]", text, named


# ``job run`` in Kubernetes: a document becomes a job under its name, once.
#
# What must never break: the API server judges everything in a dry run before anything is created; a job
# that has the name is never changed; the audit record is written before the job.

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
    change = _creation(document, "create", after=told, details=("the API server accepts it",))
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
            hint="run it under another name (--name), or delete the existing one first",
        )
    return Mutation(_creation(document, "create", uid=uid))


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


def _creation(document: Document, verb: str, *, uid: str = "", **more: Any) -> Change:
    return Change(
        KIND, uid or document.name, document.name, f"job.{verb}", object=f"job/{document.name}", **more
    )


# Waiting for what happens to jobs in Kubernetes, with progress.


async def end(call: Call, jobs: Jobs, change: Change, timeout: float, report: Report) -> None:
    """Wait until a job is over; after a stop, until its members are gone (``farmd.jobs.waiting.over``)."""
    namespace, _, name = change.name.partition("/")

    async def look() -> JobView:
        found = await jobs.find(namespace, name)
        row = view.row(found, await told(call))
        if change.action == STOP:  # the job's own counters know members that run, not those that leave
            left = sum(not member.over for _, member in view.members(found, await jobs.pods_of(found)))
            row = replaced(row, status=replaced(row.status, placed=left))
        return JobView(row, view.run(found))

    await over(call, change, look, timeout, report)


async def deletion(call: Call, jobs: Jobs, change: Change, timeout: float, report: Report) -> None:
    """Wait until a job that was marked for deletion is gone, and its members with it.

    Raises:
        WaitTimeout: it is still there.
    """
    namespace, _, name = change.name.partition("/")

    async def look() -> Look:
        found = await jobs.find(namespace, name)
        if found.job.metadata.uid != change.id:
            raise NotFound(f"job {change.name!r} was replaced by another one of that name")
        left = count_of(len(await jobs.pods_of(found)), "pod")
        return Look(noun="job", name=change.name, state=f"deleting, {left} left", desired=0, counts=False)

    async def late(now: Look) -> WaitTimeout:
        return WaitTimeout(
            f"job {change.name!r} is still there after {timeout:g} s: {now.state}",
            hint="the API server continues; a pod stays while its node or a finalizer keeps it",
        )

    with suppress(NotFound):
        await waiting.until(call, look, lambda *_: False, late, timeout, report)
