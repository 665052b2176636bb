"""Jobs during a soak: arrays and gangs that people run, stop and delete, and what must be true of them.

Judged from processes, the raw store and the audit: no slot runs twice, none begins after the verdict, and
each job has one verdict.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from farmd.commands.mutation import Call, Mutation
from farmd.jobs import commands
from farmd.jobs.commands import JOB
from farmd.jobs.placing import slot_of
from store.jobs import Job, Run
from tests.fault.invariants import Dump
from tests.soak.processes import Workload
from tests.soak.sight import Sight

NAMES = ("batch", "sweep", "ring")
GANGS = frozenset({"ring"})
VERDICTS = ("job.succeeded", "job.failed")
# An agent in trouble acts late on what it knew; a node that is given up is not waited for.
CALM_SECONDS = 60.0


async def asked(call: Call, dump: Dump, pod: dict[str, Any], rng: random.Random) -> Mutation:
    """What somebody asks of jobs now: a new one, or that one stops, goes on or goes away."""
    jobs = {job.name: job for job in dump.jobs.values() if not job.deleting}
    free = sorted(set(NAMES) - jobs.keys())
    if free and (not jobs or rng.random() < 0.6):
        return await JOB.create(call, JOB.file.parse(_file(rng.choice(free), pod, rng), "soak"))
    job = jobs[rng.choice(sorted(jobs))]
    word = rng.choice(("stop", "resume", "delete"))
    if word == "delete":
        return await JOB.delete(call, job.name, cascade=True)
    mutation: Mutation = await getattr(commands, word)(call, job.name)
    return mutation


async def gone(call: Call, dump: Dump) -> list[Mutation]:
    """The deletions of all jobs."""
    return [await JOB.delete(call, job.name, cascade=True) for job in dump.jobs.values() if not job.deleting]


def _file(name: str, pod: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    worker: dict[str, Any] = {"name": "worker", "restart": "exit-code", "pod": pod}
    limits = {"name": name, "backoff_limit": 20, "ttl": rng.choice((0, 10, 600))}
    if name in GANGS:
        worker |= {"replicas": rng.randint(2, 5)}
        return {**limits, "gang": True, "peers": True, "gang_timeout": 10, "types": [worker]}
    return {**limits, "types": [worker | {"replicas": rng.randint(4, 30), "parallelism": rng.randint(2, 6)}]}


def twice(sight: Sight) -> Iterable[str]:
    """Slots of which more than one member runs, on nodes that are well."""
    found: dict[tuple[str, str], list[Workload]] = defaultdict(list)
    for each in sight.workloads:
        for job, slot in _slots(sight.dump, each):
            found[job.name, slot].append(each)
    for (name, slot), members in found.items():
        places = {each.place for each in members}
        if len(places) > 1 and all(_calm(sight, each) for each in members):
            yield f"job {name}: {slot} runs twice: {sorted(places)}"


def revived(before: Sight, after: Sight) -> Iterable[str]:
    """Members that began after the verdict of their job was in the store."""
    known = {(each.pid, each.ticks) for each in before.workloads}
    ended = _over(before.dump) & _over(after.dump)
    for each in after.workloads:
        if (each.pid, each.ticks) in known or not _calm(after, each):
            continue
        for job, slot in _slots(after.dump, each):
            if job.id in ended:
                yield f"job {job.name}: {slot} began at {each.place} after the verdict"


def judged_once(dump: Dump) -> Iterable[str]:
    """Each job has one verdict, and no member is placed after it."""
    verdicts: Counter[str] = Counter()
    for index, audit in dump.audits:
        if audit.kind != JOB.kind:
            continue
        if verdicts[audit.id] and audit.placed:
            yield f"job {audit.name}: {audit.placed} placed at {index}, after the verdict"
        verdicts[audit.id] += audit.action in VERDICTS
    yield from (f"job {each} has {count} verdicts" for each, count in verdicts.items() if count > 1)


def left(dump: Dump) -> Iterable[str]:
    """Jobs and runs that are there although people deleted all jobs."""
    yield from (f"job {job.name} is there" for job in dump.jobs.values())
    yield from (f"{key} is there without a job" for key in dump.tree("runs", Run))


def _slots(dump: Dump, workload: Workload) -> Iterable[tuple[Job, str]]:
    """The job and the slot whose member a workload is, if it is one."""
    for job in dump.jobs.values():
        if (found := slot_of(job, workload.place[1])) is not None:
            yield job, str(found[0])


def _over(dump: Dump) -> frozenset[str]:
    """Ids of the jobs that have a verdict."""
    runs = dump.tree("runs", Run).items()
    return frozenset(dump.keys.last_part(key) for key, (_, run) in runs if run.outcome)


def _calm(sight: Sight, workload: Workload) -> bool:
    """Whether the workload's node has been without a fault for a while."""
    return sight.well_for.get(workload.place[0], 0.0) > CALM_SECONDS
