"""``farmctl job run | stop | resume | delete | logs``."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import click

from farmd import cli, overview
from farmd.cli import logs as cli_logs
from farmd.cli.changes import apply
from farmd.cli.cluster import Place, beside, has_kind, namespace_options
from farmd.cli.invocation import Invocation
from farmd.cli.logs import stream_all
from farmd.cli.names import checked, objects
from farmd.cli.noun_edit import FILES, converge, deleting, saying, texts_of
from farmd.cli.options import Whole, command
from farmd.commands import documents
from farmd.commands.mutation import Mutation
from farmd.commands.resolving import resolver
from farmd.commands.specs import unlike
from farmd.jobs import commands
from farmd.jobs.commands import FILE, JOB, JobSpec
from farmd.jobs.facts import Slot
from farmd.jobs.placing import forecast, instance_of, slot_of
from farmd.kubernetes.jobs.kindfile import titles
from store.audit import AuditReader, Filter
from store.errors import InputInvalid, NotFound
from store.jobs import KIND, Job
from store.mistakes import shown

# ``farmctl job logs``: what a member of a job wrote, also one that is gone since a short time.

_RECORDS = 1000
_MOST_DIGITS = 9  # int() refuses thousands of them


def _in_kubernetes(slot: str) -> bool:
    """Whether it is of a job in Kubernetes: ``ml/bert`` or ``ml/bert/worker/3``; a kind may be before it."""
    first, *rest = slot.removeprefix("job/").split("/")
    return len(rest) in (1, 3) or (len(rest) > 1 and first in titles())


@command("logs")
@click.argument(
    "slot",
    metavar="[[KIND/]NAMESPACE/]JOB[/TYPE/INDEX]",
    callback=checked,
    shell_complete=objects(KIND),
)
@click.option("--attempt", type=Whole(0), help="The output of an earlier attempt.")
@cli_logs.options
async def logs(invocation: Invocation, slot: str, attempt: int | None, **options: Any) -> None:
    """The output of a member of a job; without a slot, of all current members.

    The end of a removed member's output is kept for an hour.
    """
    wanted = cli_logs.LogChoice(**options)
    client, keys = invocation.client, invocation.keys
    name, _, rest = slot.removeprefix("job/").partition("/")
    job: Job = (await JOB.look(invocation.call, name)).record
    if not rest:
        if attempt is not None:
            raise InputInvalid("--attempt: found without a slot, expected JOB/TYPE/INDEX", field="attempt")
        pods = (await overview.pods(client, keys, job)).placed
        if not pods:
            invocation.say(f"of a member that is gone: farmctl job logs {job.name}/{job.types[0].name}/0")
        await stream_all(invocation, f"job/{job.name}", pods, wanted)
        return
    found = _slot(job, rest)
    nodes = await _nodes(invocation, job, found)
    if attempt is None:
        attempt = max(nodes, default=0)
    instance = instance_of(job, found, attempt)
    if (node := nodes.get(attempt)) is None:
        raise NotFound(
            f"job {job.name!r}: no member {instance!r} exists or existed", kind="pods", id=instance
        )
    await cli_logs.stream(invocation, node, instance, wanted)


def _slot(job: Job, text: str) -> Slot:
    """The slot that a person means: ``worker/3``."""
    name, _, index = text.rpartition("/")
    kind = job.type(name)
    if kind is None:
        known = ", ".join(each.name for each in job.types)
        raise InputInvalid(f"slot: found {shown(text)}, expected TYPE/INDEX, of type {known}", field="slot")
    if not index.isdecimal() or len(index) > _MOST_DIGITS or int(index) >= kind.replicas:
        expected = f"0 to {kind.replicas - 1}" if kind.replicas else "none, because the type has no slots"
        raise InputInvalid(f"slot: found index {shown(index)}, expected {expected}", field="slot")
    return Slot(name, int(index))


async def _nodes(invocation: Invocation, job: Job, slot: Slot) -> dict[int, str]:
    """The node of each attempt of a slot that exists or existed."""
    client, keys = invocation.client, invocation.keys
    places = [(pod.node, pod.instance) for pod in (await overview.pods(client, keys, job)).placed]
    for record in await AuditReader(client, keys).read(Filter(kind=KIND, item=job.id), _RECORDS):
        for place in (*record.placed, *record.removed):
            *_, node, instance = place.split("/")
            places.append((node, instance))
    found: dict[int, str] = {}
    for node, instance in places:
        known = slot_of(job, instance)
        if known is not None and known[0] == slot:
            found.setdefault(known[1], node)
    return found


logs = beside(
    logs,
    lambda: cli.job_cluster.logs,
    lies=_in_kubernetes,
    argument="slot",
    names=lambda: cli.job_cluster.names,
)


# ``farmctl job run | stop | resume | delete``.


@command("run", mutates=True, waits=True, signs=True)
@FILES
@click.option("--param", "given", multiple=True, metavar="NAME=VALUE", help="A parameter of the file.")
@click.option("--name", help="A name other than the file's, such as report-$(date +%F).")
@namespace_options
async def run(
    invocation: Invocation,
    paths: tuple[str, ...],
    given: tuple[str, ...],
    name: str | None,
    kubeconfig: str,
    context: str,
    namespace: str,
) -> None:
    """Run a job from a file; --wait waits for its end and exits with 9 if it fails.

    A document with a kind, such as FarmJob or PyTorchJob, goes to Kubernetes; any other to Consul. Running an
    equal one again changes nothing; a different one under the same name is a conflict. So if two timers run
    the same file with the date as --name, it runs once.
    """
    place, values = Place(kubeconfig, context, namespace), parameters(given)
    texts = texts_of(paths)
    resolve = await resolver(invocation.call, texts)
    parsed = [
        (where, resolve(data, where)) for text, file in texts for where, data in documents.parse(text, file)
    ]
    if name is not None and len(parsed) > 1:
        raise InputInvalid(f"--name: found {len(parsed)} jobs, expected one", field="name")
    there = [(source, data) for source, data in parsed if has_kind(data)]
    specs = _specs([(source, data) for source, data in parsed if not has_kind(data)], values, name)
    if place.named and not there:
        raise InputInvalid(
            "--namespace, --context and --kubeconfig: found no job for Kubernetes in the files"
        )
    async with AsyncExitStack() as stack:
        runs: Any = None
        if there:
            prepared = cli.job_cluster.prepared(invocation, place, there, values, name)
            runs = await stack.enter_async_context(prepared)
        created = [(await JOB.create(invocation.call, spec), spec) for spec in specs]
        by_id = {mutation.change.id: spec for mutation, spec in created}

        async def write(mutation: Mutation) -> None:
            if mutation.change.kind == JOB.kind:
                await JOB.commit_create(invocation.call, mutation, by_id[mutation.change.id])
            else:
                await runs.write(invocation, mutation)

        mutations = [forecast(mutation, spec) for mutation, spec in created]
        await apply(invocation, [*mutations, *(runs.mutations if runs is not None else ())], write)
        await converge(invocation, JOB, mutations)
        if runs is not None:
            await runs.wait(invocation)


def _specs(parsed: list[tuple[str, Any]], given: dict[str, str], name: str | None) -> list[JobSpec]:
    """The jobs for Consul."""
    file = replace(FILE, given=given)
    specs = unlike([(source, file.parse(data, source)) for source, data in parsed])
    return specs if name is None else [file.renamed(spec, name) for spec in specs]


def parameters(given: tuple[str, ...]) -> dict[str, str]:
    """The values that ``--param`` names.

    Raises:
        InputInvalid: one has no name, or a name is given twice.
    """
    found: dict[str, str] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise InputInvalid(f"--param: found {each!r}, expected NAME=VALUE", field="param")
        if name in found:
            raise InputInvalid(f"--param: found {name!r} twice, expected once", field="param")
        found[name] = value
    return found


_NAMES = lambda: cli.job_cluster.names  # noqa: E731
stop = beside(saying(JOB, "stop", commands.stop), lambda: cli.job_cluster.stop, names=_NAMES)
resume = beside(saying(JOB, "resume", commands.resume), lambda: cli.job_cluster.resume, names=_NAMES)
delete = beside(deleting(JOB), lambda: cli.job_cluster.delete, argument="names", names=_NAMES)
