"""Consul's catalogue, as far as farmd writes it: nodes, services and their checks under a cluster's mark.

A cluster's nodes bear its id in their meta, and the ids of its services begin with it. What must never break:
an operation changes only what was read, by its index (``cas``, ``delete-cas``), because others write the
catalogue, too. Consul judges almost nothing of what it is given, so ``mistake`` does.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from store.consul.client import ConsulClient
from store.errors import InputInvalid
from store.keys import valid_segment
from store.operations import CatalogOperation, Operation, Verb
from store.services import Catalog
from store.services import Service as AskedService
from store.several import several

MARK = "farmd-cluster"
"""The key of a node's meta that names its cluster."""
SERF = "serfHealth"
"""The check of Consul's own agents: Consul removes a node that has it and no agent."""
ALL = "catalog.all"
"""The feature of a farm that registers also services that do not ask for it."""
FARMS, AGENTS = MEMBERS = ("farmd-farm", "farmd-agent")
"""What farmd itself is called in the catalogue, in place of a service's id and name."""
RESERVED = frozenset({"consul", *MEMBERS})
"""Names whose readers trust what they find: Consul's own servers, and farmd's processes."""
REGISTERED = "catalog.members"
"""The feature of a farm that registers farms and agents."""
OWN = ("owner", "pod", "node", "version")
"""The keys of a service's meta that farmd sets."""
READ_AT_ONCE = 8
V = TypeVar("V")
MOST_META, MOST_KEY, MOST_VALUE, MOST_TAGS, MOST_TAG = 64, 128, 512, 32, 128
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_META_KEY = re.compile(r"[A-Za-z0-9_-]+")


class Node(msgspec.Struct, rename="pascal", frozen=True):
    """A node of the catalogue. One with an ``id`` has an agent of Consul, one with ``serf`` its check."""

    node: str
    address: str = ""
    meta: dict[str, str] | None = None
    id: str = msgspec.field(name="ID", default="")
    modify_index: int = 0
    serf: bool = False


def dns_name(service: str, asked: Catalog, domain: str) -> str:
    """The name under which Consul's DNS answers for a service: ``web.service.consul``."""
    return f"{asked.name or service}.service.{domain}"


class Registered(msgspec.Struct, rename="pascal", frozen=True):
    """An instance as a query for its service's name returns it."""

    node: str
    service_id: str = msgspec.field(name="ServiceID", default="")


class Service(msgspec.Struct, rename="pascal", frozen=True):
    """One instance of a service, on its node."""

    id: str = msgspec.field(name="ID")
    service: str = ""
    tags: list[str] | None = None
    address: str = ""
    port: int = 0
    meta: dict[str, str] | None = None
    modify_index: int = 0


class Check(msgspec.Struct, rename="pascal", frozen=True):
    """How an instance is."""

    node: str
    check_id: str = msgspec.field(name="CheckID")
    status: str = ""
    output: str = ""
    service_id: str = msgspec.field(name="ServiceID", default="")
    service_name: str = ""
    modify_index: int = 0


class Standing(msgspec.Struct, frozen=True):
    """An instance as it is in the catalogue; one without its check counts as passing there."""

    node: str
    service: Service
    check: Check | None = None


class _NodeServices(msgspec.Struct, rename="pascal"):
    node: Node
    services: dict[str, Service] | None = None


NAMES = msgspec.json.Decoder(dict[str, list[str]])
_NODES = msgspec.json.Decoder(list[Node])
_REGISTERED = msgspec.json.Decoder(list[Registered])
_CHECKS = msgspec.json.Decoder(list[Check])
_OF_NODE = msgspec.json.Decoder(_NodeServices | None)


def short(cluster: str) -> str:
    """The digits of a cluster's id that names in the catalogue bear."""
    return cluster[:8]


def node_name(cluster: str, node: str) -> str:
    """The catalogue's name for a node."""
    return f"farmd-{short(cluster)}-{node}"


def named(cluster: str, name: str) -> bool:
    """Whether a node has a name that ``node_name`` makes: anybody may set the mark on any other node."""
    prefix = node_name(cluster, "")
    try:
        valid_segment(name.removeprefix(prefix), "node")
    except InputInvalid:
        return False
    return name.startswith(prefix)


def service_id(cluster: str, service: str, node: str, instance: str) -> str:
    """The id of a pod of a service."""
    return f"farmd/{short(cluster)}/{service}/{node}/{instance}"


def parts(cluster: str, ident: str) -> tuple[str, str, str] | None:
    """Service, node and instance of an id; None: it is not this cluster's."""
    found = ident.split("/")
    return (
        (found[2], found[3], found[4]) if len(found) == 5 and found[:2] == ["farmd", short(cluster)] else None
    )


def check_id(ident: str) -> str:
    """The id of an instance's check; some readers count only those with this beginning."""
    return f"service:{ident}"


