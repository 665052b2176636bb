"""Lists of objects in pages, as the API server sends them."""

from __future__ import annotations

import msgspec

PAGE = 500
# The metadata of objects alone, in a list and in a watch; an aggregated server may send them whole.
_METADATA = "application/json;as={};g=meta.k8s.io;v=v1,application/json"
LISTED_METADATA = _METADATA.format("PartialObjectMetadataList")
WATCHED_METADATA = _METADATA.format("PartialObjectMetadata")


class ListMeta(msgspec.Struct, rename="camel", frozen=True):
    """The version of a list, and what its next page is asked for with; empty: there is none."""

    resource_version: str = ""
    next: str = msgspec.field(default="", name="continue")


class Page(msgspec.Struct, frozen=True):
    """One page, whose items are not decoded."""

    metadata: ListMeta
    items: list[msgspec.Raw] | None = None


class Meta(msgspec.Struct, rename="camel", frozen=True):
    """What tells an object from others, even one that does not decode."""

    name: str = ""
    namespace: str = ""
    resource_version: str = ""


class Named(msgspec.Struct, frozen=True):
    """An object of which only that is decoded."""

    metadata: Meta = Meta()


def params(selector: str, following: str, size: int = PAGE) -> list[tuple[str, str]]:
    """What a page is asked for with; ``size`` 0: all at once."""
    given = (("labelSelector", selector), ("limit", str(size or "")), ("continue", following))
    return [(name, value) for name, value in given if value]
