"""The noun of schedules, and what people say to one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from farmd.commands.edits import Readiness
from farmd.commands.mutation import Call, Change, Mutation
from farmd.commands.noun import Noun
from farmd.commands.specs import SpecFile, changed, check_count, check_seconds
from farmd.kinds import KINDS, asked
from farmd.schedules import times
from store.errors import Conflict, InputInvalid, refuse
from store.families import JOB_TEMPLATES, JOBS
from store.jobtemplates import text
from store.keys import valid_name
from store.operations import Operation
from store.quantities import Seconds
from store.schedules import KIND, MAX_NAME, Fired, Keep, Overlap, Schedule, ScheduleStatus
from store.times import rfc3339

MAX_KEPT = 100
MAX_CATCH_UP = 7 * 86_400.0
TTL_FLOOR = 600.0
"""A job lives for so many seconds after its end at least, within which its schedule learns of the end."""


class ScheduleSpec(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """One document of a file of schedules."""

    name: str
    job: dict[str, Any] = {}
    template: str = ""
    params: dict[str, str | int | float | bool] = {}
    cron: str = ""
    every: Seconds | None = None
    start: str = ""
    zone: str = "UTC"
    overlap: Overlap = "forbid"
    catch_up: Seconds = 600.0
    jitter: Seconds = 0.0
    keep: Keep = Keep()
    export_success: bool = False
    labels: dict[str, str] = {}
    needs: list[str] = []
    disabled: bool | None = None


def jobs() -> Noun[Any, Any]:
    """The noun of jobs: another kind's, so the registry names it."""
    return asked(JOBS.name)


def job_spec(name: str, document: dict[str, Any], at: float, source: str) -> Any:
    """The document of the job of a time.

    Raises:
        InputInvalid: jobs cannot be so.
    """
    if "name" in document:
        refuse(
            f"{source}.name", repr(document["name"]), "none: the schedule names its jobs", field="job.name"
        )
    return jobs().file.parse({**document, "name": f"{name}-{times.stamp(at)}"}, source)


async def due_job(call: Call, schedule: Schedule, at: float) -> tuple[Any, tuple[Operation, ...]]:
    """The document of the job of a time, and the check of the template that it comes from.

    Raises:
        InputInvalid: jobs cannot be so, or the template cannot be used.
    """
    if not schedule.template:
        return lasting(job_spec(schedule.name, schedule.job, at, f"schedule {schedule.name!r}: job")), ()
    make = KINDS[JOB_TEMPLATES.name].makes
    assert make is not None
    name = f"{schedule.name}-{times.stamp(at)}"
    spec, stands = await make()(call, schedule.template, name, schedule.params)
    return lasting(spec), (stands,)


def lasting(spec: Any) -> Any:
    """The job's document with a ``ttl`` that is long enough for its schedule."""
    return spec if spec.ttl is None else msgspec.structs.replace(spec, ttl=max(spec.ttl, TTL_FLOOR))


def _check(spec: ScheduleSpec, source: str) -> None:
    if len(spec.name) > MAX_NAME:
        refuse(f"{source}: name", f"{len(spec.name)} characters", f"at most {MAX_NAME}", field="name")
    if spec.every is not None:
        check_seconds(spec.every, f"{source}: every", lowest=times.SHORTEST)
    check_seconds(spec.jitter, f"{source}: jitter")
    if not 0 <= spec.catch_up <= MAX_CATCH_UP:
        refuse(f"{source}: catch_up", f"{spec.catch_up:g} s", "0 to 7 days", field="catch_up")
    for field in ("done", "failed"):
        if check_count(getattr(spec.keep, field), f"{source}: keep.{field}") > MAX_KEPT:
            refuse(f"{source}: keep.{field}", str(getattr(spec.keep, field)), f"at most {MAX_KEPT}")
    if bool(spec.job) == bool(spec.template):
        found = "both job and template" if spec.job else "neither job nor template"
        refuse(f"{source}: job", found, "one of the two", field="job")
    if spec.params and not spec.template:
        refuse(f"{source}: params", "values beside a job", "a template beside them", field="params")
    if spec.template:
        valid_name(spec.template, f"{source}: template")
    else:
        job_spec(spec.name, spec.job, 0.0, f"{source}: job")
    times.check(FILE.build(spec, "0"), source)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleFile(SpecFile[ScheduleSpec, Schedule]):
    """Files of schedules. A farm that makes a schedule's jobs knows the features that its jobs need (R11)."""

    def build(
        self, spec: ScheduleSpec, record_id: str, sha: str = "", existing: Schedule | None = None
    ) -> Schedule:
        """The record of a spec, under an id."""
        made = SpecFile.build(self, spec, record_id, sha, existing)
        if spec.template:
            values = {name: text(value) for name, value in spec.params.items()}
            needs = [*made.needs, *KINDS[JOB_TEMPLATES.name].features]
            return changed(made, params=values, needs=list(dict.fromkeys(needs)))
        job = jobs().file.build(job_spec(spec.name, spec.job, 0.0, f"{spec.name}: job"), "0")
        return changed(made, needs=list(dict.fromkeys([*made.needs, *job.needs])))


