"""``farmctl job`` and its logs for jobs in Kubernetes; imported only where one is asked for."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, NamedTuple

import click

from farmd.cli import logs as cli_logs
from farmd.cli import noun_show
from farmd.cli.changes import apply
from farmd.cli.cluster import ConnectedCluster, Place, connected
from farmd.cli.invocation import Invocation
from farmd.cli.logs import read_each
from farmd.cli.noun_edit import going_on
from farmd.cli.output import show
from farmd.cli.progress import progress
from farmd.commands.mutation import Call, Mutation
from farmd.commands.specs import unlike
from farmd.jobs.commands import JOB
from farmd.jobs.facts import Member
from farmd.kubernetes.commands import refusals
from farmd.kubernetes.jobs import commands, view
from farmd.kubernetes.jobs.kind import KIND
from farmd.kubernetes.jobs.kindfile import titles
from farmd.kubernetes.jobs.view import FoundJob, JobRow, Jobs, told
from farmd.kubernetes.objects import PODS, KubePod
from farmd.kubernetes.transport import ApiRequest
from farmd.tables import nouns as noun_tables
from farmd.tables.items import Records
from farmd.tables.model import Column, Described, Explained, Table, ago, clean
from store.errors import InputInvalid, NotFound, StoreUnavailable
from store.mistakes import shown
from store.times import plain
from store.words import share

# ``farmctl job`` for jobs in Kubernetes; imported only where one is asked for.


class Runs(NamedTuple):
    """Jobs of files that are about to be created."""

    jobs: Jobs
    documents: Mapping[str, commands.Document]
    mutations: Sequence[Mutation]

    async def write(self, invocation: Invocation, mutation: Mutation) -> None:
        """Create one."""
        await commands.create(invocation.call, self.jobs, self.documents[mutation.change.name], mutation)

    async def wait(self, invocation: Invocation) -> None:
        """With ``--wait``: wait until each is over, with progress."""
        await _wait(invocation, self.jobs, self.mutations)


@asynccontextmanager
async def prepared(
    invocation: Invocation,
    place: Place,
    parsed: Sequence[tuple[str, Any]],
    given: Mapping[str, str],
    name: str | None,
) -> AsyncIterator[Runs]:
    """The creations of documents, each (source, data), that the API server accepts."""
    documents = [commands.parse(data, source, given, place.namespace) for source, data in parsed]
    documents = [each if name is None else each.renamed(name) for each in documents]
    async with connected(place) as cluster:
        placed = unlike([(each.source, each.within(cluster.namespace)) for each in documents])
        jobs = Jobs(cluster.transport)
        mutations = [await commands.prepare(invocation.call, jobs, each) for each in placed]
        yield Runs(jobs, {each.name: each for each in placed}, mutations)


async def listed(invocation: Invocation, place: Place, everywhere: bool) -> list[JobRow]:
    """The jobs of the place's namespace, or of all; kinds that may not be read are named on stderr."""
    async with connected(place) as cluster:
        found = await Jobs(cluster.transport).list("" if everywhere else cluster.namespace)
        for line in found.refused:
            invocation.say(f"farmctl: {clean(line)}")
        said = await told(invocation.call)
        return [view.row(each, said) for each in found.jobs]


async def names(place: Place, incomplete: str) -> list[str]:
    """Names of jobs for completion: bare ones with ``-n``, else those of the namespace that was begun."""
    async with connected(place) as cluster:
        begun, slash, _ = incomplete.removeprefix("job/").partition("/")
        found = await Jobs(cluster.transport).list(begun if slash else cluster.namespace)
        prefix = "job/" if incomplete.startswith("job/") else ""
        return [each.job.metadata.name if place.namespace else f"{prefix}{each.name}" for each in found.jobs]


class ClusterJobs(Records):
    """The jobs of a cluster. A command that shows one again and again may be refused once, and answered the
    next time.
    """

    def __init__(self, call: Call, cluster: ConnectedCluster) -> None:
        super().__init__(call, JOB)
        self._cluster = cluster
        self._jobs = Jobs(cluster.transport)

    async def _find(self, name: str) -> tuple[FoundJob, JobRow]:
        found = await self._jobs.find(*self._cluster.split(name))
        return found, view.row(found, await told(self.call))

    async def row(self, name: str) -> JobRow:
        with refusals():
            return (await self._find(name))[1]

    async def as_file(self, name: str) -> dict[str, Any]:
        return view.as_file((await self._find(name))[0])

    async def described(self, name: str) -> Described:
        found, row = await self._find(name)
        now, conditions = self.call.clock.now(), found.status.conditions
        slots = view.slots(found, await self._jobs.pods_of(found))
        facts = [
            ("Name", row.record.name),
            ("Id", row.record.id),
            ("State", row.state + (f": {row.reason}" if row.reason else "")),
            ("Owner", f"farm {row.owner}" if row.owner else "none"),
            ("Age", ago(now, row.record.created)),
            *view.facts(found, row),
        ]
        more = {"pods": plain(slots), "conditions": plain(conditions)}
        return Described(
            id=row.record.name,
            name=row.record.name,
            state=row.state,
            reason=row.reason,
            facts=facts,
            tables={"Conditions": _conditions(conditions)},
            row=row,
            audited=KIND,
            pods=_slots(slots, now),
            document=noun_tables.plain_row(row) | more,
        )

    async def explained(self, name: str) -> Explained:
        found, row = await self._find(name)
        lines = list(view.explained(found, row, await self._jobs.pods_of(found)))
        of = {"name": row.record.name, "id": row.record.id, "state": row.state, "lines": lines}
        return Explained(lines, of, [f"job/{row.record.name}"])

    async def pods(self, name: str) -> Table:
        with refusals():
            found, _ = await self._find(name)
            slots = view.slots(found, await self._jobs.pods_of(found))
        return _slots(slots, self.call.clock.now())


