"""A table as data: rows, and columns that tell their text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class Column(NamedTuple):
    """One column of a table; ``wide`` ones are shown only where there is room for all."""

    title: str
    text: Callable[[Any], str]
    wide: bool = False


class Table(NamedTuple):
    """A list to show. ``kind`` is the singular, ``name`` gives ``rc/hello``; ``broken``: one line each."""

    kind: str
    rows: Sequence[Any]
    columns: Sequence[Column]
    name: Callable[[Any], str]
    plain: Callable[[Any], dict[str, Any]]
    broken: Sequence[str] = ()
    empty: str = ""


def clean(text: str) -> str:
    """One line without control characters."""
    return "".join(c if c.isprintable() else " " for c in text)
