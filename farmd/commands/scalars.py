"""What a scalar without quotes means in people's YAML: the core schema of YAML 1.2.

PyYAML follows YAML 1.1, where ``010`` is 8, ``1:30`` is 90, ``1_000`` is 1000, and ``yes`` and ``off`` are
truth values. The tags are those of https://yaml.org/spec/1.2.2/#103-core-schema, and merge keys (``<<``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

Resolvers = dict[str | None, list[tuple[str, re.Pattern[str]]]]

INTEGER = "tag:yaml.org,2002:int"
_TAGS = {
    "null": ("~nN", r"~|null|Null|NULL|"),
    "bool": ("tTfF", r"true|True|TRUE|false|False|FALSE"),
    "int": ("-+0123456789", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+"),
    "float": (
        "-+.0123456789",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
    ),
    "merge": ("<", r"<<"),
}


def _resolvers() -> Resolvers:
    """PyYAML's form: by the first character (``""`` for an empty scalar), the tags in their order."""
    found: Resolvers = {}
    for tag, (firsts, pattern) in _TAGS.items():
        compiled = re.compile(rf"(?:{pattern})\Z")
        for first in [*firsts, *([""] if compiled.match("") else [])]:
            found.setdefault(first, []).append((f"tag:yaml.org,2002:{tag}", compiled))
    return found


RESOLVERS = _resolvers()


def joined(others: Mapping[str | None, list[tuple[str, re.Pattern[str]]]]) -> Resolvers:
    """Other resolvers with those of YAML 1.2 behind them."""
    return {key: [*others.get(key, []), *RESOLVERS.get(key, [])] for key in {*others, *RESOLVERS}}


def integer(text: str) -> int:
    """An integer of the core schema: decimal, ``0o`` octal or ``0x`` hexadecimal.

    Raises:
        ValueError: longer than Python converts.
    """
    return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