@asynccontextmanager
async def _items(invocation: Invocation, place: Place) -> AsyncIterator[ClusterJobs]:
    async with connected(place) as cluster:
        yield ClusterJobs(invocation.call, cluster)


async def get(invocation: Invocation, place: Place, name: str, as_file: bool) -> None:
    """``job get``."""
    async with _items(invocation, place) as items:
        await noun_show.get(invocation, items, name, as_file=as_file)


async def describe(invocation: Invocation, place: Place, name: str) -> None:
    """``job describe``."""
    async with _items(invocation, place) as items:
        await noun_show.describe(invocation, JOB.document, "job", await items.described(name))


async def explain(invocation: Invocation, place: Place, name: str) -> None:
    """``job explain``."""
    async with _items(invocation, place) as items:
        noun_show.explain(invocation, await items.explained(name))


async def pods(invocation: Invocation, place: Place, name: str) -> None:
    """``job pods``."""
    async with _items(invocation, place) as items:
        await show(invocation, partial(items.pods, name))


async def stop(invocation: Invocation, place: Place, name: str) -> None:
    """``job stop``."""
    await _say(invocation, place, name, "stop", suspend=True)


async def resume(invocation: Invocation, place: Place, name: str) -> None:
    """``job resume``."""
    await _say(invocation, place, name, "resume", suspend=False)


async def _say(invocation: Invocation, place: Place, name: str, verb: str, *, suspend: bool) -> None:
    async with connected(place) as cluster:
        jobs = Jobs(cluster.transport)
        found = await jobs.find(*cluster.split(name))
        mutation = await commands.suspend(invocation.call, found, verb, wanted=suspend)
        await apply(invocation, [mutation], lambda each: commands.write(invocation.call, jobs, found, each))
        await _wait(invocation, jobs, [mutation])


async def delete(invocation: Invocation, place: Place, names: Sequence[str]) -> None:
    """``job delete``: members go first; waits unless ``--no-wait``."""
    async with connected(place) as cluster:
        jobs = Jobs(cluster.transport)
        found = {each.name: each for each in [await jobs.find(*cluster.split(name)) for name in names]}
        mutations = [await commands.delete(invocation.call, each) for each in found.values()]

        async def write(mutation: Mutation) -> None:
            await commands.write(invocation.call, jobs, found[mutation.change.name], mutation)

        await apply(invocation, mutations, write)
        settings = invocation.settings
        if settings.dry_run or settings.wait is False:
            return
        with going_on(invocation, mutations), progress(invocation) as report:
            for mutation in mutations:
                await commands.deletion(invocation.call, jobs, mutation.change, settings.timeout, report)
                if not settings.quiet and settings.output in {"table", "wide"}:
                    click.echo(f"job/{mutation.change.name} deleted ({mutation.change.id})")


async def _wait(invocation: Invocation, jobs: Jobs, mutations: Sequence[Mutation]) -> None:
    settings = invocation.settings
    if settings.wait is not True or settings.dry_run:
        return
    with going_on(invocation, mutations), progress(invocation) as report:
        for mutation in mutations:
            await commands.end(invocation.call, jobs, mutation.change, settings.timeout, report)


def _slots(slots: Sequence[view.SlotRow], now: float) -> Table:
    columns = (
        Column("SLOT", lambda row: row.slot),
        Column("POD", lambda row: row.pod),
        Column("ATTEMPT", lambda row: str(row.attempt)),
        Column("PHASE", lambda row: row.phase),
        Column("EXIT", lambda row: "-" if row.exit is None else str(row.exit)),
        Column("RESTARTS", lambda row: str(row.restarts)),
        Column("AGE", lambda row: ago(now, row.created)),
        Column("REASON", lambda row: row.reason),
    )
    return Table("Pod", slots, columns, name=lambda row: f"pod/{row.pod}", plain=plain, empty="none")


