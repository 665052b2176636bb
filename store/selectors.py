"""Label selectors in Kubernetes' set-based grammar; pure.

``a=1, b!=2, c in (x,y), d notin (z), e, !f``: a comma is AND, and an empty selector matches everything.
The text of a selector is canonical: selectors that differ only in order have equal text, which records
store and caches share (p2 ``pkg/labels``).
"""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from store.errors import InputInvalid, refuse

_NAME = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_DOMAIN_PART = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_TOKEN = re.compile(r"\s*(?:(==|!=|[=!(),<>])|([^\s=!(),<>]+))")


class Operator(enum.StrEnum):
    """How a requirement compares a label; EXISTS and ABSENT take no values."""

    IN = "in"
    NOT_IN = "notin"
    EXISTS = "exists"
    ABSENT = "!"


@dataclass(frozen=True, slots=True, order=True)
class Requirement:
    """One part of a selector; ``values`` are sorted and free of repetitions."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels match; as in Kubernetes, ``!=`` and ``notin`` match without the key."""
        match self.operator:
            case Operator.IN:
                return labels.get(self.key) in self.values
            case Operator.NOT_IN:
                return labels.get(self.key) not in self.values
            case Operator.EXISTS:
                return self.key in labels
            case Operator.ABSENT:
                return self.key not in labels

    def __str__(self) -> str:
        match self.operator:
            case Operator.EXISTS:
                return self.key
            case Operator.ABSENT:
                return f"!{self.key}"
            case _ if len(self.values) == 1:
                return f"{self.key}{'=' if self.operator is Operator.IN else '!='}{self.values[0]}"
            case _:
                return f"{self.key} {self.operator} ({','.join(self.values)})"


@dataclass(frozen=True, slots=True)
class Selector:
    """Requirements that must all hold, sorted. Build it with ``parse`` or ``of``."""

    requirements: tuple[Requirement, ...] = ()

    @classmethod
    def of(cls, requirements: Iterable[Requirement]) -> Selector:
        """A selector of these requirements, in canonical order and without repetitions."""
        return cls(tuple(sorted(set(requirements))))

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether all requirements hold."""
        return all(requirement.matches(labels) for requirement in self.requirements)

    def __str__(self) -> str:
        return ",".join(map(str, self.requirements))


@functools.lru_cache(maxsize=4096)
def parse(text: str, field: str = "selector") -> Selector:
    """A selector from its text; an empty text matches everything.

    Raises:
        InputInvalid: names the position (from 1), what was found and what was expected.
    """
    return _Parser(text, field).selector()


def valid_labels(labels: Mapping[str, str], field: str) -> Mapping[str, str]:
    """Return labels whose keys and values are all valid.

    Raises:
        InputInvalid: naming the first bad one.
    """
    for key, value in labels.items():
        valid_key(key, field)
        valid_value(value, f"{field}.{key}")
    return labels


def valid_node_labels(labels: Mapping[str, str], field: str) -> Mapping[str, str]:
    """Return labels that people may give a node: valid ones, without those that farms derive from its record.

    Raises:
        InputInvalid: naming the first other one.
    """
    for key in labels:
        if key == "node" or key.startswith("volume/"):
            raise InputInvalid(f"{field}: found {key!r}, expected labels other than farmd's own", field=field)
    return valid_labels(labels, field)


def valid_key(key: str, field: str) -> str:
    """Return a label's key: a name of at most 63, after an optional DNS domain and a slash.

    Raises:
        InputInvalid: anything else.
    """
    domain, slash, name = key.rpartition("/")
    good = _NAME.fullmatch(name) is not None
    if slash:
        good = good and len(domain) <= 253 and all(_DOMAIN_PART.fullmatch(p) for p in domain.split("."))
    if not good:
        expected = "a label key: at most 63 letters, digits, '-', '_', '.', after an optional domain and '/'"
        refuse(field, repr(key), expected)
    return key


def valid_value(value: str, field: str) -> str:
    """Return a label's value: empty, or at most 63 characters.

    Raises:
        InputInvalid: anything else.
    """
    if value and not _NAME.fullmatch(value):
        expected = "a label value: at most 63 letters, digits, '-', '_', '.', not at the ends, or nothing"
        refuse(field, repr(value), expected)
    return value


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    position: int
    is_word: bool


_END = "the end"


class _Parser:
    """Recursive descent. ``in`` and ``notin`` are operators only where an operator can follow."""

    def __init__(self, text: str, field: str) -> None:
        self._field = field
        self._tokens = [
            _Token(m[1] or m[2], m.start(m.lastindex or 0) + 1, m[2] is not None)
            for m in _TOKEN.finditer(text)
        ]
        self._tokens.append(_Token("", len(text) + 1, is_word=False))
        self._next = 0

    def selector(self) -> Selector:
        """Parse the whole text."""
        if self._peek().text == "":
            return Selector()
        found = [self._requirement()]
        while self._accept(","):
            found.append(self._requirement())
        if self._peek().text:
            raise self._unexpected("',' or the end")
        return Selector.of(found)

    def _requirement(self) -> Requirement:
        if self._accept("!"):
            return Requirement(self._key(), Operator.ABSENT)
        key = self._key()
        token = self._peek()
        if token.text in ("", ","):
            return Requirement(key, Operator.EXISTS)
        self._next += 1
        match token.text:
            case "=" | "==":
                return Requirement(key, Operator.IN, (self._value(),))
            case "!=":
                return Requirement(key, Operator.NOT_IN, (self._value(),))
            case "in" | "notin":
                return Requirement(key, Operator(token.text), self._values())
        self._next -= 1
        raise self._unexpected("'=', '==', '!=', 'in', 'notin', ',' or the end")

    def _key(self) -> str:
        token = self._peek()
        if not token.is_word:
            raise self._unexpected("a label key")
        self._next += 1
        return valid_key(token.text, f"{self._field}: position {token.position}")

    def _value(self) -> str:
        """A word, or the empty value as in ``a=``."""
        token = self._peek()
        if token.is_word:
            self._next += 1
            return valid_value(token.text, f"{self._field}: position {token.position}")
        if token.text in ("", ",", ")"):
            return ""
        raise self._unexpected("a label value")

    def _values(self) -> tuple[str, ...]:
        if not self._accept("("):
            raise self._unexpected("'('")
        found = {self._value()}
        while self._accept(","):
            found.add(self._value())
        if not self._accept(")"):
            raise self._unexpected("',' or ')'")
        return tuple(sorted(found))

    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _accept(self, text: str) -> bool:
        token = self._peek()
        if token.text != text or token.is_word:
            return False
        self._next += 1
        return True

    def _unexpected(self, expected: str) -> InputInvalid:
        token = self._peek()
        found = repr(token.text) if token.text else _END
        return InputInvalid(
            f"{self._field}: position {token.position}: found {found}, expected {expected}",
            field=self._field,
            position=token.position,
        )
