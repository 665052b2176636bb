"""The order in which the objects of an app are made: steps with a gate between them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
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
    sorter = TopologicalSorter(
        {
            ref: [name for name in entry.after if name in found and found[name].wave == entry.wave]
            for ref, entry in found.items()
        }
    )
    try:
        sorter.prepare()
    except CycleError as error:
        circle = " -> ".join(reversed(error.args[1]))
        raise InputInvalid(f"after: found a circle {circle}, expected none", field="after") from error
    levels: dict[Ref, int] = {}
    level = 0
    while sorter:
        ready = sorter.get_ready()
        levels |= dict.fromkeys(ready, level)
        sorter.done(*ready)
        level += 1
    places: dict[tuple[int, int], list[Entry]] = {}
    for ref, entry in found.items():
        places.setdefault((entry.wave, levels[ref]), []).append(entry)
    return tuple(tuple(places[place]) for place in sorted(places))
