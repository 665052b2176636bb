"""Which farm an item prefers: rendezvous hashing (R7).

Every farm computes the same answer from the same members, without talking. When a member comes or goes,
only the items that preferred it move.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence


def score(member: str, item: str) -> bytes:
    """The weight of a pair; the member with the highest one is preferred."""
    return hashlib.blake2b(f"{member}/{item}".encode(), digest_size=8).digest()


def preferred(item: str, members: Sequence[str]) -> str:
    """The member that an item prefers; empty when there are no members."""
    if len(members) == 1:
        return members[0]
    return max(members, key=lambda member: (score(member, item), member), default="")
