"""What the members of a gang ask for together, so that a scheduler can tell whether they fit."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from farmd.jobs.resources.cluster_env import containers
from farmd.jobs.resources.resource import Resource
from store.errors import InputInvalid

_UNITS = {"": Fraction(1), "m": Fraction(1, 10**3), "u": Fraction(1, 10**6), "n": Fraction(1, 10**9)}
_UNITS |= {letter: Fraction(1000**power) for power, letter in enumerate("kMGTPE", 1)}
_UNITS |= {f"{letter}i": Fraction(1024**power) for power, letter in enumerate("KMGTPE", 1)}
_QUANTITY = re.compile(rf"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:([eE][+-]?[0-9]{{1,2}})|({'|'.join(_UNITS)}))")


def quantity(text: str | int | float, field: str = "quantity") -> Fraction:
    """The number of ``2``, ``500m``, ``64Mi`` or ``1e3``.

    Raises:
        InputInvalid: no such text.
    """
    found = _QUANTITY.fullmatch(str(text))
    if found is None:
        raise InputInvalid(f"{field}: found {text!r}, expected a quantity such as 500m or 64Mi")
    digits, exponent, unit = found.groups()
    return Fraction(digits + (exponent or "")) * _UNITS[unit or ""]


def written(number: Fraction) -> str:
    """A quantity as the API writes it: whole, or in thousandths, rounded up."""
    if number.denominator == 1:
        return str(number.numerator)
    return f"{-(-number.numerator * 1000 // number.denominator)}m"


def min_resources(of: Resource, members: int, priorities: Callable[[str], int]) -> dict[str, str]:
    """The requests of so many members, those of the highest priority first; of equal ones in the order of
    types.

    A container without requests counts by its limits. Init containers do not count.
    """
    ranked = sorted(of.job.types, key=lambda kind: -_priority(of.templates[kind.name], priorities))
    total: dict[str, Fraction] = {}
    left = members
    for kind in ranked:
        count = min(left, kind.replicas)
        left -= count
        for name, amount in _requests(of.templates[kind.name]).items():
            total[name] = total.get(name, Fraction(0)) + amount * count
    return {name: written(amount) for name, amount in sorted(total.items()) if amount}


def _priority(template: Mapping[str, Any], priorities: Callable[[str], int]) -> int:
    name = (template.get("spec") or {}).get("priorityClassName") or ""
    return priorities(name) if name else 0


def _requests(template: Mapping[str, Any]) -> dict[str, Fraction]:
    total: dict[str, Fraction] = {}
    for container in containers(template):
        asked = container.get("resources") or {}
        requests = asked.get("limits") if asked.get("requests") is None else asked["requests"]
        for name, text in (requests or {}).items():
            total[name] = total.get(name, Fraction(0)) + quantity(text, name)
    return total
