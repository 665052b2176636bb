"""Lines of text that fit a terminal: pure."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable

from store.words import listed

LEAST_WIDTH = 24
_OF_SERVICE = re.compile(r"services\.(?P<name>[^.:\[ ]+)\.(?P<rest>.+)", re.DOTALL)


def alike(warnings: Iterable[str]) -> list[str]:
    """Warnings of which those that several services have alike are one line."""
    found: dict[str, list[str]] = {}
    for text in warnings:
        service = _OF_SERVICE.fullmatch(text)
        found.setdefault(service["rest"] if service else text, []).append(service["name"] if service else "")
    return [_of_services(names, rest) if names[0] else rest for rest, names in found.items()]


def _of_services(names: list[str], rest: str) -> str:
    return f"services.{names[0]}.{rest}" if len(names) == 1 else f"services {listed(names, 3)}: {rest}"


def fitting(told: Iterable[str], width: int) -> list[str]:
    """The lines, folded where they are longer than the width; each rest is indented deeper."""
    if not width:
        return list(told)
    folded = (
        textwrap.wrap(
            line,
            max(width, LEAST_WIDTH),
            subsequent_indent=" " * (len(line) - len(line.lstrip()) + 4),
            drop_whitespace=True,
            break_on_hyphens=False,
        )
        for line in told
    )
    return [line for each in folded for line in each]
