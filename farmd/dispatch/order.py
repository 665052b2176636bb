"""The order in which the objects of an app are made: steps with a gate between them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from farmd.dispatch.model import Ref
from store.apps import Entry
from store.errors import InputInvalid


def steps(entries: Iterable[Entry]) -> tuple[tuple[Entry, ...], ...]:
    """The entries of each step: by wave, and inside of one by what must be ready before; as in the file.

    Raises:
        InputInvalid: objects wait for one another in a circle, which it names.
    """
    found = {str(entry.ref): entry for entry in entries}
    levels: dict[Ref, int] = {}
    for ref in found:
        _level(ref, found, levels, ())
    places = sorted({(entry.wave, levels[ref]) for ref, entry in found.items()})
    return tuple(
        tuple(entry for ref, entry in found.items() if (entry.wave, levels[ref]) == place) for place in places
    )


def _level(ref: Ref, found: Mapping[Ref, Entry], levels: dict[Ref, int], above: tuple[Ref, ...]) -> int:
    """How many objects of its wave must be ready one after the other before this one."""
    if ref in above:
        circle = " -> ".join([*above[above.index(ref) :], ref])
        raise InputInvalid(f"after: found a circle {circle}, expected none", field="after")
    if ref not in levels:
        entry = found[ref]
        same = [name for name in entry.after if name in found and found[name].wave == entry.wave]
        levels[ref] = max((1 + _level(name, found, levels, (*above, ref)) for name in same), default=0)
    return levels[ref]
