"""Who wrote which field of an object, for watches that ask: ``metadata.managedFields`` is else not decoded.

A server-side apply names its manager; a PUT or a PATCH is entered under its client's name as an Update.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from farmd.jobs.objects import ObjectMeta


class ManagedFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The fields that one manager wrote by one sort of write; ``fields_v1`` is a tree of ``f:<name>``."""

    manager: str = ""
    operation: str = ""
    subresource: str = ""
    time: str | None = None
    fields_v1: dict[str, Any] = {}


class ManagedMeta(ObjectMeta, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Metadata for the struct of an informer that is to keep ``managedFields``."""

    managed_fields: tuple[ManagedFields, ...] = ()


def managers_of(meta: ManagedMeta, *path: str) -> Iterator[ManagedFields]:
    """The entries that hold a field or a part of it: ``managers_of(meta, "spec", "traffic")``."""
    for entry in meta.managed_fields:
        found: Any = entry.fields_v1
        for name in path:
            found = found.get(f"f:{name}") if found is not None else None
        if found is not None:
            yield entry
