"""How the sections declare their keys: types, limits, checks and words (``values`` reads by them).

The annotation of a field is ``Annotated[type, key(...)]``. A type is ``str``, ``int``, ``float`` (a time),
``bool``, a ``Literal``, a ``Secret``, a list of texts, a table of texts, or a list of tables.
"""

from __future__ import annotations

import functools
import json
import math
import re
import socket
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args, get_origin
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import FieldInfo

from store.credentials import told


class Section(msgspec.Struct, frozen=True):
    """The base of all sections."""


class Secret(msgspec.Struct, frozen=True):
    """A text that is never shown."""

    text: str = ""

    def __repr__(self) -> str:
        return "[hidden]" if self.text else ""


class Key(NamedTuple):
    """One key of a section, from its field."""

    name: str
    annotated: Any
    field: FieldInfo

    @property
    def kind(self) -> Any:
        """The type of its values."""
        return get_args(self.annotated)[0]

    @property
    def meta(self) -> msgspec.Meta:
        """What ``key`` says of it."""
        return self.annotated.__metadata__[0]  # type: ignore[no-any-return]

    @property
    def description(self) -> str:
        return self.meta.description or ""

    @property
    def extra(self) -> dict[str, Any]:
        return self.meta.extra or {}

    @property
    def required(self) -> bool:
        return self.field.required

    def of(self, section: Section) -> Any:
        """Its value in a section."""
        return getattr(section, self.name)

    @property
    def default(self) -> Any:
        """Its default; for this only a required key has none."""
        factory = self.field.default_factory
        return self.field.default if factory is msgspec.NODEFAULT else factory()


def key(
    description: str,
    *,
    form: str = "",
    reloadable: bool = False,
    check: Callable[[Any], object] | None = None,
    **limits: Any,
) -> msgspec.Meta:
    """The meaning of a key and the values that it accepts.

    Args:
        form: what it accepts, where its type and limits do not say it.
        reloadable: it may change while the process runs.
        check: called with a value of the right type; it raises ``InputInvalid`` or ``ValueError``.
        limits: ``ge``, ``gt``, ``le`` or ``min_length``.
    """
    extra = {"form": form, "reloadable": reloadable, "check": check}
    return msgspec.Meta(description=description, extra=extra, **limits)


@functools.cache
def keys(section: type[Section]) -> dict[str, Key]:
    """The keys of a section by their names, in order."""
    return {field.name: Key(field.name, field.type, field) for field in msgspec.structs.fields(section)}


_WORDS = {
    str: "text",
    Secret: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a time",
    list: "a list of texts",
    dict: "a table of texts",
}


def form(one: Key) -> str:
    """What a key accepts, for people: ``a number from 10 to 60``."""
    if said := one.extra["form"]:
        return str(said)
    kind, meta = one.kind, one.meta
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    words = _WORDS[get_origin(kind) or kind]
    words += f" from {shown(meta.ge)}" if meta.ge is not None else ""
    words += f" above {shown(meta.gt)}" if meta.gt is not None else ""
    if meta.le is not None:
        words += f" {'to' if meta.ge is not None else 'and at most'} {shown(meta.le)}"
    limited = (meta.ge, meta.gt, meta.le) != (None, None, None)
    return words + (" s" if kind is float and limited else "")


def shown(value: object) -> str:
    """A value for people: secrets and the credentials of addresses hidden, text in TOML's form."""
    if isinstance(value, str):
        return json.dumps(told(value) if "://" in value or "?" in value else value, ensure_ascii=False)
    if isinstance(value, Secret):
        return f'"{value}"'
    if isinstance(value, Section):
        return shown(msgspec.structs.asdict(value))
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_bare(name)} = {shown(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(shown(item) for item in value) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # as TOML writes it
    return json.dumps(value, ensure_ascii=False)


def _bare(name: str) -> str:
    """A TOML key, quoted if necessary."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)


# -- checks ----------------------------------------------------------------------------------------
def http_url(value: str) -> None:
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


def extended_url(url: str) -> None:
    """An address to which farmd adds a path, or none.

    Raises:
        ValueError: it has a query, or is none for HTTP.
    """
    if "?" in url or "#" in url:
        raise ValueError("expected http:// or https:// without a query, because farmd adds a path")
    if url:
        http_url(url)


def this_host() -> str:
    """The name of this host, as names of farms and nodes are written."""
    short = re.sub(r"[^a-z0-9-]+", "-", socket.gethostname().partition(".")[0].lower()).strip("-")
    return short[:63] or "localhost"
