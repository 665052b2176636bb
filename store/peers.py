"""The document that names the members of a set of pods to each of them: their ranks and addresses (R29).

It is stored as manifests are, once, under the digest of its bytes; intents of all members refer to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from store import codec

MAX_BYTES = 512 * 1024
"""What Consul stores under one key."""


class Peer(msgspec.Struct, frozen=True, gc=False):
    """One member: its slot, its rank among all, where it is reached, its ports by name."""

    type: str
    index: int
    rank: int
    address: str
    ports: dict[str, int] = {}


class Peers(msgspec.Struct, frozen=True):
    """All members, by rank."""

    members: list[Peer]


def document(members: Sequence[Peer]) -> bytes:
    """The canonical bytes of the document."""
    return codec.encode(Peers(sorted(members, key=lambda each: each.rank)))


def hostfile(peers: Peers) -> str:
    """One line for each address, in the order of ranks: ``10.0.0.7 slots=2``, as MPI reads it."""
    slots = Counter(each.address for each in peers.members)
    return "".join(f"{address} slots={count}\n" for address, count in slots.items())


def too_large(body: bytes) -> str:
    """Why no intent may refer to this document, as one line."""
    return (
        f"the document that lists all members: found {len(body)} bytes, expected at most {MAX_BYTES}:"
        " use fewer members, or fewer ports"
    )
