"""Lines of text that fit a terminal: pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

LEAST_WIDTH = 24


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
