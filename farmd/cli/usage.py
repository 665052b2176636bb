"""What pods use, as the agents of their nodes tell: for ``pod describe | list | top`` and ``rc describe``."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import click
import msgspec

from farmd import overview
from farmd.cli.invocation import Invocation
from farmd.cli.logs import asked, refusal
from farmd.cli.names import nodes
from farmd.cli.options import Whole, command
from farmd.cli.output import show
from farmd.overview import PodRow
from farmd.runtime.errors import FarmdError
from farmd.tables.model import Column, Table, clean
from farmd.tables.pods import owner_of
from farmd.tables.usage import OfNode, OfPod, Place, Sum, body, decoded, summed
from store import selectors
from store.errors import StoreError
from store.http import reason
from store.keys import valid_segment
from store.nodes import NodeStore
from store.reality import Usage
from store.times import plain
from store.words import count_of, size_text

if TYPE_CHECKING:
    import aiohttp

T = TypeVar("T")

SECONDS, CONNECT_SECONDS, ALL_SECONDS = 5.0, 1.5, 10.0
TOGETHER, REUSED_SECONDS = 16, 5.0
MOST_NODES, MOST_LISTED = 32, 64
"""So many agents are asked for what the pods of one owner use, and for what all listed pods use."""
MOST_TROUBLES, MOST_SHOWN = 3, 10


class Unknown(Exception):
    """What a pod uses cannot be told; the text says why."""


class Answers(NamedTuple):
    """What agents answered: the use of their nodes' pods, or why it is unknown; ``left`` were not asked."""

    used: Mapping[Place, Usage]
    unknown: Mapping[str, str]
    left: int = 0

    def notes(self, how: str = "") -> list[str]:
        """What people should know of the rest; ``how`` to see it."""
        told = [f"usage of node {node} is unknown: {why}" for node, why in sorted(self.unknown.items())]
        more = len(told) - MOST_TROUBLES
        told = [*told[:MOST_TROUBLES], *([f"and that of {count_of(more, 'other node')}"] if more > 0 else [])]
        asked = f"{self.left} more nodes were not asked" if self.left > 1 else "one more node was not asked"
        return [*told, *([f"{asked}{how}"] if self.left else [])]

    @property
    def document(self) -> dict[str, object]:
        """The same for programs."""
        return {"unanswered": dict(self.unknown), "not_asked": self.left}


async def of_pod(invocation: Invocation, node: str, instance: str) -> tuple[OfPod, str]:
    """What a pod uses now; else why that is not known."""
    try:
        async with _session() as http:
            found = await _answer(invocation, http, OfPod, node, instance)
    except Unknown as error:
        return OfPod(), str(error)
    known = found.usage is not None
    return found, "" if known else "its node has no control group (version 2) for it alone"


class Agents:
    """Asks at most ``most`` agents what the pods of their nodes use, and each not again within seconds."""

    def __init__(self, invocation: Invocation, most: int) -> None:
        self._invocation = invocation
        self._most = most
        self._known: dict[str, tuple[float, Mapping[str, Usage] | str]] = {}

    async def of_nodes(self, names: Sequence[str]) -> Answers:
        """What the pods of the first of these nodes use, within ``ALL_SECONDS``."""
        chosen, clock = names[: self._most], self._invocation.call.clock
        fresh = clock.mono() - REUSED_SECONDS
        wanted = [name for name in chosen if self._known.get(name, (-math.inf, ""))[0] < fresh]
        if wanted:
            self._known |= {name: (clock.mono(), each) for name, each in (await self._ask(wanted)).items()}
        found = {name: self._known[name][1] for name in chosen}
        used = {
            (node, instance): usage
            for node, each in found.items()
            if not isinstance(each, str)
            for instance, usage in each.items()
        }
        unknown = {node: each for node, each in found.items() if isinstance(each, str)}
        return Answers(used, unknown, len(names) - len(chosen))

    async def _ask(self, names: Sequence[str]) -> dict[str, Mapping[str, Usage] | str]:
        room = asyncio.Semaphore(TOGETHER)
        late = f"its agent did not answer within {ALL_SECONDS:.0f} s"
        found: dict[str, Mapping[str, Usage] | str] = dict.fromkeys(names, late)
        async with _session() as http:

            async def one(node: str) -> None:
                async with room:
                    try:
                        found[node] = (await _answer(self._invocation, http, OfNode, node, "")).usage
                    except Unknown as error:
                        found[node] = str(error)

            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ALL_SECONDS):
                    await asyncio.gather(*map(one, names))
        return found


def _session() -> aiohttp.ClientSession:
    import aiohttp  # 0.1 s, which lists of no pods do without

    limits = aiohttp.ClientTimeout(total=SECONDS, sock_connect=CONNECT_SECONDS)
    return aiohttp.ClientSession(timeout=limits)


