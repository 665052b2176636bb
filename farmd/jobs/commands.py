"""The noun of jobs for the commands that all nouns share, and what people say to one."""

from __future__ import annotations

from typing import Any

from farmd.commands.mutation import Call, Mutation
from farmd.commands.noun import Noun
from farmd.commands.specs import changed
from farmd.jobs.spec import FILE, JobSpec
from store import codec, manifests, operations
from store.errors import Conflict, RecordInvalid
from store.families import RUNS
from store.jobs import KIND, Job, JobStatus, Run, known_run

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


JOB: Noun[JobSpec, Job] = Noun(
    kind=KIND,
    document="Job",
    file=FILE,
    told=lambda job: {"slots": job.size, "gang": job.gang},
    facts=_facts,
    instead="run it under another name (--name), or delete the one that is there first",
    columns=(
        ("DONE", _done),
        ("ACTIVE", lambda _, status: _number("placed", status)),
        ("RESTARTS", lambda _, status: _number("restarts", status)),
    ),
    aged=True,
    beside=lambda keys, job: [
        operations.create(keys.record(RUNS.name, job.id), codec.encode(Run(job=job.id)))
    ],
)


async def as_file(call: Call, job: Job) -> dict[str, Any]:
    """A job as the document that a person would write, with the manifests of its members.

    Raises:
        NotFound: one is gone. RecordInvalid: one does not decode.
    """
    pods = {sha: await manifests.read(call.client, call.keys, sha) for sha in job.manifests}
    return FILE.document(job, pods)


async def stop(call: Call, target: str) -> Mutation:
    """Take the members of a job away until it is resumed; what is done stays done.

    Raises:
        Conflict: it is over, being deleted, or locked (R13).
    """
    return await _suspend(call, target, "stop", suspend=True)


async def resume(call: Call, target: str) -> Mutation:
    """Let a job that was stopped go on with the slots that are not done.

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
