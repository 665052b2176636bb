"""Jobs in Kubernetes as rows beside those in Consul, and what ``describe`` and ``explain`` tell of one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from farmd.commands.mutation import Call
from farmd.jobs.facts import Member, Slot
from farmd.kubernetes.client import Objects
from farmd.kubernetes.commands import refusal
from farmd.kubernetes.errors import Forbidden, NotFound
from farmd.kubernetes.jobs import resource
from farmd.kubernetes.jobs.items import MANAGERS
from farmd.kubernetes.jobs.kind import KIND
from farmd.kubernetes.jobs.kindfile import KindFile, kinds
from farmd.kubernetes.jobs.pods import member_of, troubles
from farmd.kubernetes.jobs.report import ReplicaStatus, ResourceStatus, is_failed, run_of
from farmd.kubernetes.jobs.resource import Resource
from farmd.kubernetes.jobs.unit import JobObject
from farmd.kubernetes.objects import PODS, KubePod, seconds_since_epoch
from farmd.kubernetes.objects import Resource as Kind
from farmd.kubernetes.transport import REQUEST_SECONDS, KubernetesTransport
from farmd.overview import Row
from farmd.overview.owners import holders
from store import errors
from store.errors import InputInvalid
from store.jobs import JobStatus, Run
from store.status import StatusStore
from store.times import Time

# The jobs of all kinds in one cluster, as the API server has them when a person asks.


class FoundJob(NamedTuple):
    """A job and its kind."""

    kind: KindFile
    job: JobObject

    @property
    def name(self) -> str:
        """As people write it: ``ml/bert``."""
        return f"{self.job.metadata.namespace}/{self.job.metadata.name}"

    @property
    def status(self) -> ResourceStatus:
        """Its own status; an empty one where that does not decode."""
        try:
            return self.job.status
        except errors.InputInvalid:
            return ResourceStatus()


class FoundJobs(NamedTuple):
    """Jobs; a line for each kind whose jobs may not be read, and for each job that does not decode."""

    jobs: Sequence[FoundJob]
    refused: Sequence[str]


class Told(NamedTuple):
    """What farms say of jobs, by uid: who holds its lock, and why one does not go on."""

    owners: Mapping[str, str]
    statuses: Mapping[str, JobStatus]


async def told(call: Call) -> Told:
    """What farms say of all jobs in Kubernetes."""
    owners = await holders(call.client, call.keys, KIND)
    return Told(owners, await StatusStore(call.client, call.keys, KIND, JobStatus).list())


class Jobs:
    """The jobs of one cluster."""

    def __init__(self, transport: KubernetesTransport) -> None:
        self._transport = transport
        self.pods = Objects(transport, PODS, KubePod, "pods", lambda: REQUEST_SECONDS)

    def of(self, kind: KindFile) -> Objects[JobObject]:
        """The jobs of one kind."""
        resource = Kind(kind.group, kind.version, kind.plural, kind.kind)
        return Objects(self._transport, resource, JobObject, "jobs", lambda: REQUEST_SECONDS)

    async def find(self, namespace: str, name: str) -> FoundJob:
        """The job of that name. A kind may stand before the namespace: ``tfjob.kubeflow.org/ml``.

        Raises:
            NotFound: there is none. Ambiguous: jobs of several kinds bear the name.
            AccessDenied: no kind may be read.
        """
        wanted, _, namespace = namespace.rpartition("/")
        asked = [kind for kind in kinds().values() if wanted in ("", kind.title)]
        answers = await asyncio.gather(
            *(self.of(kind).get(namespace, name) for kind in asked), return_exceptions=True
        )
        known = zip(asked, answers, strict=True)
        found = [FoundJob(kind, answer) for kind, answer in known if isinstance(answer, JobObject)]
        refused = _refused(answers)
        if len(found) > 1:
            titles = " or ".join(f"{each.kind.title}/{each.name}" for each in found)
            raise errors.Ambiguous(f"job '{namespace}/{name}': found {len(found)} kinds, expected {titles}")
        if not found:
            raise errors.NotFound(f"job '{namespace}/{name}' does not exist", hint="; ".join(refused))
        return found[0]

    async def list(self, namespace: str) -> FoundJobs:
        """The jobs of a namespace, or of all where it is empty; none of a kind that is not installed.

        Raises:
            AccessDenied: no kind may be read.
        """
        asked = [self.of(kind) for kind in kinds().values()]
        answers = await asyncio.gather(*(each.list(namespace) for each in asked), return_exceptions=True)
        jobs = [
            FoundJob(kind, job)
            for kind, answer in zip(kinds().values(), answers, strict=True)
            if not isinstance(answer, BaseException)
            for job in answer
        ]
        misfits = [line for each in asked for line in each.misfits]
        return FoundJobs(sorted(jobs, key=lambda each: each.name), [*_refused(answers), *misfits])

    async def pods_of(self, found: FoundJob) -> Sequence[KubePod]:
        """The pods that the job controls, by their names."""
        meta = found.job.metadata
        labels = found.kind.labels
        selector = f"{labels.group}={labels.group_value},{labels.job}={meta.name}"
        listed = await self.pods.list(meta.namespace, selector)
        own = [pod for pod in listed if (one := pod.metadata.controller) is not None and one.uid == meta.uid]
        return sorted(own, key=lambda pod: pod.metadata.name)


def _refused(answers: Sequence[object]) -> list[str]:
    """What the API server does not let this person read; a kind that is not installed has no jobs.

    Raises:
        StoreError: nothing may be read, or the server did not answer.
    """
    failed = [each for each in answers if isinstance(each, BaseException) and not isinstance(each, NotFound)]
    for error in failed:
        if not isinstance(error, Forbidden):
            raise error
    told = [refusal(error) for error in failed if isinstance(error, Forbidden)]
    if told and len(told) == len(answers):
        raise told[0]
    return [error.message for error in told]


# The conditions that tell a job's state; the first that holds decides.
_STATES = ("Succeeded", "Failed", "Suspended", "Blocked", "Restarting", "Running")
_OVER = ("succeeded", "failed")


class KubeJob(msgspec.Struct, frozen=True, kw_only=True):
    """What a list tells of a job; ``name`` is ``ml/bert``, ``managed_by`` another controller."""

    id: str
    name: str
    resource: str
    types: dict[str, int]
    suspend: bool
    labels: dict[str, str]
    managed_by: str = ""
    needs: list[str] = []
    deleting: bool = False
    created: Time = 0.0


class JobRow(Row[KubeJob], frozen=True, kw_only=True):
    """A job, whose own status speaks: one that is over needs no farm."""

    @property
    def state(self) -> str:
        """One word for what is happening."""
        if self.record.deleting or self.status.state in _OVER or self.record.managed_by:
            return "deleting" if self.record.deleting else str(self.status.state)
        return "unowned" if not self.owner else str(self.status.state)

    @property
    def reason(self) -> str:
        """Why it is in that state."""
        if self.record.managed_by:
            return f"managed by {self.record.managed_by}, so farms leave it alone"
        if self.state == "unowned":
            return "no farm has claimed it"
        return "its members go first" if self.state == "deleting" else str(self.status.reason)


def row(found: FoundJob, told: Told) -> JobRow:
    """A job with the farm that holds its lock, and what farms say of it beside its own status."""
    meta, invalid, types, managed_by = found.job.metadata, "", dict[str, int](), ""
    try:
        read, status = resource_of(found), found.job.status
        types = {each.name: each.replicas for each in read.job.types}
        managed_by = "" if read.managed_by in MANAGERS else read.managed_by
    except InputInvalid as error:
        status, invalid = ResourceStatus(), error.message
    record = KubeJob(
        id=meta.uid,
        name=found.name,
        resource=f"{found.kind.plural}.{found.kind.group}",
        types=types,
        suspend=suspended(found),
        labels=dict(meta.labels),
        managed_by=managed_by,
        deleting=meta.terminating,
        created=seconds_since_epoch(meta.creation_timestamp),
    )
    own, said = _status(record, status, invalid), told.statuses.get(meta.uid)
    if said is not None and said.reason and own.state not in _OVER:
        own = msgspec.structs.replace(own, state=said.state, reason=said.reason)
    return JobRow(record=record, index=0, status=own, owner=told.owners.get(meta.uid, ""))


def suspended(found: FoundJob) -> bool:
    """Whether a person stopped it."""
    policy = msgspec.json.decode(found.job.spec).get("runPolicy")
    return isinstance(policy, dict) and policy.get("suspend") is True


def resource_of(found: FoundJob) -> Resource:
    """The job as farms read it.

    Raises:
        InputInvalid: it cannot be one.
    """
    raw = {
        "metadata": msgspec.to_builtins(found.job.metadata),
        "spec": msgspec.json.decode(found.job.spec),
    }
    return resource.read(found.kind, raw)


def run(found: FoundJob) -> Run:
    """How far it is by its own status, with the reason of its end."""
    status = found.status
    known = run_of(status, Run(restarts=status.restarts, attempt=status.attempt))
    why = _message(status, "Failed", found.job.metadata.name) if is_failed(status) else ""
    return msgspec.structs.replace(known, reason=why)


def _status(record: KubeJob, status: ResourceStatus, invalid: str) -> JobStatus:
    counts = status.replica_statuses.values()
    active = sum(each.active for each in counts)
    true = next((each for each in _STATES if status.true(each)), "")
    if invalid and not status.finished:
        state, reason = "blocked", invalid
    else:
        state, reason = true.lower() or "waiting", _message(status, true, record.name.partition("/")[2])
    return JobStatus(
        state=state,
        reason=reason if state in ("blocked", "failed", "restarting") else "",
        desired=sum(record.types.values()),
        done=sum(each.succeeded for each in counts),
        failed=sum(each.failed for each in counts),
        placed=active,
        healthy=active,
        restarts=status.restarts,
    )


def _message(status: ResourceStatus, kind: str, name: str) -> str:
    """The message of a condition, without the job's name."""
    found = next((each.message for each in status.conditions if each.type == kind), "")
    for word in (f"job {name} failed: ", f"job {name}: "):
        found = found.removeprefix(word)
    return found