FILE = ScheduleFile(spec=ScheduleSpec, record=Schedule, check=_check)


def _facts(schedule: Schedule, _: ScheduleStatus | None) -> list[tuple[str, str]]:
    counts = f"{schedule.missed} missed, {schedule.skipped} skipped, {schedule.failures} failed in a row"
    return [
        ("Times", _times(schedule)),
        *([("Template", f"job-template/{schedule.template}")] if schedule.template else []),
        ("Overlap", schedule.overlap),
        ("Catch up", f"{schedule.catch_up:g} s"),
        ("Counts", counts),
    ]


def _times(schedule: Schedule) -> str:
    return schedule.cron or f"every {schedule.every:g} s"


def _last(schedule: Schedule, _: ScheduleStatus | None) -> str:
    return schedule.fired[-1].outcome or "running" if schedule.fired else "-"


def _next(_: Schedule, status: ScheduleStatus | None) -> str:
    return rfc3339(status.next) if status is not None and status.next else "-"


async def _ready(_: Call, __: Schedule) -> Readiness:
    """A schedule is ready as soon as it is written."""
    return Readiness("ready")


SCHEDULE: Noun[ScheduleSpec, Schedule] = Noun(
    file=FILE,
    told=lambda schedule: {"times": _times(schedule), "zone": schedule.zone},
    facts=_facts,
    columns=(("TIMES", lambda schedule, _: _times(schedule)), ("LAST", _last), ("NEXT", _next)),
    judge=_ready,
)


async def run_now(call: Call, target: str) -> Mutation:
    """Create a job of a schedule now, besides its times.

    Raises:
        Conflict: one runs and must run alone; or the schedule is being deleted or locked.
    """
    stored, held = await SCHEDULE.editable(call, target, fields=())
    schedule, now = stored.record, float(int(call.clock.now()))
    if schedule.active and schedule.overlap != "allow":
        name = schedule.active[-1].name
        text = f"schedule {schedule.name!r}: job {name!r} runs still, and overlap is {schedule.overlap}"
        raise Conflict(text, id=schedule.id, hint=f"farmctl job delete {name}, then repeat the command")
    if schedule.full:
        text = f"schedule {schedule.name!r}: found {len(schedule.active)} jobs that run, expected fewer"
        raise Conflict(text, id=schedule.id, hint=f"farmctl schedule history {schedule.name}")
    spec, stands = await due_job(call, schedule, now)
    made = await jobs().create(call, spec)
    if not made.needed:
        raise InputInvalid(f"schedule {schedule.name!r}: a job of this second exists; repeat the command")
    fired = Fired(due=now, job=made.change.id, name=made.change.name, by=call.actor)
    wanted = msgspec.structs.replace(schedule, fired=[*schedule.fired, fired])
    change = Change(KIND, schedule.id, schedule.name, "schedule.run-now", after={"job": fired.name})
    replaced = SCHEDULE.records(call.client, call.keys).replace(stored, wanted)
    return Mutation(change, (*held.operations, *stands, *made.operations, replaced))


async def pause(call: Call, target: str) -> Mutation:
    """Create no more jobs of a schedule until it is resumed; running jobs continue."""
    return await SCHEDULE.disable(call, target)


async def resume(call: Call, target: str) -> Mutation:
    """Let farms create jobs of a schedule again; the newest missed time counts within catch_up."""
    return await SCHEDULE.enable(call, target)
