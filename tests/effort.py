"""How hard a run searches: `make test` tries a fifth of the examples, all others try all of them.

Where examples are not drawn but listed, such as the ways in which a farm falls, `make test` runs the first
ones, and `make test-all` runs the rest.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable
from typing import Any

import pytest

BRIEF = os.environ.get("FARMD_TEST_BRIEF") == "1"


def tries(count: int) -> int:
    """The number of examples of a property, ``count`` in a whole run."""
    return max(10, count // 5) if BRIEF else count


def first(count: int, values: Iterable[Any]) -> list[Any]:
    """Parameters, of which only the first ``count`` are in `make test`."""
    return [
        value if place < count else pytest.param(value, marks=pytest.mark.whole)
        for place, value in enumerate(values)
    ]


SHARES = 5
shares = pytest.mark.parametrize("share", first(1, range(SHARES)))
"""For a test that goes through steps until there are no more: each case takes every fifth of them."""


def until_over(share: int, step: Callable[[int], bool]) -> int:
    """Call ``step`` with this share's numbers until it returns False; how often it did not."""
    return next(done for done, number in enumerate(itertools.count(share, SHARES)) if not step(number))