async def _answer(
    invocation: Invocation, http: aiohttp.ClientSession, kind: type[T], node: str, instance: str
) -> T:
    import aiohttp

    try:
        url, headers, denied = await asked(invocation, node, instance, "usage", {})
        async with http.get(url, headers=headers, ssl=invocation.tls(), allow_redirects=False) as response:
            if response.status == 200:
                return decoded(kind, await body(response))
            if response.status == 404:
                raise Unknown("its agent is an earlier version, or does not know the pod")
            raise Unknown(f"its agent refused: {denied or await refusal(response)}")
    except (FarmdError, StoreError) as error:
        raise Unknown(error.message) from error
    except (aiohttp.ClientError, OSError) as error:
        raise Unknown(f"its agent does not answer: {reason(error)}") from error


def columns(used: Mapping[Place, Usage]) -> list[Column]:
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


HOW = "; raise --max-nodes, or choose some by -l or --node"
most_nodes = click.option(
    "--max-nodes",
    "most",
    type=Whole(1, 5000),
    default=MOST_LISTED,
    show_default=True,
    help="How many nodes' agents to ask at most.",
)


def fullest(rows: Sequence[PodRow]) -> list[str]:
    """The nodes of pods that run, those with most pods first."""
    counts = Counter(row.node for row in rows if row.pid)
    return sorted(counts, key=lambda node: (-counts[node], node))


def ranked(rows: Sequence[PodRow], used: Mapping[Place, Usage], sort: str) -> list[TopRow]:
    """The pods whose use is known, those first that use most."""
    told = [TopRow(row, used[row.node, row.instance]) for row in rows if (row.node, row.instance) in used]
    key = (lambda row: row.usage.cores) if sort == "cpu" else (lambda row: row.usage.memory)
    return sorted(told, key=key, reverse=True)


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
@most_nodes
async def top(invocation: Invocation, selector: str, node: str, sort: str, most: int) -> None:
    """What pods use now, those first that use most.

    The figures come from the nodes' agents, which are asked directly: those of the nodes with most pods, if
    there are more than --max-nodes. A pod is left out if its agent does not answer within 10 s, or if its
    node has no control group (version 2) for it.
    """
    wanted, agents = selectors.parse(selector), Agents(invocation, most)
    if node:
        await NodeStore(invocation.client, invocation.keys).get(valid_segment(node, "node"))

    async def read() -> Table:
        found = await overview.pods(invocation.client, invocation.keys)
        rows = [
            row for row in found.rows if row.pid and wanted.matches(row.labels) and node in {"", row.node}
        ]
        answers = await agents.of_nodes(fullest(rows))
        table = top_table(ranked(rows, answers.used, sort), found.broken)
        return table._replace(notes=answers.notes(HOW), more=answers.document)

    await show(invocation, read)


def _plain_pod(row: TopRow) -> dict[str, object]:
    place = {"node": row.pod.node, "instance": row.pod.instance, "owner": owner_of(row.pod)}
    return {**place, **plain(row.usage)}


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
        plain=_plain_pod,
        broken=broken,
        empty="no agent reports what its pods use",
    )


# ``farmctl top --usage``: the same of the whole fleet, beside everything else.


class FleetUse(NamedTuple):
    """What pods ask for and use together, each of them, and what agents answered."""

    together: Sum | None
    pods: Sequence[TopRow]
    answers: Answers

    def lines(self, draw: Callable[[Table], list[str]]) -> list[str]:
        """The pods that use most, below the sum of all."""
        told = [f"USAGE {self.together.text}"] if self.together is not None else ["USAGE unknown"]
        table = draw(top_table(self.pods[:MOST_SHOWN], ())) if self.pods else []
        return [*told, *table, *map(clean, self.answers.notes("; raise --max-nodes"))]

    @property
    def document(self) -> dict[str, object]:
        """The same for programs."""
        pods = [_plain_pod(row) for row in self.pods[:MOST_SHOWN]]
        return {"sum": plain(self.together), "pods": pods, **self.answers.document}


class FleetUses:
    """Reads that of the whole fleet, and not again within seconds: a screen is drawn each second."""

    def __init__(self, invocation: Invocation, most: int) -> None:
        self._invocation = invocation
        self._agents = Agents(invocation, most)
        self._known: tuple[float, FleetUse] | None = None

    async def read(self) -> FleetUse:
        """What all pods use, as far as agents answer."""
        now = self._invocation.call.clock.mono
        if self._known is None or self._known[0] + REUSED_SECONDS < now():
            rows = (await overview.pods(self._invocation.client, self._invocation.keys)).rows
            answers = await self._agents.of_nodes(fullest(rows))
            together = await summed(self._invocation.call, rows, answers.used)
            self._known = now(), FleetUse(together, ranked(rows, answers.used, "cpu"), answers)
        return self._known[1]


# What the pods of one owner ask for and use, side by side.


async def of_owner(invocation: Invocation, rows: Sequence[PodRow]) -> tuple[Sum | None, Answers]:
    """What an owner's pods ask for and use, None if no agent tells; and what the agents answered."""
    answers = await Agents(invocation, MOST_NODES).of_nodes(fullest(rows))
    return await summed(invocation.call, rows, answers.used), answers
