"""Reading a large tree in parts, so that a change costs the part that it is in and not the whole tree (R23).

Consul answers a query of a prefix with everything below it. The keys up to the next slash are a small
answer, and its index tells whether anything below its prefix changed. So a large tree is followed by its
keys. After a change the keys of each part tell which parts changed, and only these are read with values.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from store.entry import Page, RawEntry

LEAST, MOST = 2, 64
SHARE = 12


class Portion(Page[RawEntry], frozen=True, kw_only=True):
    """The entries of the parts that changed.

    ``below`` are the prefixes of these parts, whose entries are all here. ``names`` are all keys of the tree
    up to the next slash, at ``index``: what they lack is gone. ``parts`` has the index of each part of the
    tree: with these entries, the copy is as new as that.
    """

    names: frozenset[str]
    below: tuple[str, ...]
    parts: dict[str, int]


def parts(names: Iterable[str]) -> list[str]:
    """Prefixes that hold all of these names, each at most a twelfth of them where the names allow it.

    None, if that takes more than ``MOST`` prefixes, or only one.
    """
    ordered = sorted(names)
    found = _split(ordered, 0, len(ordered), max(1, len(ordered) // SHARE)) if ordered else []
    return found if LEAST <= len(found) <= MOST else []


def _split(names: Sequence[str], first: int, end: int, limit: int) -> list[str]:
    """The prefixes of ``names[first:end]``; names that follow one another share the longest prefixes."""
    low, high = names[first], names[end - 1]
    common = low[
        : next((at for at, pair in enumerate(zip(low, high, strict=False)) if pair[0] != pair[1]), len(low))
    ]
    if end - first <= limit or names[first] == common:
        return [common]
    found, at = list[str](), first
    while at < end and len(found) <= MOST:
        digit = names[at][len(common)]
        after = bisect_left(names, common + chr(ord(digit) + 1), at, end)
        found += _split(names, at, after, limit)
        at = after
    return found
