"""The member that should hold each item: rendezvous hashing with bounded loads (R7, R9).

Every farm computes the same answer from the same members and items, without messages. Each item ranks the
members that may have it. A member has room for its even share; where more items prefer it, it keeps those
that it ranks highest, and the others go to their next choice. Both sides rank by one score, so the answer
does not depend on the order of the computation (a stable matching), and few items change their member when a
member comes or goes.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Mapping, Sequence


def score(member: str, item: str) -> bytes:
    """The weight of a pair; the member with the highest one is preferred."""
    return hashlib.blake2b(f"{member}/{item}".encode(), digest_size=8).digest()


def ranking(item: str, members: Sequence[str]) -> list[str]:
    """The members, the most preferred first."""
    return sorted(members, key=lambda member: (score(member, item), member), reverse=True)


def preferred(item: str, members: Sequence[str]) -> str:
    """The most preferred member; empty without members."""
    if len(members) == 1:
        return members[0]
    return max(members, key=lambda member: (score(member, item), member), default="")


def rooms(wanted: Mapping[str, int], loads: Mapping[str, int]) -> dict[str, int]:
    """How many of the wanted items each member gets, so that the loads are as even as possible.

    ``wanted`` counts the items that prefer each member, ``loads`` the items that it has already. The
    remainder of an uneven division goes to the members that most items prefer.
    """
    left = sum(wanted.values())
    level = _level(left, sorted(loads[member] for member in wanted))
    rooms = {member: max(0, level - loads[member]) for member in wanted}
    extras = left - sum(rooms.values())
    eager = sorted(
        wanted, key=lambda member: (loads[member] > level, -loads[member] - wanted[member], member)
    )
    for member in eager[:extras]:
        rooms[member] += 1
    return rooms


def _level(count: int, loads: Sequence[int]) -> int:
    """The highest even load that ``count`` more items give to the members with the lowest loads."""
    for filled in range(len(loads), 0, -1):
        level = (count + sum(loads[:filled])) // filled
        if level >= loads[filled - 1]:
            return level
    return 0


class Shares:
    """The items of one group of members, by the preferred member, shared out within each member's room."""

    def __init__(self, wanted: Mapping[str, list[str]], room: Mapping[str, int]) -> None:
        self._members = tuple(wanted)
        self._room = room
        self._items = {member: list(items) for member, items in wanted.items()}
        self._ranked: dict[str, list[tuple[bytes, str]]] = {}

    def even(self) -> bool:
        """Whether each item can go to the member that it prefers."""
        return all(len(items) <= self._room[member] for member, items in self._items.items())

    def rank(self, member: str) -> None:
        """Rank a member's items, which may take a while; otherwise ``moved`` does it."""
        self._heap(member)

    def moved(self) -> dict[str, str]:
        """The items that cannot go to the member that they prefer, with the member that they go to."""
        moved: dict[str, str] = {}
        homeless = [
            (item, member)
            for member in self._members
            for item in self._turned_away(member, len(self._items[member]) - self._room[member])
        ]
        while homeless:
            item, refused_by = homeless.pop()
            order = ranking(item, self._members)
            for member in order[order.index(refused_by) + 1 :]:
                loser = self._offer(item, member)
                if loser != item:
                    moved[item] = member
                    if loser is not None:
                        homeless.append((loser, member))
                    break
        return moved

    def _turned_away(self, member: str, surplus: int) -> list[str]:
        if surplus <= 0:
            return []
        ranked = self._heap(member)
        return [heapq.heappop(ranked)[1] for _ in range(surplus)]

    def _offer(self, item: str, member: str) -> str | None:
        """Give a member one more item; returns the item that it loses in exchange, None if it had room."""
        ranked = self._heap(member)
        entry = (score(member, item), item)
        if len(ranked) < self._room[member]:
            heapq.heappush(ranked, entry)
            return None
        return heapq.heappushpop(ranked, entry)[1]

    def _heap(self, member: str) -> list[tuple[bytes, str]]:
        """A member's items as a heap, the lowest rank first; built when first needed."""
        if member not in self._ranked:
            ranked = [(score(member, item), item) for item in self._items[member]]
            heapq.heapify(ranked)
            self._ranked[member] = ranked
        return self._ranked[member]
