"""``farmctl job logs`` for jobs in Kubernetes: what their pods wrote, through the API server."""

from __future__ import annotations

import math
from typing import Any

from farmd.cli import log_stream
from farmd.cli.cluster import ConnectedCluster, Place, connected
from farmd.cli.invocation import Invocation
from farmd.cli.noun_logs import read_each
from farmd.jobs.facts import Member
from farmd.kubernetes.commands import refusals
from farmd.kubernetes.jobs import view
from farmd.kubernetes.jobs.kindfile import titles
from farmd.kubernetes.jobs.view import FoundJob, Jobs
from farmd.kubernetes.objects import KubePod
from farmd.kubernetes.resources import PODS
from farmd.kubernetes.transport import ApiRequest
from store.errors import InputInvalid, NotFound, StoreUnavailable
from store.mistakes import shown
from store.words import share

READ_SECONDS = 60.0


async def logs(invocation: Invocation, place: Place, slot: str, attempt: int | None, **options: Any) -> None:
    """What a member of a job wrote; without a slot, what all its pods wrote."""
    wanted = log_stream.LogChoice(**options)
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
            f" attempt {own[-1][1].attempt} stands"
        )
    raise NotFound(f"job {found.name!r}: no pod of {text} stands", hint=f"farmctl job explain {found.name}")


async def _all(
    invocation: Invocation,
    cluster: ConnectedCluster,
    found: FoundJob,
    members: list[tuple[KubePod, Member]],
    wanted: log_stream.LogChoice,
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
    wanted: log_stream.LogChoice,
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
        wrote = await log_stream.copy(chunks, prefix, log_stream.to_stdout)
    if not wrote and member.phase == "starting":
        why = view.reason(pod, member)
        raise NotFound(f"pod {pod.metadata.name} has not started yet{f': {why}' if why else ''}")
