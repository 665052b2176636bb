"""``farmctl rc logs`` and the same of other nouns: what the pods of one owner wrote."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import click

from farmd import overview
from farmd.cli import log_stream
from farmd.cli.invocation import Invocation
from farmd.cli.names import objects, target
from farmd.cli.options import command
from farmd.commands import versions
from farmd.commands.noun import Noun
from farmd.runtime.errors import AgentUnavailable, FarmdError
from farmd.tables.model import clean
from store.errors import NotFound, StoreError
from store.words import share

P = TypeVar("P")


def showing(noun: Noun[Any, Any]) -> click.Command:
    """``logs``."""

    async def run(invocation: Invocation, name: str, **options: Any) -> None:
        wanted = log_stream.LogChoice(**options)
        record = (await noun.look(invocation.call, name)).record
        pods = (await versions.pods(invocation.call, noun, record)).placed
        await stream_all(invocation, f"{noun.words.noun}/{record.name}", pods, wanted)

    run.__doc__ = (
        f"What the pods of a {noun.words.one} wrote.\n\n"
        "Where there are several, each line begins with NODE/INSTANCE, and lines are merged by time. Logs "
        "that cannot be read are named on stderr; the others are shown."
    )
    return command("logs")(target(noun.words.noun, objects(noun.kind))(log_stream.options(run)))


async def stream_all(
    invocation: Invocation, title: str, pods: Sequence[overview.PodRow], wanted: log_stream.LogChoice
) -> None:
    """What these pods wrote, merged by time; if it is to be followed, as it comes.

    Raises:
        NotFound, AgentUnavailable: some could not be read; the others were shown.
    """
    if not pods:
        invocation.say(f"{title} has no pods")

    found: list[list[tuple[bytes, bytes]]] = []

    async def read(pod: overview.PodRow, prefix: str) -> None:
        if wanted.follow or not prefix:
            await log_stream.stream(invocation, pod.node, pod.instance, wanted, prefix=prefix)
        else:
            found.append(await _timed(invocation, pod, wanted, prefix.encode()))

    failed = await read_each(pods, lambda pod: f"{pod.node}/{pod.instance}", read, follow=wanted.follow)
    for _, line in heapq.merge(*found, key=lambda each: each[0]):
        log_stream.to_stdout(line)
    if failed:
        missing = all(isinstance(error, NotFound) for error in failed)
        kind, what = (NotFound, "are not there") if missing else (AgentUnavailable, "could not be read")
        hints = {error.hint for error in failed if isinstance(error, AgentUnavailable)}
        hint = hints.pop() if len(hints) == 1 else ""
        raise kind(f"the logs of {share(len(failed), len(pods), 'pod')} {what}", hint=hint)


async def _timed(
    invocation: Invocation, pod: overview.PodRow, wanted: log_stream.LogChoice, prefix: bytes
) -> list[tuple[bytes, bytes]]:
    """The lines of a pod's log, each with its time, which an agent of an earlier version does not know."""
    chunks: list[bytes] = []
    times = True
    try:
        timed = wanted._replace(timestamps=True)
        await log_stream.stream(invocation, pod.node, pod.instance, timed, write=chunks.append)
    except log_stream.NoTimes:
        if wanted.timestamps or wanted.previous or wanted.since is not None:
            raise
        times = False
        await log_stream.stream(invocation, pod.node, pod.instance, wanted, write=chunks.append)
    found = []
    for line in b"".join(chunks).splitlines():
        time, _, text = line.partition(b" ") if times else (b"-", b"", line)
        found.append((time, prefix + (line if wanted.timestamps else text) + b"\n"))
    return found


async def read_each(
    pods: Sequence[P], title: Callable[[P], str], read: Callable[[P, str], Awaitable[None]], *, follow: bool
) -> list[FarmdError | StoreError]:
    """Call ``read`` with each pod and the prefix of its lines; with ``follow`` for all at once.

    Returns the errors of pods whose logs could not be read; they were shown on stderr.
    """

    async def show(pod: P) -> FarmdError | StoreError | None:
        try:
            await read(pod, f"{title(pod)}: " if len(pods) > 1 else "")
        except (FarmdError, StoreError) as error:
            click.echo(f"farmctl: {clean(f'{title(pod)}: {error}')}", err=True)
            return error
        return None

    shown = await asyncio.gather(*map(show, pods)) if follow else [await show(pod) for pod in pods]
    return [error for error in shown if error is not None]
