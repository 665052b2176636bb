"""The values of the kind: what a worker sees of a service, and what it wants to change in the catalogue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from msgspec.structs import replace

from farmd.work.model import Blocked
from store import catalog
from store.catalog import Node, Standing
from store.operations import Operation
from store.services import Service

T = TypeVar("T", catalog.Service, catalog.Check)


@dataclass(frozen=True, slots=True)
class CatalogPod:
    """A pod as it is to be in the catalogue."""

    node: str
    instance: str
    address: str
    port: int
    owner: str
    version: str = ""
    passing: bool = True
    output: str = ""
    canary: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A service, its pods, and what is in the catalogue: its entries by id, and the nodes by name.

    ``after``: seconds until time alone makes another pod available.
    """

    cluster: str
    service: Service
    pods: tuple[CatalogPod, ...]
    standing: Mapping[str, Standing]
    nodes: Mapping[str, Node]
    after: float | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """One entry as it was read and as it is to be; ``address``: its node is to be written with that one."""

    before: Standing | None
    after: Standing | None
    address: str = ""

    @property
    def word(self) -> str:
        """What it is: ``added``, ``changed`` or ``removed``."""
        return "removed" if self.after is None else "changed" if self.before is not None else "added"

    def operations(self, cluster: str, node: Node | None) -> list[Operation]:
        """The operations that compare and write; an instance and its check are never apart."""
        before, after = self.before, self.after
        found = list[Operation]()
        if self.address and after is not None:
            index = 0 if node is None else node.modify_index
            found.append(catalog.set_node(cluster, after.node, self.address, index))
        if before is not None and (after is None or after.service.service != before.service.service):
            found.append(catalog.delete_service(before.node, before.service))
            before = None
        if after is None:
            return found
        if before is None or not same(before, after):
            found.append(
                catalog.set_service(
                    after.node, _at(after.service, before.service if before is not None else None)
                )
            )
        check = before.check if before is not None else None
        if after.check is not None and not alike(check, after.check):
            found.append(catalog.set_check(_at(after.check, check)))
        return found

    def committed(self, index: int) -> Standing:
        """The entry as a commit at that index left it."""
        before, after = self.before, self.after
        assert after is not None
        if before is not None and after.service.service != before.service.service:
            before = None
        kept = before is not None and same(before, after)
        service = (
            before.service if before is not None and kept else replace(after.service, modify_index=index)
        )
        check = before.check if before is not None and alike(before.check, after.check) else None
        if check is None and after.check is not None:
            check = replace(after.check, modify_index=index)
        return Standing(after.node, service, check)


@dataclass(frozen=True, slots=True)
class Plan:
    """Entries to change, in one transaction or several. ``foreign`` are nodes that somebody else has."""

    changes: tuple[Change, ...] = ()
    foreign: tuple[str, ...] = ()
    blocked: Blocked | None = None
    after: float | None = None

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write except a status."""
        return not self.changes


def _at(wanted: T, standing: T | None) -> T:
    """The same over the version that stands."""
    return replace(wanted, modify_index=0 if standing is None else standing.modify_index)


def same(one: Standing, other: Standing) -> bool:
    """Whether two versions of an instance say the same, their checks apart."""
    left, right = one.service, other.service
    return (left.service, left.address, left.port, left.tags or [], left.meta or {}) == (
        right.service,
        right.address,
        right.port,
        right.tags or [],
        right.meta or {},
    )


def alike(one: catalog.Check | None, other: catalog.Check | None) -> bool:
    """Whether two versions of a check say the same."""
    if one is None or other is None:
        return one is other
    return (one.status, one.output, one.service_id, one.service_name) == (
        other.status,
        other.output,
        other.service_id,
        other.service_name,
    )
