"""Schedules during a soak: people create, pause, run and delete them, and what must be true of their jobs.

Judged from the raw store and the audit: each time that a schedule has dealt with has one job or counts as
missed or skipped, and jobs that must not overlap run one at a time.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import takewhile
from operator import ge
from typing import Any

from farmd.commands.mutation import Call, Mutation, commit
from farmd.jobs.commands import JOB
from farmd.schedules import commands, times
from farmd.schedules.commands import SCHEDULE
from store.entry import Entry
from store.jobs import Run
from store.schedules import KIND, Schedule
from tests.fault.invariants import Dump
from tests.soak.fleet import Fleet

NAMES = ("tick", "beat", "chime")
WORDS = ("run_now", "run_now", "pause", "resume", "resume", "delete")


async def asked(call: Call, dump: Dump, pod: dict[str, Any], rng: random.Random) -> Mutation:
    """What somebody asks of schedules now: a new one, or that one runs, pauses, continues or goes away."""
    found = {each.name: each for _, each in schedules(dump) if not each.deleting}
    free = sorted(set(NAMES) - found.keys())
    if free and (not found or rng.random() < 0.5):
        return await SCHEDULE.create(call, SCHEDULE.file.parse(_file(rng.choice(free), pod, rng), "soak"))
    name, word = rng.choice(sorted(found)), rng.choice(WORDS)
    if word == "delete":
        return await SCHEDULE.delete(call, name, cascade=True)
    mutation: Mutation = await getattr(commands, word)(call, name)
    return mutation


def _file(name: str, pod: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    worker = {"name": "worker", "restart": "exit-code", "replicas": rng.randint(1, 2), "pod": pod}
    return {
        "name": name,
        "every": rng.choice((3, 5, 8)),
        "overlap": rng.choice(("forbid", "allow", "replace")),
        "catch_up": rng.choice((0, 10, 60)),
        "jitter": rng.choice((0, 4)),
        "keep": {"done": 2, "failed": 2},
        "job": {"backoff_limit": 20, "types": [worker]},
    }


async def tend(fleet: Fleet, since: float) -> None:
    """Delete schedules once they have dealt with a time after ``since``, when all faults were over, and then
    their jobs, which outlive them.
    """
    dump, call = await fleet.dump(), fleet.call
    found = [each for _, each in schedules(dump)]
    for each in found:
        if each.disabled:
            await commit(call, await commands.resume(call, each.name))
        elif each.last > since and not each.deleting:
            await commit(call, await SCHEDULE.delete(call, each.name, cascade=True))
    if not found:
        for job in dump.jobs.values():
            if not job.deleting:
                await commit(call, await JOB.delete(call, job.name, cascade=True))


def left(dump: Dump) -> Iterable[str]:
    """Schedules that are there, each until it has dealt with a time in peace."""
    yield from (f"schedule {each.name} is there, dealt with {each.last:.0f}" for _, each in schedules(dump))


def miscounted(dump: Dump) -> Iterable[str]:
    """Times up to ``last`` that have no job and are not told, jobs of no time, and times with two jobs."""
    created, asked = _created(dump), _asked(dump)
    for entry, schedule in schedules(dump):
        mine = Counter({name: n for name, n in _since(entry, created) if _of(name) == schedule.name})
        yield from (f"schedule {schedule.name} made {name} {n} times" for name, n in mine.items() if n > 1)
        if not schedule.timing:
            continue
        due = list(takewhile(partial(ge, schedule.last), times.after(schedule, schedule.created)))
        named = {f"{schedule.name}-{times.stamp(at)}" for at in due}
        yield from (f"schedule {schedule.name} made {name} at no time of its" for name in mine.keys() - named)
        # What somebody asks for in the very second of a time is the job of that time.
        told = len(mine.keys() | (asked & named)) + schedule.missed + schedule.skipped
        if told != len(due):
            counts = f"{len(mine)} jobs, {schedule.missed} missed, {schedule.skipped} skipped"
            yield f"schedule {schedule.name} had {len(due)} times: {counts}"


def overlapping(dump: Dump) -> Iterable[str]:
    """Schedules of which several jobs run although one must end before the next begins."""
    ended = {dump.keys.last_part(key) for key, (_, run) in dump.tree("runs", Run).items() if run.outcome}
    for _, schedule in schedules(dump):
        running = [
            each.name for each in schedule.fired if each.job in dump.jobs.keys() - ended and not each.outcome
        ]
        if schedule.overlap != "allow" and len(running) > 1:
            yield f"schedule {schedule.name}, overlap {schedule.overlap}: {running} run side by side"


def fell(before: Dump, after: Dump) -> Iterable[str]:
    """Schedules whose ``last`` went back."""
    old = {each.id: each for _, each in schedules(before)}
    for _, each in schedules(after):
        if each.id in old and each.last < old[each.id].last:
            yield f"schedule {each.name}: last fell from {old[each.id].last} to {each.last}"


def schedules(dump: Dump) -> list[tuple[Entry, Schedule]]:
    """The schedules that are there."""
    return list(dump.tree(KIND, Schedule).values())


def _created(dump: Dump) -> Mapping[str, Sequence[int]]:
    """The indexes at which farms made jobs, by the jobs' names."""
    found: dict[str, list[int]] = defaultdict(list)
    for index, audit in dump.audits:
        if audit.action == "job.create" and audit.actor.startswith("farm/"):
            found[audit.name].append(index)
    return found


def _asked(dump: Dump) -> set[str]:
    """The names of the jobs that people asked for besides the times."""
    return {str(audit.after["job"]) for _, audit in dump.audits if audit.action == "schedule.run-now"}


def _since(entry: Entry, created: Mapping[str, Sequence[int]]) -> Iterable[tuple[str, int]]:
    """How often each job was made since a schedule was created; an earlier one may have had its name."""
    for name, indexes in created.items():
        if count := sum(index > entry.create_index for index in indexes):
            yield name, count


def _of(job: str) -> str:
    return job.rpartition("-")[0]
