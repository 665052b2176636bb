"""``/v1/catalog/`` and ``/v1/health/``, and the catalogue's operations of transactions.

A query is woken by every change of the catalogue and answers when its own index has passed the caller's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from store.embedded import answers, calls
from store.embedded.answers import HttpError, Query, QueryResult
from store.embedded.calls import Call
from store.embedded.catalog import ANYTHING, Catalog, CatalogOperation, Check, Entry, Node, Service
from store.embedded.dialects import Dialect
from store.embedded.encoding import Malformed

_TRUTH = dict.fromkeys(("", "1", "t", "T", "TRUE", "true", "True"), True)
_TRUTH |= dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), False)
_INDEXES = ("CreateIndex", "ModifyIndex")


class _Sent(msgspec.Struct, rename="pascal", forbid_unknown_fields=True):
    """One operation as it is sent: of a service, ``node`` is the name of its node."""

    verb: str = ""
    node: Node | str = ""
    service: Service = Service()
    check: Check = Check()


# Transactions


def operation(table: str, value: Any) -> CatalogOperation:
    """One operation of a transaction's body, with the id that Consul makes of a name where there is none.

    Raises:
        Malformed: it is none; the text is not Go's.
    """
    try:
        sent = msgspec.convert(value, _Sent)
    except msgspec.ValidationError as error:
        raise Malformed(f"{table}: {error}") from error
    verb, node, service, check = sent.verb, sent.node, sent.service, sent.check
    if table == "Node":
        node = node if isinstance(node, Node) else Node()
        if node.id:
            raise Malformed("Node: the embedded server takes none with an ID")
        return CatalogOperation(verb, node=node)
    if table == "Service":
        service = service if service.id or verb == "get" else replace(service, id=service.service)
        return CatalogOperation(verb, service=service, on=node if isinstance(node, str) else "")
    check = check if check.check_id or verb == "get" else replace(check, check_id=check.name)
    return CatalogOperation(verb, check=check)


def refusal(call: Call, operation: CatalogOperation) -> str | None:
    """Why an operation is refused before it is tried; a read never is."""
    if operation.verb == "get":
        return None
    match operation.entry:
        case Node(node=""):
            return "Must provide node"
        case Service(service="") as service if service.id:
            return call.state.dialect.service_unnamed
    return None if call.policy.catalog else calls.DENIED


def told(dialect: Dialect, entry: Entry, *, empty: list[str] | None = None) -> dict[str, Any]:
    """An entry with the fields of the version; ``empty`` is given for tags that there are none of."""
    found: dict[str, Any] = msgspec.to_builtins(entry)
    match entry:
        case Service():
            found["Tags"] = empty if entry.tags is None else entry.tags
            more: dict[str, Any] = {"Proxy": _proxy(dialect), "Connect": {}}
            if dialect.later:
                more["PeerName"] = ""
                if not entry.port:
                    del found["Port"]
        case Check():
            found["ServiceTags"] = empty if entry.service_tags is None else entry.service_tags
            later = {"Interval": "", "Timeout": "", "ExposedPort": 0} if dialect.later else {}
            more = {"Type": "", **later, "Definition": found.pop("Definition")}
        case _:
            return found
    indexes = {name: found.pop(name) for name in _INDEXES}
    return {**found, **more, **indexes}


def _proxy(dialect: Dialect) -> dict[str, Any]:
    return {**({"Mode": ""} if dialect.later else {}), "MeshGateway": {}, "Expose": {}}


# Queries


def nodes(call: Call) -> Query:
    """``/v1/catalog/nodes``."""

    def read(catalog: Catalog) -> tuple[int, Any]:
        found = [node for _, node in sorted(catalog.content.nodes.items()) if _marked(call, node)]
        return catalog.index_of_nodes(), [told(call.state.dialect, node) for node in found]

    return _query(call, read)


def node(call: Call) -> Query:
    """``/v1/catalog/node/<node>``: the node with its services by id, or null."""
    name = _rest(call, "node name")

    def read(catalog: Catalog) -> tuple[int, Any]:
        found = catalog.content.nodes.get(name.lower())
        if found is None:
            return catalog.index_of_missing_node(), None
        services = {each.id: _told(call, each) for each in catalog.services_on(name)}
        return catalog.index("nodes", "services"), {"Node": _told(call, found), "Services": services}

    return _query(call, read)


def services(call: Call) -> Query:
    """``/v1/catalog/services``: the tags of each service."""

    def read(catalog: Catalog) -> tuple[int, Any]:
        found: dict[str, dict[str, None]] = {}
        for _, (name, service) in sorted(catalog.content.services.items()):
            if _marked(call, catalog.content.nodes[name.lower()]):
                found.setdefault(service.service, {}).update(dict.fromkeys(service.tags or []))
        tables = ("services", "nodes") if "node-meta" in call.params else ("services",)
        return catalog.index(*tables), {name: list(tags) for name, tags in sorted(found.items())}

    return _query(call, read)


def service(call: Call) -> Query:
    """``/v1/catalog/service/<service>``: its instances, each with its node in one flat object."""
    name = _rest(call, "service name")

    def flat(node: Node, service: Service) -> dict[str, Any]:
        found = _told(call, node)
        found["NodeMeta"] = found.pop("Meta")
        told = _told(call, service)
        told |= {"Name": told.pop("Service"), "Kind": "", "Port": service.port, "Meta": service.meta or {}}
        if told.pop("PeerName", None) is not None:
            told["SocketPath"] = ""
        indexes = {name: told.pop(name) for name in _INDEXES}
        return {**found, **{f"Service{key}": value for key, value in told.items()}, **indexes}

    def read(catalog: Catalog) -> tuple[int, Any]:
        return catalog.index_of_service(name), [flat(*each) for each in _instances(call, catalog, name)]

    return _query(call, read)


def health(call: Call) -> Query:
    """``/v1/health/service/<service>``: its instances with their checks and those of their nodes."""
    name = _rest(call, "service name")
    passing = _TRUTH.get(call.params.get("passing", "false"))
    if passing is None:
        raise HttpError(400, "Invalid value for ?passing")

    def read(catalog: Catalog) -> tuple[int, Any]:
        found = []
        for node, service in _instances(call, catalog, name):
            on = catalog.checks_on(node.node)
            checks = [each for each in on if not each.service_id]
            checks += [each for each in on if each.service_id.lower() == service.id.lower()]
            if not passing or all(check.status == "passing" for check in checks):
                one = {"Node": _told(call, node), "Service": _told(call, service)}
                found.append({**one, "Checks": [_told(call, each) for each in checks]})
        return catalog.index_of_service(name, "checks"), found

    return _query(call, read)


def checks_on(call: Call) -> Query:
    """``/v1/health/node/<node>``: the checks of a node and of its services."""
    name = _rest(call, "node name")
    return _query(call, lambda catalog: _checks(call, catalog, catalog.checks_on(name)))


def checks_in(call: Call) -> Query:
    """``/v1/health/state/<state>``: the checks in a state, or in ``any``."""
    state = _rest(call, "check state")

    def read(catalog: Catalog) -> tuple[int, Any]:
        every = [check for _, check in sorted(catalog.content.checks.items())]
        found = [each for each in every if state in {"any", each.status}]
        marked = [each for each in found if _marked(call, catalog.content.nodes[each.node.lower()])]
        return _checks(call, catalog, marked)

    return _query(call, read)


def _checks(call: Call, catalog: Catalog, found: list[Check]) -> tuple[int, Any]:
    return catalog.index("checks"), [_told(call, each) for each in found]


def _query(call: Call, read: Callable[[Catalog], tuple[int, Any]]) -> Query:
    call.options()
    if "filter" in call.params:
        raise HttpError(400, "the embedded server knows no ?filter")

    def reading() -> QueryResult:
        index, found = read(call.state.catalog)
        return QueryResult(index, lambda: answers.json(found, headers=answers.meta(index)))

    return Query(reading, lambda wake: call.state.catalog_watches.key(ANYTHING, wake))


def _instances(call: Call, catalog: Catalog, name: str) -> list[tuple[Node, Service]]:
    """The instances whose nodes and tags are asked for."""
    tags = {value.lower() for key, value in call.request.params if key == "tag"}
    return [
        (node, service)
        for node, service in catalog.instances(name)
        if _marked(call, node) and tags <= {tag.lower() for tag in service.tags or []}
    ]


def _marked(call: Call, node: Node) -> bool:
    """Whether a node has the meta that the query asks for."""
    wanted = [value.partition(":") for key, value in call.request.params if key == "node-meta"]
    return all((node.meta or {}).get(key) == value for key, _, value in wanted)


def _rest(call: Call, what: str) -> str:
    call.options()
    if not call.rest:
        raise HttpError(400, f"Missing {what}")
    return call.rest


def _told(call: Call, entry: Entry) -> dict[str, Any]:
    return told(call.state.dialect, entry, empty=[])
