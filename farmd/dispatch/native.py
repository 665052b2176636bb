"""Documents of farmd's own records in a bundle: ``apiVersion: farmd/v1``, ``kind: rc``, and the noun's file.

Beside the fields of the noun's file a document may say how its app treats it: ``wave``, ``after``,
``on_remove``, ``apply``, ``ignore`` and ``replace``. The registry of kinds says which nouns there are.
"""

from __future__ import annotations

from typing import Any

import msgspec

from farmd.dispatch.treatment import Treatment, checked
from farmd.kinds import bundled, load, unbundled
from store import codec
from store.apps import API_VERSION, Entry, TypedReference
from store.errors import InputInvalid, refuse
from store.mistakes import nearest, shown

_TREATMENT = Treatment.__struct_fields__


def parse(data: dict[str, Any], where: str) -> Entry:
    """The entry of one document.

    Raises:
        InputInvalid: naming the place, the field, what was found and what was expected.
    """
    api, kind = data["apiVersion"], data["kind"]
    if api != API_VERSION:
        refuse(f"{where}: apiVersion", shown(api), API_VERSION, field="apiVersion")
    nouns = bundled()
    if kind not in nouns:
        if expected := unbundled().get(kind.lower()):
            refuse(f"{where}: kind", shown(kind), expected, field="kind")
        near = nearest(kind, [*sorted(nouns), "app"])
        raise InputInvalid(f"{where}: kind: found {shown(kind)}{near}", field="kind")
    said = {name: data[name] for name in _TREATMENT if name in data}
    document = {
        name: value for name, value in data.items() if name not in {*_TREATMENT, "apiVersion", "kind"}
    }
    if not document.get("name"):
        raise InputInvalid(f"{where}: name: missing, expected the name of the {kind}", field="name")
    spec = load(nouns[kind]).parse(document, where)
    treatment = codec.parse_input(Treatment, said, where)
    _check_ignored(treatment, type(spec), where)
    ref = TypedReference(kind=kind, name=spec.name)
    return Entry(ref=ref, document=document, **checked(treatment, where, ""))


def render(entry: Entry) -> dict[str, Any]:
    """An entry as the document that a person would write."""
    said = {name: getattr(entry, name) for name in _TREATMENT}
    told = msgspec.to_builtins(Treatment(**said))
    return {"apiVersion": entry.ref.api_version, "kind": entry.ref.kind, **(entry.document or {}), **told}


def _check_ignored(treatment: Treatment, spec: type[Any], where: str) -> None:
    """Refuse to ignore a field that the noun's files do not have, or that tells one object from another."""
    fields = sorted(set(spec.__struct_fields__) - {"name"})
    for name in treatment.ignore:
        if name not in fields:
            text = f"{where}: ignore: found {shown(name)}{nearest(name, fields, 'a field of the file')}"
            raise InputInvalid(text, field="ignore")