def facts(found: FoundJob, shown: JobRow) -> Iterator[tuple[str, str]]:
    """What ``describe`` tells beside what it tells of all jobs."""
    status = shown.status
    yield "Kind", f"{found.kind.kind} ({found.kind.group}/{found.kind.version})"
    yield "Types", ", ".join(f"{name} {count}" for name, count in shown.record.types.items())
    yield "Slots", f"{status.progress}, {status.failed} failed"
    try:
        job = resource_of(found).job
    except InputInvalid as error:
        yield "Invalid", error.message
        return
    most = "" if job.backoff_limit is None else f" of at most {job.backoff_limit}"
    yield "Restarts", f"{status.restarts}{most}"
    yield "Deadline", "none" if job.active_deadline is None else f"{job.active_deadline:g} s"
    ttl = "stays" if job.ttl is None else f"deleted {job.ttl:g} s after its end"
    yield "When over", f"{ttl}, clean: {job.clean}"


class SlotRow(msgspec.Struct, frozen=True, kw_only=True):
    """One pod of a job in a table."""

    slot: str
    pod: str
    attempt: int
    phase: str
    exit: int | None
    restarts: int
    reason: str
    created: Time


def slots(found: FoundJob, pods: Sequence[KubePod]) -> list[SlotRow]:
    """The job's pods by slot."""
    return [
        SlotRow(
            slot=str(member.slot),
            pod=pod.metadata.name,
            attempt=member.attempt,
            phase="leaving" if member.leaving else member.phase,
            exit=member.exit,
            restarts=member.restarts,
            reason=reason(pod, member),
            created=member.at,
        )
        for pod, member in members(found, pods)
    ]


