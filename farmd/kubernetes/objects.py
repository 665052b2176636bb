"""Objects of the Kubernetes API with the fields that farmd uses; names of resources, and their paths.

A controller keeps a hundred thousand pods in memory, so the structs hold no more than the decision reads.
They are never sent back whole: a PUT of them would erase every field that they do not know. The API server
writes a time that it does not know as null.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import msgspec

from store.times import seconds_of


class _Lean(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    pass


class OwnerReference(_Lean, frozen=True):
    """Who owns an object; at most one owner of an object is its ``controller``."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False
    block_owner_deletion: bool = False


class ObjectMeta(_Lean, frozen=True):
    """Identity, labels and owners of an object; times are RFC 3339."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[OwnerReference, ...] = ()
    creation_timestamp: str | None = None
    deletion_timestamp: str = ""

    @property
    def controller(self) -> OwnerReference | None:
        """The owner that controls it; None: it is an orphan."""
        return next((owner for owner in self.owner_references if owner.controller), None)

    @property
    def terminating(self) -> bool:
        """Whether its deletion is under way."""
        return bool(self.deletion_timestamp)


class Terminated(_Lean, frozen=True):
    """How a container ended."""

    exit_code: int = 0
    reason: str = ""
    message: str = ""
    finished_at: str | None = None


class ContainerWaiting(_Lean, frozen=True):
    """Why a container does not run yet."""

    reason: str = ""
    message: str = ""


class ContainerState(_Lean, frozen=True):
    """One of both, or neither: it runs."""

    terminated: Terminated | None = None
    waiting: ContainerWaiting | None = None


class ContainerStatus(_Lean, frozen=True):
    """One container of a pod."""

    name: str = ""
    restart_count: int = 0
    state: ContainerState = ContainerState()


class PodCondition(_Lean, frozen=True):
    """One condition of a pod, such as ``PodScheduled`` or ``DisruptionTarget``."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class PodStatus(_Lean, frozen=True):
    """What the kubelet and the scheduler say of a pod; ``reason`` is ``Evicted`` for instance."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: tuple[PodCondition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()


class KubePod(_Lean, frozen=True):
    """A pod without its spec."""

    metadata: ObjectMeta = ObjectMeta()
    status: PodStatus = PodStatus()


class KubeService(_Lean, frozen=True):
    """A service without its spec."""

    metadata: ObjectMeta = ObjectMeta()


class Budget(_Lean, frozen=True):
    """A PodDisruptionBudget (policy/v1), which the first schedulers of gangs read."""

    metadata: ObjectMeta = ObjectMeta()
    spec: dict[str, Any] = {}


class Owned(Protocol):
    """Any object of the API (``metav1.Object``): a job, a pod, a service."""

    @property
    def metadata(self) -> ObjectMeta:
        """Its identity."""


class Tombstone(msgspec.Struct, frozen=True):
    """An object whose deletion was not seen: a later list did not have it. ``object`` is its last known
    state.
    """

    key: str
    object: Any


def seconds_since_epoch(text: str | None) -> float:
    """A time of the API; 0 for none, and for what is no time."""
    try:
        return seconds_of(text) if text else 0.0
    except ValueError:
        return 0.0


# Who wrote which field of an object, for watches that ask: ``metadata.managedFields`` is else not decoded.
#
# A server-side apply names its manager; a PUT or a PATCH is entered under its client's name as an Update.


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


# Names of the API's resources, and the paths of their objects.


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
    """The identity of an object, even of one that does not decode."""

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
