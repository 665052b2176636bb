"""The one way in which a value of a compose file is refused."""

from __future__ import annotations

from typing import NoReturn

from store import errors
from store.mistakes import shown


def refuse(field: str, found: object, expected: str) -> NoReturn:
    """Refuse a value.

    Raises:
        InputInvalid: always; it names the field, what was found and what was expected.
    """
    errors.refuse(field, shown(found), expected)