def _conditions(conditions: Sequence[Any]) -> Table:
    columns = (
        Column("TYPE", lambda row: row.type),
        Column("STATUS", lambda row: row.status),
        Column("SINCE", lambda row: row.last_transition_time),
        Column("REASON", lambda row: row.reason),
        Column("MESSAGE", lambda row: row.message),
    )
    return Table("Condition", conditions, columns, name=lambda row: row.type, plain=plain, empty="none")


# ``farmctl job logs`` for jobs in Kubernetes: what their pods wrote, through the API server.

READ_SECONDS = 60.0


async def logs(invocation: Invocation, place: Place, slot: str, attempt: int | None, **options: Any) -> None:
    """The output of a member of a job; without a slot, of all its pods."""
    wanted = cli_logs.LogChoice(**options)
    job, named = _split(slot)
    async with connected(place) as cluster:
        jobs = Jobs(cluster.transport)
        found = await jobs.find(*cluster.split(job))
        members = view.members(found, await jobs.pods_of(found))
        if not named:
            if attempt is not None:
                raise InputInvalid(
                    "--attempt: found without a slot, expected JOB/TYPE/INDEX", field="attempt"
                )
            await _all(invocation, cluster, found, members, wanted)
            return
        await _stream(cluster, found, *_chosen(found, members, named, attempt), wanted, b"")


def _split(text: str) -> tuple[str, list[str]]:
    """The job, behind its kind and namespace if they are there, and the slot in two parts, or none.

    Raises:
        InputInvalid: it is no slot of a job.
    """
    parts = text.removeprefix("job/").split("/")
    before = 1 if parts[0] in titles() else 0
    count = len(parts) - before
    if count > 4 or (before and count not in (2, 4)):
        raise InputInvalid(
            f"slot: found {shown(text)}, expected [KIND/]NAMESPACE/JOB/TYPE/INDEX", field="slot"
        )
    own = before + (2 if count in (2, 4) else 1)
    return "/".join(parts[:own]), parts[own:]


def _chosen(
    found: FoundJob, members: list[tuple[KubePod, Member]], slot: list[str], attempt: int | None
) -> tuple[KubePod, Member]:
    """The pod of a slot that a person means."""
    kind, index = slot
    spelled = {each.slot.type.lower(): each.slot.type for _, each in members} | view.types(found)
    if kind.lower() not in spelled:
        known = ", ".join(spelled.values()) or "none"
        raise InputInvalid(f"slot: found {shown(kind)}, expected a type of the job: {known}", field="slot")
    text = f"{spelled[kind.lower()]}/{index}"
    own = [(pod, each) for pod, each in members if str(each.slot) == text]
    for pod, each in own:
        if attempt in (None, each.attempt):
            return pod, each
    if own:
        raise NotFound(
            f"job {found.name!r}: the pod of attempt {attempt} of {text} is gone, and its log with it;"
            f" attempt {own[-1][1].attempt} is there"
        )
    raise NotFound(f"job {found.name!r}: {text} has no pod", hint=f"farmctl job explain {found.name}")


async def _all(
    invocation: Invocation,
    cluster: ConnectedCluster,
    found: FoundJob,
    members: list[tuple[KubePod, Member]],
    wanted: cli_logs.LogChoice,
) -> None:
    """What all pods wrote, one after the other; if it is to be followed, all at once."""
    if not members:
        invocation.say(f"job/{found.name} has no pods")

    async def read(each: tuple[KubePod, Member], prefix: str) -> None:
        with refusals():
            await _stream(cluster, found, *each, wanted, prefix.encode())

    failed = await read_each(members, lambda each: str(each[1].slot), read, follow=wanted.follow)
    if failed:
        text = f"the logs of {share(len(failed), len(members), 'pod')} could not be read"
        raise StoreUnavailable(text, hint=f"farmctl job explain {found.name}")


async def _stream(
    cluster: ConnectedCluster,
    found: FoundJob,
    pod: KubePod,
    member: Member,
    wanted: cli_logs.LogChoice,
    prefix: bytes,
) -> None:
    """Write the log of the container that does the job's work.

    Raises:
        NotFound: the pod wrote nothing, because it has not started.
    """
    params = [("tailLines", str(wanted.lines))]
    flags = ("follow", "previous", "timestamps")
    params += [(name, "true") for name in flags if name in wanted.params()]
    params += [] if wanted.since is None else [("sinceSeconds", str(math.ceil(wanted.since)))]
    params += [("container", found.kind.container)] if found.kind.container else []
    path = PODS.path(pod.metadata.namespace, pod.metadata.name, "log")
    request = ApiRequest("GET", path, params, resource="pods")
    timeout = None if wanted.follow else READ_SECONDS
    async with cluster.transport.stream(request, timeout) as chunks:
        wrote = await cli_logs.copy(chunks, prefix, cli_logs.to_stdout)
    if not wrote and member.phase == "starting":
        why = view.reason(pod, member)
        raise NotFound(f"pod {pod.metadata.name} has not started yet{f': {why}' if why else ''}")
