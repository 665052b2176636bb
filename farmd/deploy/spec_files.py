"""Files of the house that describe services: ``kind: service``, and the fields of ``ServiceSpec``.

They say in the house's words what a compose file says in its own, and take part in the same plan.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from farmd.commands import documents
from farmd.deploy import port_spec
from farmd.deploy.model import ServiceSpec
from farmd.deploy.validation import validate
from store import codec
from store.errors import InputInvalid
from store.mistakes import shown

KIND = "service"
# At the left edge of YAML, or anywhere in JSON: compose files have no such key there.
_MARK = re.compile(rf"(?:^kind|\"kind\")\s*:\s*['\"]?{KIND}\b", re.MULTILINE)


def services_of(files: Sequence[tuple[str, str]]) -> dict[str, ServiceSpec] | None:
    """The services of some files, (text, source), by name; None if they are no files of the house.

    Raises:
        InputInvalid: naming the file and the field; also where only some documents are of the house.
    """
    found: dict[str, ServiceSpec] = {}
    others = ""
    for text, source in files:
        if not _MARK.search(text):
            others = source
            continue
        for where, data in documents.parse(text, source):
            if not isinstance(data, dict) or data.get("kind") != KIND:
                kind = data.get("kind") if isinstance(data, dict) else data
                raise InputInvalid(f"{where}: kind: found {shown(kind)}, expected {KIND!r}", field="kind")
            spec = service({key: value for key, value in data.items() if key != "kind"}, where)
            if spec.name in found:
                raise InputInvalid(f"{where}: name: found {spec.name!r} again, expected each name once")
            found[spec.name] = spec
    if found and others:
        raise InputInvalid(f"{others}: found no 'kind: {KIND}', expected one as in the other files")
    return found or None


def service(data: dict[str, Any], where: str) -> ServiceSpec:
    """The service of one document.

    Raises:
        InputInvalid: naming the place and the field.
    """
    fields = dict(data)
    if not fields.get("name"):
        raise InputInvalid(f"{where}: name: missing, expected the name of the service", field="name")
    if isinstance(fields.get("ports"), list):
        fields["ports"] = [_port(each, f"{where}: ports[{at}]") for at, each in enumerate(fields["ports"])]
    spec = codec.parse_input(ServiceSpec, fields, where)
    try:
        validate(spec)
    except InputInvalid as error:
        raise InputInvalid(f"{where}: {error.message}", **error.fields) from error
    return spec


def _port(entry: Any, where: str) -> Any:
    """A port, whose text is written out."""
    if isinstance(entry, bool) or not isinstance(entry, str | int):
        return entry
    try:
        return msgspec.to_builtins(port_spec.parse(str(entry)))
    except InputInvalid as error:
        raise InputInvalid(f"{where}: {error.message}", field="ports") from error
