"""The order in which the objects of an app are made: steps with a gate between them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter

from farmd.dispatch.model import Ref
from store.apps import Entry
from store.errors import InputInvalid


def steps(entries: Iterable[Entry]) -> tuple[tuple[Entry, ...], ...]:
    """The entries of each step: by wave, and inside of one by what must be ready before; as in the file.

    Raises:
        InputInvalid: objects wait for one another in a circle, which it names.
    """
    found = {str(entry.ref): entry for entry in entries}
    levels = _levels(found)
    places: dict[tuple[int, int], list[Entry]] = {}
    for ref, entry in found.items():
        places.setdefault((entry.wave, levels.get(ref, 0)), []).append(entry)
    return tuple(tuple(places[place]) for place in sorted(places))


def _levels(found: Mapping[Ref, Entry]) -> dict[Ref, int]:
    """How many steps of its wave an object comes after; most wait for nothing, and are left out."""
    before = {
        ref: [name for name in entry.after if name in found and found[name].wave == entry.wave]
        for ref, entry in found.items()
        if entry.after
    }
    sorter, levels = TopologicalSorter(before), dict[Ref, int]()
    try:
        sorter.prepare()
    except CycleError as error:
        circle = " -> ".join(reversed(error.args[1]))
        raise InputInvalid(f"after: found a circle {circle}, expected none", field="after") from error
    level = 0
    while sorter:
        ready = sorter.get_ready()
        levels |= dict.fromkeys(ready, level)
        sorter.done(*ready)
        level += 1
    return levels
