"""Shows what pods wrote, read through the agents of their nodes: the workload's own bytes, unchanged."""

from __future__ import annotations

import asyncio
import heapq
import json
import math
import re
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from farmd import overview
from farmd.cli.invocation import Invocation
from farmd.cli.names import objects, target
from farmd.cli.options import Duration, Whole, command
from farmd.commands import one_time, versions
from farmd.commands.noun import Noun
from farmd.runtime.errors import AgentUnavailable, FarmdError
from farmd.tables.model import clean
from store import codec, features, presence
from store.errors import AccessDenied, InputInvalid, NotFound, RecordInvalid, StoreError
from store.http import reason
from store.nodes import NodeStore
from store.ports import Clock
from store.reality import Reality
from store.words import share

if TYPE_CHECKING:
    import aiohttp

_FOLLOW = click.option("-f", "--follow", is_flag=True, help="Follow the output until ^C.")
_LINES = click.option(
    "--lines",
    "--tail",
    "lines",
    type=Whole(0, 10_000),
    default=100,
    show_default=True,
    help="How many existing lines to show.",
)


_PREVIOUS = click.option("--previous", "-p", is_flag=True, help="The output of the previous start.")
_SINCE = click.option("--since", type=Duration(), help="Only output newer than this, such as 5m.")
PROCESS = click.option("--process", default="", metavar="NAME", help="The output of a sidecar.")
_TIMESTAMPS = click.option("--timestamps", is_flag=True, help="Begin each line with its time.")


def options(run: Callable[..., Any]) -> Callable[..., Any]:
    """The options of commands that show logs."""
    return _FOLLOW(_LINES(_PREVIOUS(_SINCE(_TIMESTAMPS(run)))))


class LogChoice(NamedTuple):
    """The wanted output, from the options."""

    follow: bool
    lines: int
    previous: bool
    since: float | None
    timestamps: bool
    process: str = ""

    def params(self) -> dict[str, str]:
        """The agent's parameters.

        Raises:
            InputInvalid: the output of a previous start is to be followed.
        """
        if self.previous and self.follow:
            raise InputInvalid(
                "--follow: found together with --previous, whose output has ended", field="follow"
            )
        flags = {name: "1" for name in ("follow", "previous", "timestamps") if getattr(self, name)}
        return (
            {"lines": str(self.lines)}
            | flags
            | ({} if self.since is None else {"since": str(math.ceil(self.since))})
            | ({"process": self.process} if self.process else {})
        )


LONGEST_LINE = 64 * 1024
"""The bytes after which a line without an end is written beside those of other pods."""
TRUST = "FARMCTL_CACERT names the authorities of agents' certificates, FARMCTL_CLIENT_CERT your own"


class NoTimes(AgentUnavailable):
    """The agent keeps no times of output."""


def to_stdout(text: bytes) -> None:
    """Write output to stdout at once."""
    sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()


async def stream(
    invocation: Invocation,
    node: str,
    instance: str,
    wanted: LogChoice,
    *,
    prefix: str = "",
    write: Callable[[bytes], None] = to_stdout,
) -> None:
    """Write what a pod wrote, to stdout unless ``write`` says otherwise; with a prefix before each line.

    Raises:
        AgentUnavailable: its node's agent is absent or does not answer. NotFound: the pod has no logs, or
            wrote nothing because it never started.
    """
    import aiohttp  # 0.1 s, which lists do without

    params = wanted.params()
    url, headers, denied = await asked(invocation, node, instance, "logs", params)
    unstarted = await _unstarted(invocation, node, instance)
    if wanted.follow and unstarted:
        invocation.say(f"{unstarted}; waiting for its output")
    try:
        wrote = await _read(url, params, headers, node, instance, prefix.encode(), write, invocation.tls())
    except AgentUnavailable as error:
        if not denied:
            raise
        hint = f"the one-time key for it could not be written ({denied}): acl/reader.hcl has the rule"
        raise AgentUnavailable(error.message, hint=hint) from error
    except (aiohttp.ClientError, TimeoutError) as error:
        at = url.partition("://")[2].partition("/")[0]
        raise AgentUnavailable(
            f"node {node!r}: its agent does not answer at {at}: {reason(error)}",
            hint=remedy(invocation, url, error),
        ) from error
    if unstarted and not wrote:
        raise NotFound(unstarted, kind="pods", id=instance)


