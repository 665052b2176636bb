"""The scopes of KubeVela that an object says it is in, such as a HealthScope, which lists its workloads.

The annotation stays on the object, so what it was in before is known from the object itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from store.apps import TypedReference
from store.errors import InputInvalid
from store.mistakes import shown

SCOPES = "farmd.io/scopes"


def scopes_in(found: Mapping[str, Any]) -> list[TypedReference]:
    """The scopes that an object as it stands is in, as far as its annotation has the form of one."""
    try:
        return scopes_of(found)
    except InputInvalid:
        return []


def scopes_of(document: Mapping[str, Any]) -> list[TypedReference]:
    """The scopes that a document names, which are in its namespace.

    Raises:
        InputInvalid: one has another form than ``<apiVersion>/<kind>/<name>``.
    """
    metadata = document["metadata"]
    text = (metadata.get("annotations") or {}).get(SCOPES, "")
    names = [part.strip() for part in text.split(",") if part.strip()]
    return [_scope(name, metadata.get("namespace") or "") for name in dict.fromkeys(names)]


def _scope(text: str, namespace: str) -> TypedReference:
    parts = text.split("/")
    if len(parts) < 3 or not all(parts):
        expected = "such as core.oam.dev/v1beta1/HealthScope/health"
        raise InputInvalid(
            f"metadata.annotations.{SCOPES}: found {shown(text)}, expected {expected}", field=SCOPES
        )
    *api, kind, name = parts
    return TypedReference(api_version="/".join(api), kind=kind, namespace=namespace, name=name)
