"""Definitions of other projects' resources, as small as the fields that tests need."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from farmd.kubernetes.objects import CRDS, Resource
from tests.fleet import eventually
from tests.kubernetes_server import ApiServer

Schema = Mapping[str, Any]
OPEN: Schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
TEXT: Schema = {"type": "string"}
TIME: Schema = {"type": "string", "format": "date-time"}
NUMBER: Schema = {"type": "integer", "format": "int32"}


def several(each: Schema) -> Schema:
    """A map of names."""
    return {"type": "object", "additionalProperties": each}


def fields(**each: Schema) -> Schema:
    """An object of these fields; the API server drops all others."""
    return {"type": "object", "properties": each}


async def define(
    api: ApiServer, resource: Resource, spec: Schema = OPEN, status: Schema = OPEN, **scale: str
) -> None:
    """Have the API server serve a resource, if it does not yet; ``scale`` are paths of its scale
    subresource.
    """
    name = f"{resource.plural}.{resource.group}"
    schema = {"openAPIV3Schema": fields(spec=spec, status=status)}
    version = {"name": resource.version, "served": True, "storage": True, "schema": schema}
    parts: dict[str, Any] = {"status": {}} | ({"scale": scale} if scale else {})
    approved = {"api-approved.kubernetes.io": "unapproved, for tests"}  # which groups below k8s.io need
    body = {
        "metadata": {"name": name, "annotations": approved},
        "spec": {
            "group": resource.group,
            "scope": "Namespaced",
            "names": {"kind": resource.kind, "plural": resource.plural},
            "versions": [version | {"subresources": parts}],
        },
    }
    known = api.ask("GET", CRDS.path())["items"]
    if name not in {each["metadata"]["name"] for each in known}:
        api.ask("POST", CRDS.path(), body)

    async def served() -> bool:
        try:
            await asyncio.to_thread(api.ask, "GET", resource.path("default"))
        except OSError:
            return False
        return True

    await eventually(served, what=f"the API server serves {name}")
