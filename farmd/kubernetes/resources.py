"""Names of the API's resources, and the paths of their objects."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

# Lists of objects in pages, as the API server sends them.

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


class Resource(NamedTuple):
    """One resource of an API group; ``group`` is empty for the first API."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """As objects write it."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The path of an object, of a namespace's objects, or without ``namespace`` of all."""
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        parts += ["namespaces", namespace] if self.namespaced and namespace else []
        parts += [part for part in (self.plural, name, subresource) if part]
        return "/" + "/".join(parts)


PODS = Resource("", "v1", "pods", "Pod")
SERVICES = Resource("", "v1", "services", "Service")
BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
EVENTS = Resource("", "v1", "events", "Event")
CRDS = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)
