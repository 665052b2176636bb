"""The noun of jobs, the file that people write, and what they say to a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from farmd.commands import specs
from farmd.commands.edits import Readiness
from farmd.commands.mutation import Call, Mutation
from farmd.commands.noun import Noun
from farmd.commands.specs import changed
from store import codec, manifests, operations
from store.canonical import builtins
from store.errors import Conflict, RecordInvalid, refuse
from store.families import RUNS
from store.features import ONE_SHOT, POD_AFFINITY, needed_of_farm
from store.jobs import Action, Job, JobStatus, Rule, Run, Success, Type, check, check_meant, known_run
from store.manifests import Manifest, Restart
from store.mistakes import shown
from store.quantities import Seconds
from store.variables import GANG, MEMBER, PEERS

# The file of a job, as people write it (docs/jobs.md).


class TypeSpec(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """One type of a job's slots, with what its members run."""

    name: str
    pod: Manifest
    replicas: int = 1
    parallelism: int = 0
    restart: Literal["never", "on-failure", "exit-code"] = "on-failure"
    node_selector: str = ""
    pod_labels: dict[str, str] = {}


class SuccessSpec(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """Which slots must end well."""

    operator: Literal["all", "any"] = "all"
    types: list[str] = []


class RuleSpec(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """What follows a failure."""

    action: Action
    exit_codes: list[int] = []
    reasons: list[str] = []
    types: list[str] = []


class JobSpec(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """One document of a job file."""

    name: str
    types: list[TypeSpec]
    gang: bool = False
    peers: bool = False
    success: SuccessSpec = SuccessSpec()
    rules: list[RuleSpec] = []
    suspend: bool | None = None
    backoff_limit: int = 6
    active_deadline: Seconds | None = None
    ttl: Seconds | None = 86_400.0
    clean: Literal["none", "running", "all"] = "running"
    restart_scope: Literal["slot", "job"] = "slot"
    on_lost: Literal["replace", "wait"] = "replace"
    gang_timeout: Seconds = 60.0
    labels: dict[str, str] = {}
    needs: list[str] = []

    @property
    def pods(self) -> tuple[Manifest, ...]:
        """What the members run, type by type."""
        return tuple(_compiled(self, each) for each in self.types)


def _compiled(spec: JobSpec, each: TypeSpec) -> Manifest:
    """What members of a type run: their agent starts them again in place only where nothing else decides."""
    alone = not (spec.rules or spec.peers or spec.restart_scope == "job")
    policy: Literal["on-failure", "never"] = (
        "on-failure" if each.restart == "on-failure" and alone else "never"
    )
    return msgspec.structs.replace(each.pod, restart=msgspec.structs.replace(each.pod.restart, policy=policy))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFile(specs.SpecFile[JobSpec, Job]):
    """Job files. ``given`` are the values of parameters that a person named."""

    given: Mapping[str, str] = field(default_factory=dict)

    def parse(self, data: Any, source: str) -> JobSpec:
        """One parsed document, with its parameters filled in."""
        from farmd.jobs import parameters  # as in ``parse_all``: farms need no YAML

        spec: JobSpec = specs.SpecFile.parse(self, parameters.filled(data, self.given, source), source)
        return spec

    def renamed(self, spec: JobSpec, name: str) -> JobSpec:
        """The same job under another name.

        Raises:
            InputInvalid: no job can have it.
        """
        renamed = msgspec.structs.replace(spec, name=name)
        check(self.build(renamed, "0"), "--name")
        return renamed

    def build(self, spec: JobSpec, record_id: str, sha: str = "", existing: Job | None = None) -> Job:  # noqa: ARG002
        """The record of a spec, under an id."""
        fields = {name: getattr(spec, name) for name in _ALIKE}
        asked = (need for pod in spec.pods for need in needed_of_farm(pod) if need not in OLDER)
        fields["needs"] = list(dict.fromkeys([*spec.needs, *asked]))
        suspend = spec.suspend if spec.suspend is not None else existing is not None and existing.suspend
        job = Job(
            id=record_id,
            types=[_type(spec, each) for each in spec.types],
            success=msgspec.convert(msgspec.structs.asdict(spec.success), Success),
            rules=[msgspec.convert(msgspec.structs.asdict(each), Rule) for each in spec.rules],
            suspend=suspend,
            recorded=existing is not None and existing.recorded,
            **fields,
        )
        return job if existing is None else specs.changed(existing, **msgspec.structs.asdict(job))

    def kept_digests(self, record: Job, digests: Mapping[str, str]) -> Job:
        """A built job whose types refer to manifests by these ``digests``."""
        types = [
            msgspec.structs.replace(each, manifest=digests.get(each.manifest, each.manifest))
            for each in record.types
        ]
        return msgspec.structs.replace(record, types=types)

    def document(self, record: Job, bodies: Mapping[str, Manifest]) -> dict[str, Any]:
        """A record as the document that a person would write."""
        types = [
            TypeSpec(
                pod=msgspec.structs.replace(
                    bodies[each.manifest],
                    restart=msgspec.structs.replace(bodies[each.manifest].restart, policy=Restart().policy),
                ),
                **{name: getattr(each, name) for name in _ALIKE_TYPES},
            )
            for each in record.types
        ]
        spec = JobSpec(
            types=types,
            success=msgspec.convert(msgspec.structs.asdict(record.success), SuccessSpec),
            rules=[msgspec.convert(msgspec.structs.asdict(each), RuleSpec) for each in record.rules],
            suspend=record.suspend or None,
            **{name: getattr(record, name) for name in _ALIKE},
        )
        found: dict[str, Any] = builtins(spec)
        return found


OLDER = (POD_AFFINITY, ONE_SHOT)
"""Every farm that knows jobs knows these features of pods, so jobs do not name them."""
_OWN = {"types", "success", "rules", "suspend"}
_ALIKE = tuple(each for each in JobSpec.__struct_fields__ if each not in _OWN)
_ALIKE_TYPES = tuple(each for each in TypeSpec.__struct_fields__ if each != "pod")


def _type(spec: JobSpec, each: TypeSpec) -> Type:
    pod = _compiled(spec, each)
    where = f"{spec.name}: types.{each.name}.node_selector"
    return Type(
        manifest=manifests.digest(manifests.canonical(pod)),
        pod_id=pod.id,
        **{name: getattr(each, name) for name in _ALIKE_TYPES if name != "node_selector"},
        node_selector=specs.canonical_selector(each.node_selector, where),
    )


def _check(spec: JobSpec, source: str) -> None:
    for number, each in enumerate(spec.types):
        where = f"types[{number}]."
        if each.pod.restart.policy != Restart().policy:
            refuse(
                f"{source}: {where}pod.restart.policy",
                shown(each.pod.restart.policy),
                f"none: {where}restart says it",
                field=f"{where}pod.restart.policy",
            )
        variables = MEMBER | (GANG if spec.gang else frozenset()) | (PEERS if spec.peers else frozenset())
        specs.check_pod(_compiled(spec, each), source, f"{where}pod", variables)
        specs.check_pod_labels(each.pod_labels, source, f"{where}pod_labels")
        specs.canonical_selector(each.node_selector, f"{source}: {where}node_selector")
    job = FILE.build(spec, "0")
    check(job, source)
    check_meant(job, source)


FILE = JobFile(spec=JobSpec, record=Job, check=_check, kept={"suspend": ""})


# The noun of jobs for the commands that all nouns share, and what people say to one.

MEND = "farmctl doctor shows how to repair it"


def _facts(job: Job, status: JobStatus | None) -> list[tuple[str, str]]:
    types = ", ".join(
        f"{each.name} {each.replicas}" + (f" by {each.parallelism}" if each.parallelism else "")
        for each in job.types
    )
    found = [("Types", types)]
    if status is not None:
        counts = f"{status.done} of {status.desired} done, {status.placed} active, {status.healthy} running"
        found.append(("Slots", f"{counts}, {status.failed} failed"))
        found.append(("Restarts", f"{status.restarts} of at most {job.backoff_limit}"))
    deadline = "none" if job.active_deadline is None else _time(job.active_deadline)
    ttl = "stays" if job.ttl is None else f"deleted {_time(job.ttl)} after its end"
    shape = ", ".join(word for word in ("gang", "peers") if getattr(job, word)) or "independent slots"
    return [*found, ("Members", shape), ("Deadline", deadline), ("When over", f"{ttl}, clean: {job.clean}")]


def _time(seconds: float) -> str:
    """A time as a file may say it: ``1d``, ``90s``."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds and seconds % size == 0:
            return f"{seconds / size:g}{unit}"
    return f"{seconds:g}s"


def _number(name: str, status: JobStatus | None) -> str:
    return "-" if status is None else str(getattr(status, name))


def _done(_: Job, status: JobStatus | None) -> str:
    """The slots that ended well, of all; unknown where a farm could never tell how far the job is."""
    unknown = status is None or (status.state == "blocked" and not status.desired)
    return "-" if status is None or unknown else f"{status.done}/{status.desired}"


async def _judge(call: Call, job: Job) -> Readiness:
    """A job is ready once all of its slots ended well."""
    run = await run_of(call, job)
    if run.outcome == "succeeded":
        return Readiness("ready")
    return Readiness("failed" if run.outcome else "progressing", run.reason)


async def _left_out(call: Call, job: Job) -> str:
    """A job that is over would run again where its file is read."""
    outcome = (await run_of(call, job)).outcome
    return f"is over: {outcome}" if outcome else ""


JOB: Noun[JobSpec, Job] = Noun(
    file=FILE,
    told=lambda job: {"slots": job.size, "gang": job.gang},
    facts=_facts,
    columns=(
        ("DONE", _done),
        ("ACTIVE", lambda _, status: _number("placed", status)),
        ("RESTARTS", lambda _, status: _number("restarts", status)),
    ),
    aged=True,
    replaces=True,
    judge=_judge,
    left_out=_left_out,
    beside=lambda keys, job: [
        operations.create(keys.record(RUNS.name, job.id), codec.encode(Run(job=job.id)))
    ],
)


async def stop(call: Call, target: str) -> Mutation:
    """Remove the members of a job until it is resumed; completed slots stay completed.

    Raises:
        Conflict: it is over, being deleted, or locked (R13).
    """
    return await _suspend(call, target, "stop", suspend=True)


async def resume(call: Call, target: str) -> Mutation:
    """Resume a stopped job with the slots that are not done.

    Raises:
        Conflict: it is over, being deleted, or locked (R13).
    """
    return await _suspend(call, target, "resume", suspend=False)


async def _suspend(call: Call, target: str, verb: str, *, suspend: bool) -> Mutation:
    stored, held = await JOB.editable(call, target)
    name = stored.record.name
    try:
        outcome = (await run_of(call, stored.record)).outcome
    except RecordInvalid as error:
        text = f"job {name!r}: its progress is unknown, so farms leave it alone: {error.message}"
        raise Conflict(text, id=stored.record.id, hint=MEND) from error
    if outcome:
        raise Conflict(f"job {name!r} is over: {outcome}", id=stored.record.id)
    wanted = changed(stored.record, suspend=suspend)
    return await JOB.edit(call, stored, wanted, held, verb, destructive=suspend and wanted != stored.record)


async def run_of(call: Call, job: Job) -> Run:
    """How far a job is.

    Raises:
        RecordInvalid: the record of that does not decode, or was lost.
    """
    key = call.keys.record(RUNS.name, job.id)
    entry = await call.client.read(key)
    return known_run(job, None if entry is None else codec.decode(Run, entry.value, key), key)
