"""Shows what pods wrote, read through the agents of their nodes: the workload's own bytes, unchanged."""

from __future__ import annotations

import json
import math
import ssl
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import aiohttp
import click

from farmd.cli.invocation import Invocation
from farmd.cli.options import Duration, Whole
from farmd.commands import one_time
from farmd.runtime.errors import AgentUnavailable
from store import codec, features, presence
from store.consul.transport import reason
from store.errors import AccessDenied, InputInvalid, NotFound, RecordInvalid
from store.nodes import NodeStore
from store.reality import Reality

_FOLLOW = click.option("-f", "--follow", is_flag=True, help="Go on until ^C.")
_LINES = click.option(
    "--lines",
    "--tail",
    "lines",
    type=Whole(0, 10_000),
    default=100,
    show_default=True,
    help="How many old lines.",
)


_PREVIOUS = click.option(
    "--previous", "-p", is_flag=True, help="The output of the start before the last one."
)
_SINCE = click.option("--since", type=Duration(), help="Only the output of the last such time, such as 5m.")
_TIMESTAMPS = click.option("--timestamps", is_flag=True, help="Begin each line with the time of its output.")


def options(run: Callable[..., Any]) -> Callable[..., Any]:
    """The options of commands that show logs."""
    return _FOLLOW(_LINES(_PREVIOUS(_SINCE(_TIMESTAMPS(run)))))


class LogChoice(NamedTuple):
    """Which output is wanted, as the options say."""

    follow: bool
    lines: int
    previous: bool
    since: float | None
    timestamps: bool

    def params(self) -> dict[str, str]:
        """The agent's parameters.

        Raises:
            InputInvalid: the output of a previous start is to be followed.
        """
        if self.previous and self.follow:
            raise InputInvalid("--follow: found with --previous, whose start writes no more", field="follow")
        flags = {name: "1" for name in ("follow", "previous", "timestamps") if getattr(self, name)}
        return (
            {"lines": str(self.lines)}
            | flags
            | ({} if self.since is None else {"since": str(math.ceil(self.since))})
        )


LONGEST_LINE = 64 * 1024
"""The bytes after which a line without an end is written beside those of other pods."""
_TRUST = "FARMCTL_CACERT names the authorities of agents' certificates, FARMCTL_CLIENT_CERT your own"


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
    view = await NodeStore(invocation.client, invocation.keys).get(node)
    if view.agent is None or not view.agent.address:
        why = view.unreadable or "its agent is not connected"
        raise AgentUnavailable(
            f"node {node!r}: {why}, so its logs cannot be read from here",
            hint=f"they lie on the node itself; farmctl node describe {node} tells more",
        )
    path = f"/v1/pods/{instance}/logs"
    url = f"{presence.at_host(view.agent.address, view.record.address)}{path}"
    params = wanted.params()
    headers, denied = {}, ""
    if features.ACCESS in view.agent.features:  # an older agent answers everybody
        try:
            headers = await one_time.header(invocation.call, node, instance, path, params)
        except AccessDenied as error:
            denied = error.message
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
        raise AgentUnavailable(
            f"node {node!r}: its agent does not answer at {view.agent.address}: {reason(error)}",
            hint=_TRUST if isinstance(error, aiohttp.ClientSSLError) else "",
        ) from error
    if unstarted and not wrote:
        raise NotFound(unstarted, kind="pods", id=instance)


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
    limits = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=None if "follow" in params else 30)
    async with (
        aiohttp.ClientSession(timeout=limits) as http,
        http.get(url, params=params, headers=headers, ssl=tls) as response,
    ):
        if response.status == 404:
            what = "no output of a previous start" if "previous" in params else "no logs"
            raise NotFound(f"pod {node}/{instance} has {what}", kind="pods", id=instance)
        if response.status in (401, 403, 429):
            raise AgentUnavailable(f"node {node!r}: its agent refused: {await _told(response)}")
        if response.status != 200:
            raise AgentUnavailable(f"node {node!r}: its agent answered {response.status} {response.reason}")
        if params.keys() & {"previous", "since", "timestamps"} and "Farmd-Log-Times" not in response.headers:
            raise NoTimes(f"node {node!r}: its agent is of an earlier version, without times of output")
        if gone := response.headers.get("Farmd-Log-Gone"):
            click.echo(
                f"farmctl: pod {node}/{instance} was removed at {gone}; this is its last output", err=True
            )
        return await copy(response.content.iter_any(), prefix, write)


async def _told(response: aiohttp.ClientResponse) -> str:
    """What an agent says of a refusal."""
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