async def asked(
    invocation: Invocation, node: str, instance: str, what: str, params: dict[str, str]
) -> tuple[str, dict[str, str], str]:
    """Where a node's agent answers about a pod, and the header with a one-time key, or why there is none.

    Without an instance it answers about all its pods.

    Raises:
        AgentUnavailable: the agent is not connected. NotFound: there is no such node.
    """
    view = await NodeStore(invocation.client, invocation.keys).get(node)
    if view.agent is None or not view.agent.address:
        why = view.unreadable or "its agent is not connected"
        raise AgentUnavailable(
            f"node {node!r}: {why}, so its {what} cannot be read from here",
            hint=f"they are on the node itself; farmctl node describe {node} tells more",
        )
    path = f"/v1/pods/{instance}/{what}" if instance else "/v1/pods"
    url = f"{presence.at_host(view.agent.address, view.record.address)}{path}"
    headers, denied = {}, ""
    if features.ACCESS in view.agent.features:  # an older agent answers everybody
        try:
            headers = await one_time.header(invocation.call, node, instance, path, params)
        except AccessDenied as error:
            denied = error.message
    return url, headers, denied


def remedy(invocation: Invocation, url: str, error: BaseException) -> str:
    """What to do where an agent does not answer: about certificates, or about one of another datacenter."""
    import aiohttp

    connected = not isinstance(error, aiohttp.ClientConnectorError)
    # A server that wants a certificate of its caller disconnects after the handshake.
    cut = connected and isinstance(error, aiohttp.ClientOSError | aiohttp.ServerDisconnectedError)
    if isinstance(error, aiohttp.ClientSSLError) or (cut and url.startswith("https:")):
        return TRUST
    name = invocation.datacenter
    return f"agents are asked directly, not through Consul: run this in datacenter {name}" if name else ""


async def _unstarted(invocation: Invocation, node: str, instance: str) -> str:
    """What to report of a pod that its agent never started; empty for one that it did start."""
    key = invocation.keys.reality(node, instance)
    entry = await invocation.client.read(key)
    try:
        reality = None if entry is None else codec.decode(Reality, entry.value, key)
    except RecordInvalid:
        return ""  # unknown; its agent has the logs
    if reality is not None and (reality.started or reality.pid):
        return ""
    why = f": {reality.reason}" if reality is not None and reality.reason else ""
    return f"pod {node}/{instance} has not started yet{why}"


async def _read(
    url: str,
    params: dict[str, str],
    headers: dict[str, str],
    node: str,
    instance: str,
    prefix: bytes,
    write: Callable[[bytes], None],
    tls: ssl.SSLContext | bool,
) -> bool:
    """Write the agent's answer; whether it was anything."""
    import aiohttp

    limits = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=None if "follow" in params else 30)
    async with (
        aiohttp.ClientSession(timeout=limits) as http,
        http.get(url, params=params, headers=headers, ssl=tls) as response,
    ):
        if response.status == 404:
            what = "no output of a previous start" if "previous" in params else "no logs"
            what += f" of a process {params['process']!r}" if "process" in params else ""
            raise NotFound(f"pod {node}/{instance} has {what}", kind="pods", id=instance)
        if response.status in (401, 403, 429):
            raise AgentUnavailable(f"node {node!r}: its agent refused: {await refusal(response)}")
        if response.status != 200:
            raise AgentUnavailable(f"node {node!r}: its agent answered {response.status} {response.reason}")
        if params.keys() & {"previous", "since", "timestamps"} and "Farmd-Log-Times" not in response.headers:
            raise NoTimes(
                f"node {node!r}: its agent is an earlier version, which does not record the times of output"
            )
        if gone := response.headers.get("Farmd-Log-Gone"):
            click.echo(
                f"farmctl: pod {node}/{instance} was removed at {gone}; this is its last output", err=True
            )
        return await copy(response.content.iter_any(), prefix, write)


