"""Parameters of a job file: ``${param.NAME}`` in any text of it, filled in before anything else is read.

``parameters`` maps each name to its default; null: whoever runs the job must name a value. A text that is
nothing but a parameter takes the kind of value that it would have in YAML (``8`` is a number), save where
only text may stand: in environments, commands and labels.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from farmd.commands.documents import Loader
from store.errors import InputInvalid, refuse
from store.mistakes import shown

_USE = re.compile(r"\$\{param\.([^}]*)\}")
_NAME = re.compile(r"[a-z0-9_-]{1,40}")
_TEXT = frozenset({"env", "command", "args", "labels", "pod_labels"})


def filled(data: Any, given: Mapping[str, str], source: str, text: frozenset[str] = frozenset()) -> Any:
    """A document with the values of its parameters, and without their list; ``text`` are more fields in which
    only text may stand.

    Raises:
        InputInvalid: a value for a parameter that the file has not, none for one that it needs, or a use of
            one that it does not declare.
    """
    if not isinstance(data, dict):
        return data
    values = _values(data.get("parameters", {}), given, source)
    rest = {key: value for key, value in data.items() if key != "parameters"}
    return _fill(rest, values, source, "", _TEXT | text, text=False)


def _values(declared: Any, given: Mapping[str, str], source: str) -> dict[str, str]:
    if not isinstance(declared, dict):
        refuse(f"{source}: parameters", shown(declared), "names with their defaults", field="parameters")
    for name, default in declared.items():
        if not (isinstance(name, str) and _NAME.fullmatch(name)):
            refuse(
                f"{source}: parameters", shown(name), "1 to 40 of a-z, 0-9, '_' and '-'", field="parameters"
            )
        if isinstance(default, dict | list):
            refuse(f"{source}: parameters.{name}", shown(default), "text, a number, or null")
    for name in given:
        if name not in declared:
            known = ", ".join(sorted(declared)) or "none"
            refuse(
                f"{source}: --param {name}", "no such parameter", f"one of the file's: {known}", field=name
            )
    found = {name: _text(default) for name, default in declared.items() if default is not None} | dict(given)
    for name in declared:
        if name not in found:
            refuse(f"{source}: parameters.{name}", "no value", f"--param {name}=VALUE", field=name)
    return found


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _fill(
    value: Any, values: Mapping[str, str], source: str, path: str, texts: frozenset[str], *, text: bool
) -> Any:
    if isinstance(value, dict):
        return {
            key: _fill(each, values, source, f"{path}.{key}".lstrip("."), texts, text=text or key in texts)
            for key, each in value.items()
        }
    if isinstance(value, list):
        return [
            _fill(each, values, source, f"{path}[{at}]", texts, text=text) for at, each in enumerate(value)
        ]
    if not isinstance(value, str) or "${param." not in value:
        return value

    def one(use: re.Match[str]) -> str:
        if use[1] not in values:
            known = ", ".join(sorted(values)) or "none"
            refuse(f"{source}: {path}", repr(use[0]), f"a declared parameter: {known}", field=path)
        return values[use[1]]

    found = _USE.sub(one, value)
    return found if text or not _USE.fullmatch(value) else _scalar(found, f"{source}: {path}")


def _scalar(text: str, where: str) -> Any:
    try:
        found = yaml.load(text, Loader)
    except (yaml.YAMLError, InputInvalid):
        return text
    if isinstance(found, dict | list):
        refuse(where, shown(found), "text or a number as the value of a parameter")
    return text if found is None else found
