"""Files of variables, such as ``.env``, in the forms that compose reads.

A line is ``NAME=value``, ``NAME: value``, or a name alone, which takes the caller's value. Variables in a
value are replaced, but not between single quotes: the caller's come first, then those of the lines before. In
a file with ``format: raw`` values are taken as they stand. No message shows a value: it may be a secret.
"""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Mapping

from farmd.compose.interpolation import Interpolation, TemplateInvalid
from store.errors import InputInvalid
from store.mistakes import shown

_BETWEEN = re.compile(r"(?:\s+|#[^\n]*)*")
_NAME = re.compile(r"(?:export[^\S\n]+)?([\w.\[\]-]+)[^\S\n]*(?:([=:])[^\S\n]*|(?=\n|\Z))")
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
        name = _NAME.match(text, at)
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
        raise InputInvalid(f"{where}: found text behind the closing quote, expected none")
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
