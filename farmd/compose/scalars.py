"""Scalars of compose files: sizes, counts, truth values and words, from text or as YAML reads them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

import msgspec

from store import errors
from store.errors import InputInvalid
from store.mistakes import shown

# The one way in which a value of a compose file is refused.


def refuse(field: str, found: object, expected: str) -> NoReturn:
    """Refuse a value.

    Raises:
        InputInvalid: always; it names the field, what was found and what was expected.
    """
    errors.refuse(field, shown(found), expected)


_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([kmgtp]?)i?b?", re.IGNORECASE)
LONGEST_LINE = 32 * 1024
_POWERS = ("", "k", "m", "g", "t", "p")


def size(text: str) -> int:
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise InputInvalid(f"found {shown(text)}, expected a size such as 64m or 1.5g")
    return int(float(found[1]) * 1024 ** _POWERS.index(found[2].lower()))


def count(text: str) -> int:
    if not re.fullmatch(r"-?\d{1,18}", text):
        raise InputInvalid(f"found {shown(text)}, expected a whole number")
    return int(text)


def _number(text: str) -> float:
    if not re.fullmatch(r"\d{1,15}(\.\d{1,9})?", text):
        raise InputInvalid(f"found {shown(text)}, expected a number such as 0.5")
    return float(text)


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise InputInvalid(f"found {shown(text)}, expected true or false")
    return text.lower() == "true"


def file_mode(text: str) -> int:
    if not re.fullmatch(r"(0o?)?[0-7]{1,4}", text):
        raise InputInvalid(f"found {shown(text)}, expected a mode such as 0440")
    return int(text.removeprefix("0o"), 8)


def _split(text: str) -> list[str]:
    if len(text) > LONGEST_LINE:  # splitting takes the square of its length
        raise InputInvalid(
            f"found {len(text)} characters, expected at most {LONGEST_LINE}, or a list of words"
        )
    try:
        return shlex.split(text)
    except ValueError as error:
        raise InputInvalid(f"found {shown(text)}, expected words with closed quotes") from error


def _reads(parse: Callable[[str], object]) -> msgspec.Meta:
    return msgspec.Meta(extra={"parse": parse})


Size = Annotated[int, _reads(size)]
Count = Annotated[int, _reads(count)]
Number = Annotated[float, _reads(_number)]
Flag = Annotated[bool, _reads(_flag)]
FileMode = Annotated[int, _reads(file_mode)]
Scalar = str | int | float
Words = Annotated[list[Scalar], _reads(_split)]
Pairs = dict[str, str | int | float | bool | None]


def word(value: Any) -> str:
    """A scalar as the text that its file shows."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value)


def words(pairs: Pairs) -> dict[str, str]:
    """Pairs as text; a key without a value has the empty one."""
    return {key: "" if value is None else word(value) for key, value in pairs.items()}
