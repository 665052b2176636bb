"""A table as data: rows, and columns that tell their text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

STATES = frozenset({"STATE", "PHASE", "HEALTH"})
"""The columns that are left out last where there is too little room."""
_LONGEST = 400
_COLOURED = frozenset({"STATE", "HEALTH", "CODE"})
_COLOURS = {
    "converged": "green",
    "ready": "green",
    "passing": "green",
    "progressing": "yellow",
    "pending": "yellow",
    "deleting": "yellow",
    "draining": "yellow",
    "unowned": "yellow",
    "unknown": "yellow",
    "blocked": "red",
    "frozen": "red",
    "absent": "red",
    "lost": "red",
    "critical": "red",
    "failed": "red",
}


class Column(NamedTuple):
    """One column of a table; ``wide`` ones are shown only where there is room for all.

    ``order`` is what rows are sorted by, where that is not the text.
    """

    title: str
    text: Callable[[Any], str]
    wide: bool = False
    order: Callable[[Any], Any] | None = None


class Table(NamedTuple):
    """A list to show. ``kind`` is the singular, ``name`` gives ``rc/hello``; ``broken``: one line each.

    ``more`` are fields that programs get beside the items. ``notes`` are lines for people below the list.
    """

    kind: str
    rows: Sequence[Any]
    columns: Sequence[Column]
    name: Callable[[Any], str]
    plain: Callable[[Any], dict[str, Any]]
    broken: Sequence[str] = ()
    empty: str = ""
    more: Mapping[str, Any] = MappingProxyType({})
    notes: Sequence[str] = ()


class Details(NamedTuple):
    """What a kind adds to the description of its items.

    ``document``: for programs; ``broken``: a line for each record that does not decode.
    """

    facts: Sequence[tuple[str, str]] = ()
    tables: Mapping[str, Table] = MappingProxyType({})
    document: Mapping[str, Any] = MappingProxyType({})
    broken: Sequence[str] = ()


class Described(NamedTuple):
    """One item as people see it on a page of its own, and as ``describe`` prints it.

    ``tables`` are by title. ``audited`` is the kind in the audit. ``document`` is for programs. ``broken``: a
    line for each record that does not decode.
    """

    id: str
    name: str
    state: str
    reason: str
    facts: Sequence[tuple[str, str]]
    tables: Mapping[str, Table]
    row: Any
    audited: str = ""
    pods: Table | None = None
    document: Mapping[str, Any] = MappingProxyType({})
    broken: Sequence[str] = ()

    @property
    def shown(self) -> dict[str, Table]:
        """The tables by title, that of the pods first."""
        pods = {} if self.pods is None else {f"Pods ({len(self.pods.rows)})": self.pods}
        return {**pods, **self.tables}


class Explained(NamedTuple):
    """Why an item's pods are where they are, or why it gets none: lines, a document, and ``-o name``."""

    lines: Sequence[str]
    document: Mapping[str, Any]
    names: Sequence[str]


def clean(text: str) -> str:
    """One line without control characters."""
    return "".join(c if c.isprintable() else " " for c in text)


def one_line(text: str) -> str:
    """A message as one line without control characters; of a word of more than a screenful the ends."""
    words = (
        word if len(word) <= _LONGEST else f"{word[: _LONGEST // 2]}…{word[-_LONGEST // 8 :]}"
        for word in text.split()
    )
    return clean(" ".join(words))


def colour_of(title: str, text: str) -> str:
    """The colour of a cell: that of the first word of a state; empty for none."""
    word = text.split(",", maxsplit=1)[0].split(" ", maxsplit=1)[0] if title in _COLOURED else ""
    return _COLOURS.get(word, "")


# Values as short texts for people.


def ago(now: float, then: float) -> str:
    """How long ago, in one unit: ``5s``, ``3m``, ``2h``, ``4d``; empty for never."""
    if then <= 0:
        return ""
    seconds = max(0, int(now - then))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def differences(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    """What changed, field by field, as people may see it."""
    from farmd.commands.difference import lines

    return [clean(line) for line in lines(before, after)]


def pairs(values: dict[str, Any]) -> str:
    """``a=1,b=2``, sorted."""
    return ",".join(f"{key}={values[key]}" for key in sorted(values))
