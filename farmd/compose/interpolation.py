"""Variables in the values of compose files: ``$NAME``, ``${NAME:-default}``, ``${NAME:?why}``, ``$$``.

Values alone are interpolated, and before files are merged, as Compose does. A default may hold variables. A
dollar sign that begins neither a name nor a brace stands for itself, as in ``$2a$14$1``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from store.errors import InputInvalid
from store.mistakes import shown

_NAME = re.compile(r"[_a-zA-Z][_a-zA-Z0-9]*")
_OPERATOR = re.compile(r":?[-?+]")
_BRACE = re.compile(r"\$\$|\$\{|\}")
DEEPEST = 20


class TemplateInvalid(InputInvalid):
    """A brace behind a dollar sign that holds no variable, or is never closed."""


class Interpolation:
    """Replaces variables; ``unset`` collects the names that had no value and no default, and the first path
    where each of them stands.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env
        self.unset: dict[str, str] = {}

    def document(self, value: Any, path: str) -> Any:
        """The same document with the variables of its values replaced.

        Raises:
            InputInvalid: naming the path: not a template, or a variable that must have a value.
        """
        if isinstance(value, str):
            return self.text(value, path)
        if isinstance(value, dict):
            return {key: self.document(each, f"{path}.{key}".lstrip(".")) for key, each in value.items()}
        if isinstance(value, list):
            return [self.document(each, f"{path}[{at}]") for at, each in enumerate(value)]
        if hasattr(value, "map"):
            return value.map(lambda each: self.document(each, path))
        return value

    def text(self, template: str, path: str) -> str:
        """One value."""
        if "$" not in template:
            return template
        parts, at = [], 0
        while (start := template.find("$", at)) >= 0:
            parts.append(template[at:start])
            replacement, at = self._one(template, start + 1, path)
            parts.append(replacement)
        return "".join([*parts, template[at:]])

    def _one(self, template: str, at: int, path: str) -> tuple[str, int]:
        """What stands for the variable behind the ``$`` before ``at``, and where the text goes on."""
        if template.startswith("$", at):
            return "$", at + 1
        braced = template.startswith("{", at)
        name = _NAME.match(template, at + braced)
        if not braced:
            return (self._value(name[0], path), name.end()) if name else ("$", at)
        if name is None:
            raise _invalid(template, path)
        end = _closing(template, name.end(), path)
        if end < 0:
            raise _invalid(template, path)
        rest = template[name.end() : end]
        operator = _OPERATOR.match(rest)
        if operator is None:
            if rest:
                raise _invalid(template, path)
            return self._value(name[0], path), end + 1
        return self._chosen(name[0], operator[0], rest[operator.end() :], path), end + 1

    def _chosen(self, name: str, operator: str, word: str, path: str) -> str:
        value = self._env.get(name)
        given = bool(value) if operator.startswith(":") else value is not None
        if operator.endswith("+"):
            return self.text(word, path) if given else ""
        if given:
            return value or ""
        if operator.endswith("?"):
            why = self.text(word, path)
            raise InputInvalid(f"{path}: variable {name} has no value{': ' if why else ''}{why}", field=path)
        return self.text(word, path)

    def _value(self, name: str, path: str) -> str:
        if name not in self._env:
            self.unset.setdefault(name, path)
        return self._env.get(name, "")


def warnings(unset: Mapping[str, str]) -> list[str]:
    """One line for each variable that had no value, with its place."""
    return [f"{where}: variable {name} is not set, so it is empty" for name, where in unset.items()]


def _closing(template: str, at: int, path: str) -> int:
    """Where the brace ends that is open at ``at``; -1: nowhere.

    The levels within are counted here, so a text costs at most ``DEEPEST`` passes.
    """
    depth = 0
    for found in _BRACE.finditer(template, at):
        if found[0] == "}":
            if not depth:
                return found.start()
            depth -= 1
        elif found[0] == "${":
            depth += 1
            if depth > DEEPEST:
                raise InputInvalid(f"{path}: found variables in more than {DEEPEST} levels, expected fewer")
    return -1


def _invalid(template: str, path: str) -> TemplateInvalid:
    return TemplateInvalid(
        f"{path}: found {shown(template)}, expected variables such as ${{NAME}} or ${{NAME:-default}},"
        " and $$ for a dollar sign",
        field=path,
    )
