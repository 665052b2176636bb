"""The catalogue: nodes, services on them, and their checks, with the indexes of blocking queries.

Names are equal in any case, as in Consul. What must never break: a write that changes nothing moves no index
(but that of the checks in Consul 1.8), and nothing stays registered on a node that is gone.

Source: Consul 1.8 ``agent/consul/state/catalog.go``, behaviour only; each rule is measured by the contract
cases.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from store.embedded.verbs import Refused, quoted

ANYTHING = ""
"""The one key of its watches."""
OWN_INDEX = 3
_EXTINCTION = "extinction"
_NODE_GONE = "node gone"
_END = "\0"


class Node(msgspec.Struct, rename="pascal", frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One node, with Consul's order of fields."""

    id: str = msgspec.field(name="ID", default="")
    node: str = ""
    address: str = ""
    datacenter: str = ""
    tagged_addresses: dict[str, str] | None = None
    meta: dict[str, str] | None = None
    create_index: int = 0
    modify_index: int = 0


class Weights(msgspec.Struct, rename="pascal", frozen=True):
    """How much of the traffic an instance takes."""

    passing: int = 1
    warning: int = 1


class Service(msgspec.Struct, rename="pascal", frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One instance of a service; its node is not part of it."""

    id: str = msgspec.field(name="ID", default="")
    service: str = ""
    tags: list[str] | None = None
    address: str = ""
    meta: dict[str, str] | None = None
    port: int = 0
    weights: Weights = Weights()
    enable_tag_override: bool = False
    create_index: int = 0
    modify_index: int = 0


class Check(msgspec.Struct, rename="pascal", frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One check of a node, or of a service on it."""

    node: str = ""
    check_id: str = msgspec.field(name="CheckID", default="")
    name: str = ""
    status: str = ""
    notes: str = ""
    output: str = ""
    service_id: str = msgspec.field(name="ServiceID", default="")
    service_name: str = ""
    service_tags: list[str] | None = None
    definition: dict[str, Any] = {}
    create_index: int = 0
    modify_index: int = 0


Entry = Node | Service | Check


class CatalogOperation(NamedTuple):
    """One operation: exactly one of the three, and ``on``, the node of a service.

    It is a tuple because a log tells it from an operation on a key by that.
    """

    verb: str
    node: Node | None = None
    service: Service | None = None
    check: Check | None = None
    on: str = ""

    @property
    def entry(self) -> Entry:
        """What the operation is about."""
        found = self.node or self.service or self.check
        assert found is not None
        return found

    @property
    def label(self) -> str:
        """Consul's name for it in refusals."""
        match self.entry:
            case Node(node=name):
                return f"node {quoted(name)}"
            case Service(id=ident):
                return f"service {quoted(ident)} on node {quoted(self.on)}"
            case Check(check_id=ident, node=name):
                return f"check {quoted(ident)} on node {quoted(name)}"


class Content(msgspec.Struct):
    """The tables: nodes by name, the others by node and id, all in lower case, and the indexes by name."""

    nodes: dict[str, Node] = msgspec.field(default_factory=dict)
    services: dict[str, tuple[str, Service]] = msgspec.field(default_factory=dict)
    checks: dict[str, Check] = msgspec.field(default_factory=dict)
    indexes: dict[str, int] = msgspec.field(default_factory=dict)

    def copy(self) -> Content:
        """The same, for what a refused transaction must leave as it was."""
        return Content(dict(self.nodes), dict(self.services), dict(self.checks), dict(self.indexes))


class Catalog:
    """The tables and what is asked of them."""

    def __init__(self) -> None:
        self.content = Content()
        self.later = False
        """Whether its indexes are those of later versions."""

    def host(self, name: str, ident: str, address: str) -> None:
        """Register the server's own node, whose check always passes."""
        addresses, meta = {"lan": address, "wan": address}, {"embedded": "true"}
        node = Node(id=ident, node=name, address=address, tagged_addresses=addresses, meta=meta)
        serf = Check(
            node=name,
            check_id="serfHealth",
            name="Serf Health Status",
            status="passing",
            output="Agent alive and reachable",
        )
        before = dict(self.content.indexes)
        for operation in (CatalogOperation("set", node=node), CatalogOperation("set", check=serf)):
            self.apply(OWN_INDEX, operation)
        self.content.indexes = {"nodes": OWN_INDEX, "services": OWN_INDEX, "checks": OWN_INDEX} | before

    # Reading

    def index(self, *tables: str) -> int:
        """The index of an answer from these tables."""
        return max(1, *(self.content.indexes.get(table, 0) for table in tables))

    def index_of_service(self, name: str, *more: str) -> int:
        """The index of an answer about a service; ``more`` tables count besides where it never was."""
        indexes, one = self.content.indexes, _of_service(name)
        if _EXTINCTION in indexes and not self.instances(name):
            return indexes[_EXTINCTION]
        return indexes.get(one) or self.index("nodes", "services", *more)

    def index_of_nodes(self) -> int:
        """The index of the list of nodes; in later versions services count there, too."""
        return self.index("nodes", *(["services"] if self.later else []))

    def index_of_missing_node(self) -> int:
        """The index of an answer about a missing node: in later versions that of the last removal."""
        if not self.later:
            return 1
        return self.content.indexes.get(_NODE_GONE) or self.index("nodes", "services")

    def instances(self, name: str) -> list[tuple[Node, Service]]:
        """The instances of a service with their nodes, in order."""
        nodes, lower = self.content.nodes, name.lower()
        return [
            (nodes[node.lower()], service)
            for _, (node, service) in sorted(self.content.services.items())
            if service.service.lower() == lower
        ]

    def services_on(self, node: str) -> list[Service]:
        """What is registered on a node, by id."""
        return [each for _, (_, each) in _under(self.content.services, node)]

    def checks_on(self, node: str) -> list[Check]:
        """The checks on a node, by id."""
        return [check for _, check in _under(self.content.checks, node)]

    # Operations

    def apply(self, index: int, operation: CatalogOperation) -> list[Entry]:
        """Apply one operation at a raft index and return what a transaction reports.

        Raises:
            Refused: nothing was changed by this operation.
        """
        verb, found, label = operation.verb, self._find(operation), operation.label
        if verb == "get" and found is None:
            raise Refused(f"{label} doesn't exist")
        standing, wanted = 0 if found is None else found.modify_index, operation.entry.modify_index
        if verb == "cas" and wanted != standing:
            raise Refused(f"failed to set {label}, index is stale")
        if verb == "delete-cas" and (found is None or wanted != standing):
            raise Refused(f"failed to delete {label}, index is stale")
        match verb:
            case "get":
                pass
            case "set":
                self._put(index, operation, found)
            case "cas":
                try:
                    self._put(index, operation, found)
                except Refused:
                    if operation.check is None:
                        raise
                    return []  # Consul loses the reason: it answers with success and no result (measured)
            case "delete" | "delete-cas":
                self._remove(index, operation, found)
                return []
            case _:
                raise Refused(f"unknown {type(operation.entry).__name__} verb {quoted(verb)}")
        after = self._find(operation)
        assert after is not None
        return [after]

    def _find(self, operation: CatalogOperation) -> Entry | None:
        match operation.entry:
            case Node(node=name):
                return self.content.nodes.get(name.lower())
            case Service(id=ident):
                return self.content.services.get(_key(operation.on, ident), ("", None))[1]
            case Check(check_id=ident, node=name):
                return self.content.checks.get(_key(name, ident))

    def _put(self, index: int, operation: CatalogOperation, found: Entry | None) -> None:
        match operation.entry:
            case Node() as node:
                node = replace(node, datacenter=node.datacenter or "dc1")
                if (new := _changed(index, node, found)) is not None:
                    self.content.nodes[node.node.lower()] = new
                    self._move(index, "nodes", *self._services_of(node.node))
            case Service() as service:
                self._need_node(operation.on)
                if not service.id:
                    raise Refused("failed inserting service: object missing primary index")
                if (new := _changed(index, service, found)) is not None:
                    name = self.content.nodes[operation.on.lower()].node
                    self.content.services[_key(name, service.id)] = (name, new)
                    self._move(index, "services", _of_service(service.service))
            case Check() as check:
                self._put_check(index, check, found)

    def _put_check(self, index: int, check: Check, found: Entry | None) -> None:
        self._need_node(check.node)
        if not check.check_id:
            raise Refused("failed inserting check: object missing primary index")
        if check.service_id:
            standing = self.content.services.get(_key(check.node, check.service_id))
            if standing is None:
                raise Refused("Missing service registration")
            service = standing[1]
            check = replace(check, service_name=service.service, service_tags=service.tags)
        if not self.later:
            self._move(index, "checks")
        if (new := _changed(index, replace(check, status=check.status or "critical"), found)) is not None:
            self.content.checks[_key(check.node, check.check_id)] = new
            self._move(index, "checks", *self._concerned(new))

    def _remove(self, index: int, operation: CatalogOperation, found: Entry | None) -> None:
        match found:
            case Node(node=name):
                for service in self.services_on(name):
                    self._remove_service(index, name, service)
                for check in self.checks_on(name):
                    self._remove_check(index, check)
                del self.content.nodes[name.lower()]
                self._move(index, "nodes", _NODE_GONE)
            case Service() as service:
                self._remove_service(index, operation.on, service)
            case Check() as check:
                self._remove_check(index, check)

    def _remove_service(self, index: int, node: str, service: Service) -> None:
        for check in self.checks_on(node):
            if check.service_id.lower() == service.id.lower():
                self._remove_check(index, check)
        del self.content.services[_key(node, service.id)]
        self._move(index, "services", _of_service(service.service))
        if not self.instances(service.service):
            del self.content.indexes[_of_service(service.service)]
            self._move(index, _EXTINCTION)

    def _remove_check(self, index: int, check: Check) -> None:
        self._move(index, "checks", *self._concerned(check))
        del self.content.checks[_key(check.node, check.check_id)]

    def _concerned(self, check: Check) -> list[str]:
        """The indexes of the services whose health a check is part of."""
        return [_of_service(check.service_name)] if check.service_id else self._services_of(check.node)

    def _services_of(self, node: str) -> list[str]:
        return [_of_service(service.service) for service in self.services_on(node)]

    def _need_node(self, name: str) -> None:
        if name.lower() not in self.content.nodes:
            raise Refused("Missing node registration")

    def _move(self, index: int, *names: str) -> None:
        self.content.indexes |= dict.fromkeys(names, index)


def _changed(index: int, new: Any, found: Any) -> Any:
    """The entry as it is stored at an index; None: it is there already."""
    create, modify = (index, 0) if found is None else (found.create_index, found.modify_index)
    if found is not None and replace(new, create_index=create, modify_index=modify) == found:
        return None
    return replace(new, create_index=create, modify_index=index)


def _of_service(name: str) -> str:
    return f"service.{name.lower()}"


def _key(node: str, ident: str) -> str:
    return f"{node}{_END}{ident}".lower()


def _under(table: dict[str, Any], node: str) -> list[tuple[str, Any]]:
    return sorted(each for each in table.items() if each[0].startswith(_key(node, "")))
