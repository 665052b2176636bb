"""How an app treats one of its objects, and the order that this gives: waves, and what comes after what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any, Literal

import msgspec

from store.apps import Entry
from store.errors import InputInvalid, refuse
from store.mistakes import nearest

WAVES = range(-100, 101)


class Treatment(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """``wave``: objects of a wave wait until those before are ready. ``after``: objects to wait for.

    ``on_remove: keep``: the object stays when it leaves the files. ``apply: once``: it is made, and never
    touched again in its revision. ``ignore``: fields whose value counts for the creation alone. ``replace``:
    a change that the object cannot take deletes it and makes it anew.
    """

    wave: int = 0
    after: list[str] = []
    on_remove: Literal["delete", "keep"] = "delete"
    apply: Literal["always", "once"] = "always"
    ignore: list[str] = []
    replace: bool = False


def checked(treatment: Treatment, where: str, prefix: str) -> dict[str, Any]:
    """The fields of an entry that a treatment gives; ``prefix`` stands before their names in messages.

    Raises:
        InputInvalid: a wave out of range.
    """
    if treatment.wave not in WAVES:
        expected = f"a whole number from {WAVES.start} to {WAVES.stop - 1}"
        refuse(f"{where}: {prefix}wave", str(treatment.wave), expected, field=f"{prefix}wave")
    return {name: getattr(treatment, name) for name in Treatment.__struct_fields__}


def check_order(entries: Sequence[Entry], places: Mapping[str, str]) -> None:
    """Check that each object comes after objects of the bundle, none of a later wave, and not in a circle.

    Raises:
        InputInvalid: naming the place and the object, or the circle.
    """
    found = {str(entry.ref): entry for entry in entries}
    for name, entry in found.items():
        where = f"{places[name]}: {name}: after"
        for other in entry.after:
            if other not in found:
                known = nearest(other, sorted(found), "an object of this bundle")
                raise InputInvalid(f"{where}: found {other!r}{known}", field="after")
            if found[other].wave > entry.wave:
                expected = f"an object of wave {entry.wave} or earlier"
                refuse(where, f"{other}, which is in wave {found[other].wave}", expected, field="after")
    try:
        TopologicalSorter({name: entry.after for name, entry in found.items()}).prepare()
    except CycleError as error:
        circle = list(reversed(error.args[1]))
        where = places[circle[0]]
        raise InputInvalid(
            f"{where}: after: found the circle {' -> '.join(circle)}", field="after"
        ) from error
