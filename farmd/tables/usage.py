"""What pods ask for and use together, side by side: for ``describe`` of their owner, and for the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec

from farmd.commands.mutation import Call
from farmd.overview import PodRow
from farmd.tables.manifests import read
from store import codec
from store.errors import RecordInvalid
from store.reality import Forwarded, Usage
from store.times import seconds_of
from store.words import amount_text, count_of, size_text

if TYPE_CHECKING:
    import aiohttp

Place = tuple[str, str]
T = TypeVar("T")
MOST_BYTES = 4 << 20
"""Of an agent's answer: that of a node with a thousand pods has 1 MiB."""


class OfPod(msgspec.Struct):
    """An agent's answer about one pod."""

    usage: Usage | None = None
    logs: list[Forwarded] = []


class OfNode(msgspec.Struct):
    """An agent's answer about all its pods; one of an earlier version tells no usage."""

    usage: dict[str, Usage] = {}


async def body(answer: aiohttp.ClientResponse) -> bytes:
    """An agent's whole answer, which arrives in pieces.

    Raises:
        OSError: it is too long.
    """
    found = bytearray()
    async for piece in answer.content.iter_any():
        found += piece
        if len(found) > MOST_BYTES:
            raise OSError(f"it answered more than {MOST_BYTES} bytes")
    return bytes(found)


def decoded(kind: type[T], answer: bytes) -> T:
    """An agent's answer, whose times are texts, as programs read them.

    Raises:
        RecordInvalid: it is no such answer.
    """
    try:
        told = msgspec.json.decode(answer)
        usage = told.get("usage") or {}
        for each in [usage, *usage.values()]:
            if isinstance(each, dict) and isinstance(each.get("at"), str):
                each["at"] = seconds_of(each["at"])
    except (msgspec.DecodeError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise RecordInvalid(f"usage: found an answer that is none: {error}", key="usage") from error
    return codec.decode(kind, msgspec.json.encode(told), "usage")


class Sum(msgspec.Struct, frozen=True):
    """What ``known`` of ``pods`` pods ask for and use together: cores and bytes of memory."""

    pods: int
    known: int
    cpu_asked: float
    cpu_used: float
    memory_asked: int
    memory_used: int

    @property
    def text(self) -> str:
        """The line of ``describe``."""
        cpu = f"{self.cpu_used:.2f} cores"
        cpu += f" of {amount_text(self.cpu_asked)} asked for" if self.cpu_asked else ""
        memory = f"{size_text(self.memory_used)} of memory"
        memory += f" of {size_text(self.memory_asked)} asked for" if self.memory_asked else ""
        of = "" if self.known == self.pods else f", by {self.known} of {count_of(self.pods, 'pod')}"
        return f"{cpu}, {memory}{of}"


async def summed(call: Call, rows: Sequence[PodRow], used: Mapping[Place, Usage]) -> Sum | None:
    """What these pods ask for and use; None if nothing is known of any."""
    running = [row for row in rows if row.pid]
    known = [row for row in running if (row.node, row.instance) in used]
    if not known:
        return None
    manifests = {sha: (await read(call, sha))[0] for sha in {row.manifest for row in known}}
    asks = [found.resources if (found := manifests[row.manifest]) is not None else {} for row in known]
    uses = [used[row.node, row.instance] for row in known]
    return Sum(
        pods=len(running),
        known=len(known),
        cpu_asked=sum(each.get("cpu", 0.0) for each in asks),
        cpu_used=round(sum(each.cores for each in uses), 3),
        memory_asked=int(sum(each.get("memory", 0.0) for each in asks)),
        memory_used=sum(each.memory for each in uses),
    )