def marked(cluster: str) -> tuple[tuple[str, str], ...]:
    """The parameters of a question for what bears a cluster's mark."""
    return (("node-meta", f"{MARK}:{cluster}"),)


def meta_of(cluster: str) -> dict[str, str]:
    """The meta of a cluster's node."""
    return {"external-node": "true", MARK: cluster}


def bears(cluster: str, node: Node) -> bool:
    """Whether a node bears a cluster's mark."""
    return (node.meta or {}).get(MARK) == cluster


def owns(cluster: str, node: Node) -> bool:
    """Whether a node belongs to this cluster only: it has the mark, and no agent of Consul has taken it.

    A write that gives no meta takes the mark away, such as another's check on this node: a node of the
    cluster's names without any mark is still its own.
    """
    lost = MARK not in (node.meta or {}) and named(cluster, node.node)
    return (bears(cluster, node) or lost) and not node.id and not node.serf


def judged(node: Node, checks: Mapping[tuple[str, str], Check]) -> Node:
    """A node with what its checks say of it."""
    return msgspec.structs.replace(node, serf=(node.node, SERF) in checks)


def wish(service: AskedService, default: bool) -> Catalog | None:
    """The wanted catalogue settings of a service; ``default``: also for a service without any, if it has a
    port.
    """
    silent = service.catalog is None and not service.catalog_off
    return Catalog() if silent and default and service.port else service.catalog


async def nodes(client: ConsulClient, cluster: str) -> dict[str, Node]:
    """The nodes that bear a cluster's mark, by name."""
    _, found = await client.catalog("catalog/nodes", _NODES, marked(cluster))
    return {node.node: node for node in found}


async def every_node(client: ConsulClient) -> dict[str, Node]:
    """All nodes of the catalogue, by name."""
    _, found = await client.catalog("catalog/nodes", _NODES)
    return {node.node: node for node in found}


async def checks(client: ConsulClient, cluster: str) -> dict[tuple[str, str], Check]:
    """All checks on the nodes that bear a cluster's mark, by node and id."""
    _, found = await client.catalog("health/state/any", _CHECKS, marked(cluster))
    return {(check.node, check.check_id): check for check in found}


async def checks_on(client: ConsulClient, names: Iterable[str]) -> dict[tuple[str, str], Check]:
    """All checks on the nodes of these names, whatever mark they bear, by node and id."""

    async def one(name: str) -> list[Check]:
        _, found = await client.catalog(f"health/node/{name}", _CHECKS)
        return found

    found = await _each(one, names)
    return {(check.node, check.check_id): check for each in found.values() for check in each}


async def services(
    client: ConsulClient, names: Iterable[str]
) -> dict[str, tuple[Node, dict[str, Service]] | None]:
    """The nodes of these names with what is registered on them; None: there is no such node."""

    async def one(name: str) -> tuple[Node, dict[str, Service]] | None:
        _, found = await client.catalog(f"catalog/node/{name}", _OF_NODE)
        return None if found is None else (found.node, found.services or {})

    return await _each(one, names)


async def registered(client: ConsulClient, names: Iterable[str]) -> dict[str, list[Registered]]:
    """What is registered under each name that can be one."""

    async def one(name: str) -> list[Registered]:
        _, found = await client.catalog(f"catalog/service/{name}", _REGISTERED)
        return found

    return await _each(one, filter(_LABEL.fullmatch, names))


async def _each(one: Callable[[str], Awaitable[V]], names: Iterable[str]) -> dict[str, V]:
    """The result of ``one`` for each name, some at a time."""
    wanted = sorted(set(names))
    return dict(zip(wanted, await several(one, wanted, READ_AT_ONCE), strict=True))


# -- operations ----------------------------------------------------------------------------------
def set_node(cluster: str, node: str, address: str, index: int) -> CatalogOperation:
    """Write a cluster's node over the version with that index; 0: there is none."""
    body = {"Node": node, "Address": address, "Meta": meta_of(cluster), "ModifyIndex": index}
    return _operation(Verb.CAS, "Node", f"node {node}", body)


def delete_node(node: Node) -> CatalogOperation:
    """Delete a node with all that is registered on it, if it is as it was read."""
    body = {"Node": node.node, "ModifyIndex": node.modify_index}
    return _operation(Verb.DELETE_CAS, "Node", f"node {node.node}", body)


def set_service(node: str, service: Service) -> CatalogOperation:
    """Write an instance over the version with its index; 0: there is none."""
    body = {**msgspec.to_builtins(service), "Tags": service.tags or [], "Meta": service.meta or {}}
    return _operation(Verb.CAS, "Service", f"service {service.service}", body, node)


def delete_service(node: str, service: Service) -> CatalogOperation:
    """Delete an instance with its checks, if it is as it was read."""
    body = {"ID": service.id, "Service": service.service, "ModifyIndex": service.modify_index}
    return _operation(Verb.DELETE_CAS, "Service", f"service {service.service}", body, node)


