"""Templates of files: Jinja2 in its sandbox, without loaders and extensions (R45).

A template sees ``env``, the variables of the pod's environment without its secrets, and ``service(NAME)``,
the endpoints of a service. Who renders bounds time and memory: nothing here does. Jinja2 is imported at use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from store.errors import InputInvalid
from store.keys import valid_name

if TYPE_CHECKING:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

MOST_BYTES = 128 * 1024
"""How large a rendered file may be."""
MOST_RANGE = 10_000

_FAILURES = (ArithmeticError, AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError)

Endpoints = Mapping[str, Sequence[Mapping[str, Any]] | None]
"""The endpoints of services by name; None: there is no such service."""


class Unknown(Exception):
    """The template uses a service whose endpoints are not known yet."""


class Unfit(Exception):
    """Why nothing was rendered, in one line."""


def environment() -> ImmutableSandboxedEnvironment:
    """The environment in which templates are parsed and rendered."""
    from jinja2 import StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    found = ImmutableSandboxedEnvironment(
        undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False, cache_size=0
    )
    found.globals["range"] = _range
    return found


def _range(*given: int) -> range:
    found = range(*given)
    if len(found) > MOST_RANGE:
        raise Unfit(f"range of {len(found)}, expected at most {MOST_RANGE}")
    return found


def mistake(text: str) -> str:
    """Why a text is no template; empty: it is one."""
    from jinja2 import TemplateSyntaxError

    try:
        environment().parse(text)
    except TemplateSyntaxError as error:
        return f"line {error.lineno}: {error.message}"
    return ""


def rendered(text: str, env: Mapping[str, str], endpoints: Endpoints, used: set[str]) -> str:
    """The text of a template; ``used`` gets the services that it asks for.

    Raises:
        Unknown: the endpoints of one are not known. Unfit: it cannot be rendered.
    """
    from jinja2 import TemplateError

    def service(name: str) -> Sequence[Mapping[str, Any]]:
        try:
            used.add(valid_name(name, "service"))  # it becomes a part of a URL
        except InputInvalid as error:
            raise Unfit(error.message) from error
        if name not in endpoints:
            raise Unknown(name)
        if (found := endpoints[name]) is None:
            raise Unfit(f"service {name!r} does not exist")
        return found

    parts, size = [], 0
    try:
        for part in environment().from_string(text).generate(env=env, service=service):
            parts.append(part)
            size += len(part.encode())
            if size > MOST_BYTES:
                raise Unfit(f"its result has more than {MOST_BYTES} bytes")
    except (Unknown, Unfit):
        raise
    except MemoryError as error:
        raise Unfit("it needs too much memory") from error
    except (TemplateError, *_FAILURES) as error:
        text = str(error).replace("'dict object' has no attribute", "found no variable or field")
        text = text.encode("utf-8", "backslashreplace").decode()
        raise Unfit(text.splitlines()[0][:300] if text else type(error).__name__) from error
    return "".join(parts)
