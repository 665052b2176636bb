"""``farmctl job logs``: what a member of a job wrote, also one that is gone since a short time."""

from __future__ import annotations

from typing import Any

import click

from farmd import overview
from farmd.cli import log_stream
from farmd.cli.cluster import beside
from farmd.cli.invocation import Invocation
from farmd.cli.names import checked, objects
from farmd.cli.noun_logs import stream_all
from farmd.cli.options import Whole, command
from farmd.jobs.commands import JOB
from farmd.jobs.facts import Slot
from farmd.jobs.placing import instance_of, slot_of
from farmd.kubernetes.jobs.kindfile import titles
from store.audit import AuditReader, Filter
from store.errors import InputInvalid, NotFound
from store.jobs import KIND, Job
from store.mistakes import shown

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
@click.option("--attempt", type=Whole(0), help="That of an earlier attempt.")
@log_stream.options
async def logs(invocation: Invocation, slot: str, attempt: int | None, **options: Any) -> None:
    """What a member of a job wrote; without a slot, what all members wrote that stand.

    The end of what a removed member wrote is kept by its node for an hour.
    """
    wanted = log_stream.LogChoice(**options)
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
    await log_stream.stream(invocation, node, instance, wanted)


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
    """The node of each attempt of a slot that stands, or stood."""
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
    "farmd.cli.job_cluster_logs:logs",
    lies=_in_kubernetes,
    argument="slot",
    names="farmd.cli.job_cluster:names",
)
