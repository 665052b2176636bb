"""Field types of the configuration, which accept TOML values and their form in environment variables.

In a variable a list is ``a, b``, a table of texts ``zone=a,rack=7``, a list of tables JSON. Times are numbers
of seconds or texts with units.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, SecretStr
from pydantic.fields import FieldInfo

from store.errors import InputInvalid
from store.mistakes import shown
from store.quantities import seconds

T = TypeVar("T")
V = TypeVar("V")


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

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=False, allow_inf_nan=False)


def as_value_error(check: Callable[[V], T], value: V) -> T:
    """Run a check of the store; pydantic needs ``ValueError`` in place of its ``InputInvalid``."""
    try:
        return check(value)
    except InputInvalid as error:
        raise ValueError(error.message) from error


def http_url(value: str) -> str:
    """An address that can be asked over HTTP.

    Raises:
        ValueError: it has another scheme, no host, no good port, or white space.
    """
    try:
        parts = urlsplit(value)
        good = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    if not good or any(char.isspace() for char in value):
        raise ValueError("expected http:// or https://, a host, and perhaps a port and a path")
    return value


_WORDS = {
    str: "text",
    SecretStr: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a time",
    list: "a list of texts",
    dict: "a table of texts",
}


def form(field: FieldInfo) -> str:
    """What a field accepts, for people: ``a number from 10 to 60``; ``form`` in its extras wins."""
    extra, kind = field.json_schema_extra, field.annotation
    if isinstance(extra, dict) and "form" in extra:
        return str(extra["form"])
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    names = ("ge", "gt", "le")
    limit = {
        name: shown(getattr(one, name)) for one in field.metadata for name in names if hasattr(one, name)
    }
    words = _WORDS[get_origin(kind) or kind]  # type: ignore[index]
    words += f" from {limit['ge']}" if "ge" in limit else f" above {limit['gt']}" if "gt" in limit else ""
    words += f" {'to' if 'ge' in limit else 'and at most'} {limit['le']}" if "le" in limit else ""
    return words + (" s" if kind is float and limit else "")


def formed(text: str) -> dict[str, Any]:
    """What a field accepts, where its type does not say it."""
    return {"form": text}


def this_host() -> str:
    """The name of this host, as names of farms and nodes are written."""
    short = re.sub(r"[^a-z0-9-]+", "-", socket.gethostname().partition(".")[0].lower()).strip("-")
    return short[:63] or "localhost"


def extended_url(url: str) -> str:
    """An address to which farmd adds a path, or none.

    Raises:
        ValueError: it has a query, or is none for HTTP.
    """
    if "?" in url or "#" in url:
        raise ValueError("expected http:// or https:// without a query, because farmd adds a path")
    return http_url(url) if url else url
