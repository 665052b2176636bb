"""Documents of Kubernetes as JSON has them: YAML allows more, and the API server takes only JSON.

As for kubectl, a name that is a number or a truth value is its text. What must never break: a document that
is recorded is the one that is sent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from store.errors import refuse
from store.mistakes import shown


def as_json(value: Any, where: str, path: str = "") -> Any:
    """A value of a file with text for its names; ``path`` is where in the document it stands.

    Raises:
        InputInvalid: what JSON has not, naming the place and the field.
    """
    if isinstance(value, Mapping):
        return {
            (text := _name(name, where, path)): as_json(each, where, f"{path}.{text}" if path else text)
            for name, each in value.items()
        }
    if isinstance(value, list):
        return [as_json(each, where, f"{path}[{at}]") for at, each in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        refuse(f"{where}: {path}", str(value), "a value of JSON", field=path)
    if value is not None and not isinstance(value, str | int | float):
        refuse(f"{where}: {path}", shown(value), "a value of JSON", field=path)
    return value


def _name(name: Any, where: str, path: str) -> str:
    if not isinstance(name, str | int | float):
        refuse(f"{where}: {path}", f"the key {shown(name)}", "text", field=path)
    return str(name).lower() if isinstance(name, bool) else str(name)
