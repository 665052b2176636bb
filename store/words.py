"""Words of messages that depend on a number."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def count_of(count: int, noun: str) -> str:
    """``1 pod``, ``2 pods``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def share(count: int, total: int, noun: str) -> str:
    """``1 of 1 pod``, ``1 of 2 pods``."""
    return f"{count} of {count_of(total, noun)}"


def listed(names: Sequence[str], most: int = 10) -> str:
    """``a, b``; of more than ``most`` names the first ones, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def lasting(seconds: float) -> str:
    """A length of time in two units at most: ``8s``, ``4m12s``, ``2h5m``, ``3d4h``."""
    left = max(0, round(seconds))
    units = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))
    for (unit, size), (smaller, less) in pairwise(units):
        if left >= size:
            rest = left % size // less
            return f"{left // size}{unit}{f'{rest}{smaller}' if rest else ''}"
    return f"{left}s"


def size_text(count: int) -> str:
    """A number of bytes in its largest unit: ``512 MiB``, ``1.5 GiB``."""
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} GiB"


_UNITS = tuple((f"{letter}i", 1024.0**power) for power, letter in reversed([*enumerate("KMGTPE", 1)]))


def amount_text(amount: float, *, exact: bool = False) -> str:
    """An amount of a resource as people write it: ``1Ti``, ``23.5Gi``, ``0.5``.

    ``exact``: never rounded, so that amounts that differ have texts that differ.
    """
    for unit, size in _UNITS if float(amount).is_integer() else ():
        if amount >= size and (not exact or amount % size == 0):
            return f"{_short(amount / size)}{unit}"
    return repr(amount) if exact and not float(amount).is_integer() else _short(amount)


def asked_text(resource: str, amount: float) -> str:
    """An amount with its resource: ``0.5 cores``, ``1Ti memory``, ``2 gpu``."""
    text = amount_text(amount)
    noun = resource if resource != "cpu" else "core" if text == "1" else "cores"
    return f"{text} {noun}"


def _short(amount: float) -> str:
    """At most three digits behind the point, and no exponent."""
    return f"{amount:.3f}".rstrip("0").rstrip(".") if amount >= 0.001 or not amount else repr(amount)


def alike(left: str, right: str) -> bool:
    """Whether two messages differ in numbers alone."""
    return _NUMBER.sub("0", left) == _NUMBER.sub("0", right)