def members(found: FoundJob, pods: Sequence[KubePod]) -> list[tuple[KubePod, Member]]:
    """The job's pods with what they are to it, in the order of types and indexes."""
    labels, spelled = found.kind.labels, types(found)
    known = []
    for pod in pods:
        own = pod.metadata.labels
        text = own.get(labels.index, "")
        slot = Slot(spelled.get(own.get(labels.type, ""), own.get(labels.type, "")), _number(text))
        known.append((pod, member_of(pod, slot, found.kind.container)))
    order = {name: place for place, name in enumerate(spelled.values())}
    return sorted(known, key=lambda each: (order.get(each[1].slot.type, len(order)), each[1].slot))


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 7 else -1


def types(found: FoundJob) -> dict[str, str]:
    """The job's types as it spells them, by their names in lower case."""
    known = msgspec.json.decode(found.job.spec).get(found.kind.replica_specs)
    return {name.lower(): name for name in known} if isinstance(known, dict) else {}


def reason(pod: KubePod, member: Member) -> str:
    """What keeps a pod from its work, or how it ended; empty: nothing is known."""
    told = [f"{each.reason}: {each.message}" for each in troubles(pod)]
    prefix = f"pod {pod.metadata.name}"
    return "; ".join(each.replace(f"{prefix}, ", "").replace(f"{prefix}: ", "") for each in told) or (
        member.message
    )


def explained(found: FoundJob, shown: JobRow, pods: Sequence[KubePod]) -> Iterator[str]:
    """Why the job is where it is: its state, what keeps each member from its work, slots without one."""
    yield f"{shown.record.name} is {shown.state}" + (f": {shown.reason}" if shown.reason else "")
    if shown.state in (*_OVER, "suspended", "deleting"):
        return
    there = slots(found, pods)
    for each in there:
        if each.phase not in ("running", "succeeded"):
            yield f"{each.slot}: {each.phase}" + (f": {each.reason}" if each.reason else "")
    for name, count in shown.record.types.items():
        own = [each for each in there if each.slot.rpartition("/")[0] == name]
        done = found.status.replica_statuses.get(name, ReplicaStatus()).succeeded
        standing = len(own) + max(0, done - sum(each.phase == "succeeded" for each in own))
        if standing < count:
            yield f"{name}: {count - standing} of {count} slots have no pod"


def as_file(found: FoundJob) -> dict[str, Any]:
    """The job as a file that ``job run`` accepts."""
    meta = found.job.metadata
    labels = {"labels": dict(meta.labels)} if meta.labels else {}
    own = {"name": meta.name, "namespace": meta.namespace, **labels}
    kind = found.kind
    typed = {"apiVersion": f"{kind.group}/{kind.version}", "kind": kind.kind}
    return {**typed, "metadata": own, "spec": msgspec.json.decode(found.job.spec)}
