"""The head of a document, ``apiVersion`` and ``kind``, and which command takes another kind of document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farmd import kinds
from store.apps import API_VERSION
from store.errors import InputInvalid
from store.families import FAMILIES
from store.mistakes import nearest, shown

APPLY = "farmctl apply -f FILE --app NAME"
DEPLOY = "farmctl deploy -f FILE"
_WAYS = {"service": APPLY, "node": "farmctl import FILE"}


def own(data: Any) -> bool:
    """Whether the head of a document names one of farmd's kinds."""
    return isinstance(data, Mapping) and str(data.get("apiVersion", "")).startswith("farmd/")


def without(record: type[Any], data: Any, source: str) -> Any:
    """A document of a record's noun without its head, if it has one.

    Raises:
        InputInvalid: it is another kind of document; the hint names the command that takes it.
    """
    if not isinstance(data, Mapping):
        return data
    refuse_compose(data, noun_of(record) or "another document", source)
    noun = noun_of(record)
    if "apiVersion" not in data and not (noun and "kind" in data):
        return data
    if data.get("apiVersion", API_VERSION) != API_VERSION:
        text = f"{source}: apiVersion: found {shown(data['apiVersion'])}, expected {API_VERSION}"
        raise InputInvalid(text, field="apiVersion", hint=f"{APPLY} also takes Kubernetes objects")
    found = data.get("kind", noun)
    if noun and found != noun:
        known, word = list(kinds.exported()), str(found).lower()
        if word not in known:
            text = f"{source}: kind: found {shown(found)}, expected {noun}{nearest(str(found), known)}"
            raise InputInvalid(text, field="kind")
        text = f"{source}: kind: found {found}, expected {noun}"
        raise InputInvalid(text, field="kind", hint=_WAYS.get(word) or kinds.first(kinds.family_of(word)))
    return {name: value for name, value in data.items() if name not in ("apiVersion", "kind")}


def refuse_compose(data: Mapping[str, Any], expected: str, source: str) -> None:
    """Refuse a compose file where another document is expected.

    Raises:
        InputInvalid: the hint names the command that takes it.
    """
    if "services" in data and "pod" not in data:
        text = f"{source}: found services, expected {expected}: a compose file"
        raise InputInvalid(text, field="services", hint=DEPLOY)


def headed(noun: str, document: Mapping[str, Any]) -> dict[str, Any]:
    """A document with a head that names its kind."""
    return {"apiVersion": API_VERSION, "kind": noun, **document}


def noun_of(record: type[Any]) -> str:
    """The noun of the documents of a type of record; empty: it has none."""
    families = (each.name for each in FAMILIES.values() if each.record is record)
    return next((kinds.KINDS[name].noun for name in families if name in kinds.KINDS), "")
