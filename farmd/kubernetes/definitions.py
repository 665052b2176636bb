"""Whether the definitions that a cluster serves have all the fields that this version of farmd knows.

The API server drops fields that a definition lacks, without a word. It publishes the schemas that it serves
to everyone who may log in, so a farm needs no right to read the definitions themselves.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from farmd.kubernetes.errors import NotFound, UnexpectedAnswer
from farmd.kubernetes.transport import ApiRequest, KubernetesTransport

KIND = "x-kubernetes-group-version-kind"


async def lacking(transport: KubernetesTransport, definition: Mapping[str, Any]) -> list[str]:
    """The fields of a definition that the server's one lacks; none while it serves no such resource.

    Raises:
        KubernetesError: the server does not tell.
    """
    spec = definition["spec"]
    found = []
    for version in spec["versions"]:
        path = f"/openapi/v3/apis/{spec['group']}/{version['name']}"
        try:
            answer = await transport.send(ApiRequest("GET", path))
        except NotFound:
            continue
        served = _schema(answer, spec["names"]["kind"], path)
        if served is not None:
            found += list(_missing(version["schema"]["openAPIV3Schema"], served, ""))
    return found


def _schema(answer: bytes, kind: str, path: str) -> Mapping[str, Any] | None:
    try:
        schemas = json.loads(answer)["components"]["schemas"]
    except (ValueError, KeyError, TypeError) as error:
        raise UnexpectedAnswer(f"{path}: the answer is none of an API server: {error}") from error
    return next(
        (one for one in schemas.values() if any(each["kind"] == kind for each in one.get(KIND, ()))), None
    )


def _missing(ours: Mapping[str, Any], theirs: Mapping[str, Any], path: str) -> Iterator[str]:
    if theirs.get("x-kubernetes-preserve-unknown-fields"):
        return
    served = theirs.get("properties") or {}
    for name, each in (ours.get("properties") or {}).items():
        where = f"{path}.{name}" if path else name
        if name not in served:
            yield where
        elif "$ref" not in served[name]:
            yield from _missing(each, served[name], where)
    for inner in ("items", "additionalProperties"):
        if isinstance(ours.get(inner), dict):
            yield from _missing(ours[inner], theirs.get(inner) or {}, f"{path}[]")
