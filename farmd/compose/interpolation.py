"""Variables in compose files, and the files that set them: ``$NAME``, ``${NAME:-default}``, ``env_file``."""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Mapping
from typing import Any

from store.errors import InputInvalid
from store.mistakes import shown

# Variables in the values of compose files: ``$NAME``, ``${NAME:-default}``, ``${NAME:?why}``, ``$$``.
#
# Values alone are interpolated, and before files are merged, as Compose does. A default may hold variables.
# A dollar sign that begins neither a name nor a brace stands for itself, as in ``$2a$14$1``.

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
        """The value of the variable after the ``$`` before ``at``, and the position behind it."""
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


# Files of variables, such as ``.env``, in the forms that compose reads.
#
# A line is ``NAME=value``, ``NAME: value``, or a name alone, which takes the caller's value. Variables in a
# value are replaced, but not between single quotes: the caller's come first, then those of the lines
# before. In a file with ``format: raw`` values are taken as they stand. No message shows a value: it may be
# a secret.

_BETWEEN = re.compile(r"(?:\s+|#[^\n]*)*")
_ASSIGNMENT = re.compile(r"(?:export[^\S\n]+)?([\w.\[\]-]+)[^\S\n]*(?:([=:])[^\S\n]*|(?=\n|\Z))")
_QUOTED = re.compile(r"""'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)\"""", re.DOTALL)
_LINE = re.compile(r"[^\n]*")
_REST = re.compile(r"[^\S\n]*(?:#[^\n]*)?(?=\n|\Z)")
_ESCAPE = re.compile(r'\\(0[0-7]{3}|[abfnrtv$"\\])')
_ESCAPES = dict(zip('abfnrtv$"\\', (*"\a\b\f\n\r\t\v", "$$", '"', "\\"), strict=True))


def read_into(found: dict[str, str], text: str, source: str, given: Mapping[str, str]) -> dict[str, str]:
    """Add the variables of a file to those of the files before; ``given`` are the caller's.

    Returns the names that stand in its values and have no value, each with its place.

    Raises:
        InputInvalid: naming the line that cannot be read.
    """
    text = text.removeprefix("\ufeff")
    interpolation = Interpolation(ChainMap(dict(given), found))
    at, line = 0, 1
    while (start := _end(_BETWEEN, text, at)) < len(text):
        line += text.count("\n", at, start)
        where = f"{source}: line {line}"
        at = start
        name = _ASSIGNMENT.match(text, at)
        if name is None:
            raise _refused(where, text[at : _end(_LINE, text, at)], "NAME=value")
        if name[2]:
            found[name[1]], at = _value(text, name.end(), where, interpolation)
        else:
            _inherit(found, name[1], given)
            at = name.end()
        line += text.count("\n", start, at)
    return interpolation.unset


def read_raw_into(found: dict[str, str], text: str, source: str, given: Mapping[str, str]) -> None:
    """Add the variables of a file with ``format: raw``, in which each value is the rest of its line."""
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        name, equals, value = line.lstrip().partition("=")
        if not line.strip() or name.startswith("#"):
            continue
        if not name or len(name.split()) > 1 or name != name.strip():
            raise _refused(f"{source}: line {number}", line, "NAME=value")
        if equals:
            found[name] = value
        else:
            _inherit(found, name, given)


def _inherit(found: dict[str, str], name: str, given: Mapping[str, str]) -> None:
    if name in given:
        found[name] = given[name]


def _value(text: str, at: int, where: str, interpolation: Interpolation) -> tuple[str, int]:
    """The value that begins at a place, and where it ends."""
    end = _end(_LINE, text, at)
    if not text.startswith(("'", '"'), at):
        return _filled(text[at:end].partition(" #")[0].rstrip(), where, interpolation), end
    quoted = _QUOTED.match(text, at)
    if quoted is None:
        raise InputInvalid(f"{where}: found an open quote, expected a closing one")
    if not _REST.match(text, quoted.end()):
        raise InputInvalid(f"{where}: found text after the closing quote, expected none")
    if quoted[2] is None:
        return quoted[1].replace("\\'", "'"), quoted.end()
    return _filled(_ESCAPE.sub(_escaped, quoted[2]), where, interpolation), quoted.end()


def _filled(template: str, where: str, interpolation: Interpolation) -> str:
    try:
        return interpolation.text(template, where)
    except TemplateInvalid as error:
        raise InputInvalid(
            f"{where}: found ${{ without a variable, expected ${{NAME}}, $${{, or single quotes around it"
        ) from error


def _escaped(found: re.Match[str]) -> str:
    return _ESCAPES[found[1]] if found[1] in _ESCAPES else chr(int(found[1], 8))


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Where a pattern ends that matches at any place, if only nothing."""
    found = pattern.match(text, at)
    return found.end() if found else at


def _refused(where: str, found: str, expected: str) -> InputInvalid:
    return InputInvalid(f"{where}: found {shown(found.partition('=')[0].strip())}, expected {expected}")
