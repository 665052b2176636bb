"""Field types of the configuration, which accept TOML values and their form in environment variables.

In a variable a list is ``a, b``, a table of texts ``zone=a,rack=7``, a list of tables JSON. Times are numbers
of seconds or texts with units.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict

from store.errors import InputInvalid
from store.quantities import seconds

T = TypeVar("T")


def _listed(value: Any) -> Any:
    """Split ``a, b`` from the environment into a list."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _mapped(value: Any) -> Any:
    """Split ``zone=a,rack=7`` from the environment into a table."""
    if not isinstance(value, str):
        return value
    pairs = [part.partition("=") for part in value.split(",") if part.strip()]
    if any(not separator for _, separator, _ in pairs):
        raise ValueError("expected name=value pairs, separated by commas")
    return {name.strip(): found.strip() for name, _, found in pairs}


def tabled(value: Any) -> Any:
    """Decode a list of tables from the environment, which is JSON."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError as error:
        raise ValueError(f"expected a JSON list of objects ({error})") from error


def _timed(value: Any) -> Any:
    """Turn ``1h30m`` into seconds."""
    return as_value_error(seconds, value) if isinstance(value, str) else value


Texts = Annotated[list[str], BeforeValidator(_listed)]
Labels = Annotated[dict[str, str], BeforeValidator(_mapped)]
Seconds = Annotated[float, BeforeValidator(_timed)]


class Section(BaseModel):
    """The base of all sections."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=False)


def as_value_error(check: Callable[[str], T], value: str) -> T:
    """Run a check of the store; pydantic needs ``ValueError`` in place of its ``InputInvalid``."""
    try:
        return check(value)
    except InputInvalid as error:
        raise ValueError(error.message) from error
