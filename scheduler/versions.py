"""Versions and version ranges, as they occur in node labels: kernels, agents, operating systems.

Suffixes are tolerated: ``5.10.0-8-amd64`` is a build of 5.10.0, not a pre-release of it. Only the
words alpha, beta, pre, dev and rc make a version a pre-release.
"""

from __future__ import annotations

import re
from collections.abc import Callable

Version = tuple[tuple[int, ...], tuple[int, int]]
VersionTest = Callable[[Version], bool]

_VERSION = re.compile(r"v?(\d+(?:\.\d+)*)(?:[-.]?(alpha|beta|dev|pre|rc)[-.]?(\d*))?(?![\d.])", re.IGNORECASE)
_CLAUSE = re.compile(r"(>=|<=|!=|==|=|>|<|~>)?\s*(\S+)")
_STAGES = {"dev": 0, "alpha": 1, "beta": 2, "pre": 3, "rc": 4}
_RELEASE = (9, 0)


def parse_version(text: str) -> Version | None:
    """Split ``v1.25.0-rc1+build`` into comparable parts; None when it does not start like a version."""
    found = _VERSION.match(text.strip())
    if found is None:
        return None
    numbers = [int(part) for part in found[1].split(".")]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    stage = _RELEASE if found[2] is None else (_STAGES[found[2].lower()], int(found[3] or 0))
    return tuple(numbers), stage


def parse_range(text: str) -> VersionTest | None:
    """A test for a range such as ``>=5.10, <7``: every clause must hold; None when it does not parse.

    Operators are ``=``, ``==``, ``!=``, ``<``, ``<=``, ``>``, ``>=`` and ``~>`` (``~>1.4`` is
    ``>=1.4, <2``; ``~>1.4.2`` is ``>=1.4.2, <1.5``); a bare version means ``=``.
    """
    tests = [_clause(clause.strip()) for clause in text.split(",")]
    known = [test for test in tests if test is not None]
    if len(known) < len(tests):
        return None
    return lambda version: all(test(version) for test in known)


def _clause(text: str) -> VersionTest | None:
    found = _CLAUSE.fullmatch(text)
    bound = parse_version(found[2]) if found is not None else None
    if found is None or bound is None:
        return None
    operator = found[1] or "="
    if operator == "~>":
        numbers = _VERSION.match(found[2])
        written = [int(part) for part in numbers[1].split(".")] if numbers is not None else [0]
        head = written[:-1] or written
        ceiling: Version = ((*head[:-1], head[-1] + 1), (-1, 0))
        return lambda version: bound <= version < ceiling
    comparisons: dict[str, VersionTest] = {
        "=": lambda version: version == bound,
        "==": lambda version: version == bound,
        "!=": lambda version: version != bound,
        "<": lambda version: version < bound,
        "<=": lambda version: version <= bound,
        ">": lambda version: version > bound,
        ">=": lambda version: version >= bound,
    }
    return comparisons[operator]