def set_check(check: Check) -> CatalogOperation:
    """Write an instance's check over the version with its index; 0: there is none."""
    body = {**msgspec.to_builtins(check), "Name": "farmd"}
    return _operation(Verb.CAS, "Check", f"service {check.service_name}", body)


def rule(key: str) -> str:
    """The rule of Consul's ACL that an operation with this ``key`` needs; empty: it is of no entry."""
    table, _, name = key.partition(" ")
    if table == "node":
        return 'node_prefix "farmd-" { policy = "write" }'
    return f'service "{name}" {{ policy = "write" }}' if table == "service" else ""


def _operation(verb: Verb, table: str, key: str, body: dict[str, Any], node: str = "") -> CatalogOperation:
    whole = {table: body, **({"Node": node} if node else {})}
    return CatalogOperation(verb, key, table=table, body=whole)


# -- a change of one entry --------------------------------------------------------------------------
class Change(msgspec.Struct, frozen=True):
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
            found.append(set_node(cluster, after.node, self.address, index))
        if before is not None and (after is None or after.service.service != before.service.service):
            found.append(delete_service(before.node, before.service))
            before = None
        if after is None:
            return found
        if before is None or not same(before, after):
            found.append(
                set_service(after.node, _over(after.service, before.service if before is not None else None))
            )
        check = before.check if before is not None else None
        if after.check is not None and not alike(check, after.check):
            found.append(set_check(_over(after.check, check)))
        return found

    def committed(self, index: int) -> Standing:
        """The entry as a commit at that index left it."""
        before, after = self.before, self.after
        assert after is not None
        if before is not None and after.service.service != before.service.service:
            before = None
        service = msgspec.structs.replace(after.service, modify_index=index)
        if before is not None and same(before, after):
            service = before.service
        check = before.check if before is not None and alike(before.check, after.check) else None
        if check is None and after.check is not None:
            check = msgspec.structs.replace(after.check, modify_index=index)
        return Standing(after.node, service, check)


E = TypeVar("E", Service, Check)


def _over(wanted: E, standing: E | None) -> E:
    """The same operation, for the version that exists."""
    return msgspec.structs.replace(wanted, modify_index=0 if standing is None else standing.modify_index)


def same(one: Standing, other: Standing) -> bool:
    """Whether two versions of an instance are equal, without their checks."""
    return _said(one.service) == _said(other.service)


def _said(service: Service) -> Service:
    tags, meta = service.tags or [], service.meta or {}
    return msgspec.structs.replace(service, tags=tags, meta=meta, modify_index=0)


def alike(one: Check | None, other: Check | None) -> bool:
    """Whether two versions of a check are equal."""
    if one is None or other is None:
        return one is other
    return _over(one, None) == _over(other, None)


# -- what people ask -----------------------------------------------------------------------------
def mistake(name: str, catalog: Catalog, port: bool = True) -> str:
    """What Consul, its DNS or a reader could not take: the field, what was found and what is expected.

    ``port``: whether the service has one.
    """
    if not port:
        return "catalog: found a service without ports, expected one: an entry has an address and a port"
    if not _LABEL.fullmatch(catalog.name or name):
        return f"catalog.name: found {(catalog.name or name)!r}, expected 1 to 63 of a-z, 0-9 and '-'"
    if (catalog.name or name) in RESERVED:
        return f"catalog.name: found {(catalog.name or name)!r}, expected another name: this one is reserved"
    return _tags("tags", catalog.tags) or _tags("canary_tags", catalog.canary_tags) or _meta(catalog.meta)


def _tags(field: str, tags: list[str]) -> str:
    wrong = next((tag for tag in tags if not tag or len(tag) > MOST_TAG or not tag.isprintable()), None)
    if wrong is not None:
        return f"catalog.{field}: found {wrong[:40]!r}, expected 1 to {MOST_TAG} printable characters"
    if len(tags) > MOST_TAGS:
        return f"catalog.{field}: found {len(tags)} tags, expected at most {MOST_TAGS}"
    return ""


def _meta(meta: Mapping[str, str]) -> str:
    if len(meta) > MOST_META - len(OWN):
        return f"catalog.meta: found {len(meta)} pairs, expected at most {MOST_META - len(OWN)}"
    for key, value in meta.items():
        if not _META_KEY.fullmatch(key) or len(key) > MOST_KEY or key.startswith("consul-") or key in OWN:
            told = f"expected letters, digits, '_' and '-', not consul-… and not {', '.join(OWN)}"
            return f"catalog.meta: found the key {key[:40]!r}, {told}"
        if len(value) > MOST_VALUE:
            return f"catalog.meta.{key}: found {len(value)} characters, expected at most {MOST_VALUE}"
    return ""