async def refusal(response: aiohttp.ClientResponse) -> str:
    """The error for an agent's refusal."""
    try:
        return str(json.loads(await response.content.read(4096))["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"{response.status} {response.reason}"


async def copy(chunks: AsyncIterator[bytes], prefix: bytes, write: Callable[[bytes], None]) -> bool:
    """Write output with a prefix before each line; whether it was anything."""
    rest, wrote = b"", False
    async for chunk in chunks:
        wrote = wrote or bool(chunk)
        if not prefix:
            write(chunk)
            continue
        # Lines of several pods alternate, and none is split that a terminal could show.
        *whole, rest = (rest + chunk).split(b"\n")
        if len(rest) > LONGEST_LINE:
            whole, rest = [*whole, rest], b""
        write(b"".join(prefix + line + b"\n" for line in whole))
    if rest:
        write(prefix + rest + b"\n")
    return wrote


# ``farmctl rc logs`` and the same of other nouns: what the pods of one owner wrote.

P = TypeVar("P")


def showing(noun: Noun[Any, Any]) -> click.Command:
    """``logs``."""

    async def run(invocation: Invocation, name: str, **options: Any) -> None:
        wanted = LogChoice(**options)
        record = (await noun.look(invocation.call, name)).record
        pods = (await versions.pods(invocation.call, noun, record)).placed
        await stream_all(invocation, f"{noun.words.noun}/{record.name}", pods, wanted)

    run.__doc__ = (
        f"The output of the pods of a {noun.words.one}.\n\n"
        "Where there are several, each line begins with NODE/INSTANCE, and lines are merged by time. Logs "
        "that cannot be read are named on stderr; the others are shown."
    )
    return command("logs")(target(noun.words.noun, objects(noun.kind))(options(PROCESS(run))))


async def stream_all(
    invocation: Invocation, title: str, pods: Sequence[overview.PodRow], wanted: LogChoice
) -> None:
    """What these pods wrote, merged by time, also what is followed: each line is held for a moment.

    Raises:
        NotFound, AgentUnavailable: some could not be read; the others were shown.
    """
    if not pods:
        invocation.say(f"{title} has no pods")

    found: list[list[tuple[bytes, bytes]]] = []
    merged = Merged(invocation.call.clock)

    async def read(pod: overview.PodRow, prefix: str) -> None:
        if wanted.follow and prefix:
            await _follow(invocation, pod, wanted, prefix, merged)
        elif not prefix:
            await stream(invocation, pod.node, pod.instance, wanted, prefix=prefix)
        else:
            found.append(await _timed(invocation, pod, wanted, prefix.encode()))

    writing = asyncio.create_task(merged.run())
    try:
        failed = await read_each(pods, lambda pod: f"{pod.node}/{pod.instance}", read, follow=wanted.follow)
    finally:
        writing.cancel()
        merged.flush(0.0)
    for _, line in heapq.merge(*found, key=lambda each: each[0]):
        to_stdout(line)
    if failed:
        missing = all(isinstance(error, NotFound) for error in failed)
        kind, what = (NotFound, "are not there") if missing else (AgentUnavailable, "could not be read")
        hints = {error.hint for error in failed if isinstance(error, AgentUnavailable)}
        hint = hints.pop() if len(hints) == 1 else ""
        raise kind(f"the logs of {share(len(failed), len(pods), 'pod')} {what}", hint=hint)


async def _follow(
    invocation: Invocation, pod: overview.PodRow, wanted: LogChoice, prefix: str, merged: Merged
) -> None:
    """Follow one pod of several; an agent of an earlier version knows no times, so its lines come at once."""
    write = merged.of(prefix.encode(), stamped=wanted.timestamps)
    try:
        timed = wanted._replace(timestamps=True)
        await stream(invocation, pod.node, pod.instance, timed, write=write)
    except NoTimes:
        if wanted.timestamps or wanted.since is not None:
            raise
        await stream(invocation, pod.node, pod.instance, wanted, prefix=prefix)


HELD_SECONDS, FLUSH_SECONDS = 0.6, 0.2


class Merged:
    """Lines of several pods by their times: each is held for a moment, in which an earlier one may come."""

    def __init__(self, clock: Clock, write: Callable[[bytes], None] = to_stdout) -> None:
        self._clock = clock
        self._write = write
        self._lines: list[tuple[bytes, float, bytes]] = []

    def of(self, prefix: bytes, *, stamped: bool) -> Callable[[bytes], None]:
        """A writer of one pod's output, whose lines begin with their times; ``stamped``: the times are
        shown.
        """
        rest, last = b"", b"-"

        def write(chunk: bytes) -> None:
            nonlocal rest, last
            *whole, rest = (rest + chunk).split(b"\n")
            if len(rest) > LONGEST_LINE:
                whole, rest = [*whole, rest], b""
            for line in whole:
                time, _, text = line.partition(b" ")
                if not _STAMP.fullmatch(time):  # the rest of a long line
                    time, text = last, line
                last = time
                shown = line if stamped else text
                self._lines.append((time, self._clock.mono(), prefix + shown + b"\n"))

        return write

    async def run(self) -> None:
        """Write the lines that were held long enough, until cancelled."""
        while True:
            await self._clock.sleep(FLUSH_SECONDS)
            self.flush(HELD_SECONDS)

    def flush(self, held: float) -> None:
        """Write the lines that were held for so many seconds, and those before them."""
        until = self._clock.mono() - held
        self._lines.sort(key=lambda each: each[0])
        due = max((at + 1 for at, each in enumerate(self._lines) if each[1] <= until), default=0)
        ready, self._lines = self._lines[:due], self._lines[due:]
        if ready:
            self._write(b"".join(text for _, _, text in ready))


_STAMP = re.compile(rb"-|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


async def _timed(
    invocation: Invocation, pod: overview.PodRow, wanted: LogChoice, prefix: bytes
) -> list[tuple[bytes, bytes]]:
    """The lines of a pod's log, each with its time, which an agent of an earlier version does not know."""
    chunks: list[bytes] = []
    times = True
    try:
        timed = wanted._replace(timestamps=True)
        await stream(invocation, pod.node, pod.instance, timed, write=chunks.append)
    except NoTimes:
        if wanted.timestamps or wanted.previous or wanted.since is not None:
            raise
        times = False
        await stream(invocation, pod.node, pod.instance, wanted, write=chunks.append)
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
