"""What pods use, as the agents of their nodes tell: for ``pod describe | list | top`` and ``rc describe``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import click
import msgspec

from farmd import overview
from farmd.cli.invocation import Invocation
from farmd.cli.logs import asked, refusal
from farmd.cli.names import nodes
from farmd.cli.options import command
from farmd.cli.output import show
from farmd.overview import PodRow
from farmd.runtime.errors import FarmdError
from farmd.tables.model import Column, Table
from farmd.tables.pods import owner_of
from farmd.tables.usage import OfNode, OfPod, Place, Sum, decoded, summed
from store import selectors
from store.errors import StoreError
from store.http import reason
from store.keys import valid_segment
from store.nodes import NodeStore
from store.reality import Usage
from store.times import plain
from store.words import size_text

SECONDS, CONNECT_SECONDS = 5.0, 1.5
TOGETHER = 16
MOST_NODES, MOST_LISTED = 32, 64
"""So many agents are asked for what the pods of one owner use, and for what all listed pods use."""


class Unknown(Exception):
    """What a pod uses cannot be told; the text says why."""


async def of_pod(invocation: Invocation, node: str, instance: str) -> tuple[OfPod, str]:
    """What a pod uses now; else why that is not known."""
    try:
        body = await _answer(invocation, node, instance)
    except Unknown as error:
        return OfPod(), str(error)
    found = decoded(OfPod, body)
    known = found.usage is not None
    return found, "" if known else "its node has no control group (version 2) for it alone"


async def of_nodes(invocation: Invocation, names: Sequence[str]) -> dict[Place, Usage]:
    """What the pods of these nodes use; those of agents that do not answer are left out."""
    found: dict[Place, Usage] = {}
    room = asyncio.Semaphore(TOGETHER)

    async def one(node: str) -> None:
        async with room:
            try:
                answer = decoded(OfNode, await _answer(invocation, node, ""))
            except (Unknown, StoreError):
                return
            found.update({(node, instance): each for instance, each in answer.usage.items()})

    await asyncio.gather(*(one(node) for node in names))
    return found


async def _answer(invocation: Invocation, node: str, instance: str) -> bytes:
    import aiohttp  # 0.1 s, which lists of no pods do without

    limits = aiohttp.ClientTimeout(total=SECONDS, sock_connect=CONNECT_SECONDS)
    try:
        url, headers, denied = await asked(invocation, node, instance, "usage", {})
        async with (
            aiohttp.ClientSession(timeout=limits) as http,
            http.get(url, headers=headers, ssl=invocation.tls()) as response,
        ):
            if response.status == 200:
                return await response.read()
            if response.status == 404:
                raise Unknown("its agent is an earlier version, or does not know the pod")
            raise Unknown(f"its agent refused: {denied or await refusal(response)}")
    except (FarmdError, StoreError) as error:
        raise Unknown(error.message) from error
    except (aiohttp.ClientError, TimeoutError) as error:
        raise Unknown(f"its agent does not answer: {reason(error)}") from error


def columns(used: dict[Place, Usage]) -> list[Column]:
    """What pods use, as columns of a list of pods; empty where that is not known."""

    def of(row: PodRow) -> Usage | None:
        return used.get((row.node, row.instance))

    def cores(row: PodRow) -> str:
        return f"{found.cores:.2f}" if (found := of(row)) is not None else ""

    def memory(row: PodRow) -> str:
        return size_text(found.memory) if (found := of(row)) is not None else ""

    return [Column("CPU", cores, wide=True), Column("MEMORY", memory, wide=True)]


# ``farmctl pod top``: what pods use, those first that use most.


class TopRow(msgspec.Struct, frozen=True):
    """One pod, and what it uses."""

    pod: PodRow
    usage: Usage


@command("top", lists=True)
@click.option("-l", "--selector", default="", help="Only pods whose labels match.")
@click.option("--node", default="", shell_complete=nodes, help="Only pods on this node.")
@click.option(
    "--sort",
    type=click.Choice(["cpu", "memory"]),
    default="cpu",
    show_default=True,
    help="What the pods are sorted by.",
)
async def top(invocation: Invocation, selector: str, node: str, sort: str) -> None:
    """What pods use now, those first that use most.

    The figures come from the nodes' agents. A pod is left out if its agent does not answer, or if its node
    has no control group (version 2) for it.
    """
    wanted = selectors.parse(selector)
    if node:
        await NodeStore(invocation.client, invocation.keys).get(valid_segment(node, "node"))

    async def read() -> Table:
        found = await overview.pods(invocation.client, invocation.keys)
        rows = [
            row for row in found.rows if row.pid and wanted.matches(row.labels) and node in {"", row.node}
        ]
        used = await of_nodes(invocation, sorted({row.node for row in rows}))
        told = [TopRow(row, used[row.node, row.instance]) for row in rows if (row.node, row.instance) in used]
        key = (lambda row: row.usage.cores) if sort == "cpu" else (lambda row: row.usage.memory)
        return top_table(sorted(told, key=key, reverse=True), found.broken)

    await show(invocation, read)


def top_table(rows: Sequence[TopRow], broken: Sequence[str]) -> Table:
    """One line for each pod."""
    return Table(
        kind="PodUsage",
        rows=rows,
        columns=(
            Column("NODE", lambda row: row.pod.node),
            Column("INSTANCE", lambda row: row.pod.instance),
            Column("OWNER", lambda row: owner_of(row.pod)),
            Column("CPU", lambda row: f"{row.usage.cores:.2f}"),
            Column("MEMORY", lambda row: size_text(row.usage.memory)),
            Column("PEAK", lambda row: size_text(row.usage.memory_peak)),
            Column("LIMIT", lambda row: size_text(row.usage.memory_limit) if row.usage.memory_limit else ""),
            Column("TASKS", lambda row: str(row.usage.pids)),
            Column("THROTTLED", lambda row: f"{row.usage.throttled_seconds:.1f} s", wide=True),
            Column("READ", lambda row: size_text(row.usage.io_read), wide=True),
            Column("WRITTEN", lambda row: size_text(row.usage.io_written), wide=True),
            Column("OOM", lambda row: str(row.usage.oom_kills or "")),
        ),
        name=lambda row: f"pod/{row.pod.node}/{row.pod.instance}",
        plain=lambda row: (
            {"node": row.pod.node, "instance": row.pod.instance, "owner": owner_of(row.pod)}
            | plain(row.usage)
        ),
        broken=broken,
        empty="no pod whose agent tells what it uses",
    )


# What the pods of one owner ask for and use, side by side.


async def of_owner(invocation: Invocation, rows: Sequence[PodRow]) -> Sum | None:
    """What an owner's pods ask for and use; None if no agent tells."""
    running = [row for row in rows if row.pid]
    places = sorted({row.node for row in running})[:MOST_NODES]
    used = await of_nodes(invocation, places)
    return await summed(invocation.call, rows, used)
