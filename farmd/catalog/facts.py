"""The facts of the kind ``catalog``: what a service should have in the catalogue, and what stands there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

import structlog
from msgspec.structs import replace

from farmd.runtime.wake import Wake, wait
from farmd.services.board import Running, Sightings
from farmd.work.context import Context
from farmd.work.model import Blocked
from store import catalog
from store.cache import PrefixCache
from store.catalog import AGENTS, ALL, FARMS, MEMBERS, REGISTERED, Check, Node, Standing, wish
from store.consul.client import ConsulClient
from store.entry import Stored
from store.errors import StoreError
from store.families import FAMILIES, SERVICES
from store.operations import Operation
from store.ports import Clock
from store.services import Service

# The values of the kind: what a worker sees of a service, and what it wants to change in the catalogue.

T = TypeVar("T", catalog.Service, catalog.Check)


@dataclass(frozen=True, slots=True)
class CatalogPod:
    """A pod, a farm or an agent as it is to be in the catalogue; ``meta`` is that of a farm or an agent."""

    node: str
    instance: str
    address: str
    port: int
    owner: str
    version: str = ""
    passing: bool = True
    output: str = ""
    canary: bool = False
    meta: Mapping[str, str] | None = None


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


# What stands in Consul's catalogue under the cluster's mark, for all workers of a farm.
#
# One query per farm is parked, whatever the number of services and nodes (R23): it returns when somebody
# registers or removes an instance. Checks and nodes are looked at once a minute besides. What must never
# break: a worker that was refused reads again before it plans (R12), and an own commit is not forgotten for
# an answer of before.

log = structlog.get_logger()

PARKED_SECONDS = 30.0
LOOK_SECONDS = 60.0
# Others' commits wake every farm: each reads what they left at most so often.
PAUSE_SECONDS = 10.0
RETRY_SECONDS = 5.0


class View:
    """The nodes and entries of one cluster, as this farm read or wrote them last.

    ``changed`` is called with the ids of services whose entries somebody else changed.
    """

    def __init__(
        self,
        client: ConsulClient,
        cluster: str,
        clock: Clock,
        changed: Callable[[set[str]], None],
    ) -> None:
        self._client, self._cluster, self._clock = client, cluster, clock
        self._changed = changed
        self.nodes: dict[str, Node] = {}
        self.used: set[str] = set()
        """The nodes on which anything is registered, by whomever."""
        self.settled: set[str] = set()
        """The services whose entries are as their worker of this farm wants them."""
        self._entries: dict[str, dict[str, Standing]] = {}
        self._doubted: set[str] = set()
        self._odd: set[str] = set()
        self._lock = asyncio.Lock()
        self._reads = 0
        self._stale = True
        self._own: dict[str, int] = {}
        self._applied = 0
        self.wake = Wake()
        """Set when the view is needed, or not any more."""

    def services(self) -> Mapping[str, Mapping[str, Standing]]:
        """The entries of all services, by the service's id."""
        return self._entries

    def of(self, service: str) -> dict[str, Standing]:
        """The entries of a service, by their ids."""
        return dict(self._entries.get(service, {}))

    def expire(self) -> None:
        """What was read before counts no more (R15)."""
        self._stale = True

    def doubt(self, nodes: Iterable[str]) -> None:
        """A write on these nodes was refused, or is: they are looked at whatever mark they have."""
        self._stale = True
        self._doubted.update(nodes)

    async def fresh(self) -> None:
        """Return once what it shows was read after it expired last.

        Raises:
            StoreError: Consul did not tell.
        """
        if self._stale:
            await self._read(deep=True)
            self.wake.set()

    async def run(self, needed: Callable[[], bool]) -> None:
        """Follow the catalogue while that is needed, until cancelled."""
        index, looked = 0, self._clock.mono()
        while True:
            self.wake.clear()
            if not needed():
                await wait(self.wake, self._clock, None)
                index, looked = 0, self._clock.mono()
                continue
            try:
                began = index == 0
                index, moved = await self._parked(index)
                due = self._clock.mono() - looked >= LOOK_SECONDS
                if moved or due or self._stale:
                    await self._read(deep=moved or self._stale)
                    looked = self._clock.mono()
                    await self._clock.sleep(PAUSE_SECONDS if moved and not began else 0.0)
            except StoreError as error:
                log.debug("catalog.unread", error_code=error.code, error=error.message)
                index = 0
                await self._clock.sleep(RETRY_SECONDS)

    async def _parked(self, index: int) -> tuple[int, bool]:
        """Wait for a change that this farm did not make; the new index, and whether there was one."""
        marked = catalog.marked(self._cluster)
        found, _ = await self._client.catalog(
            "catalog/services", catalog.NAMES, marked, index=index, wait=PARKED_SECONDS
        )
        # Where it begins, or an index fell, nobody knows what changed before.
        return found, index == 0 or found < index or (found != index and found > self._applied)

    # -- reading ---------------------------------------------------------------------------------
    async def _read(self, *, deep: bool) -> None:
        """Read checks and nodes, and with ``deep`` also what is registered on each node."""
        asked = self._reads
        async with self._lock:
            if self._reads > asked:
                return  # a later read than this one is over
            self._reads += 1
            self._own.clear()
            stale, self._stale = self._stale, False
            try:
                nodes = self._well_named(await catalog.nodes(self._client, self._cluster))
                checks = await catalog.checks(self._client, self._cluster) if nodes else {}
                nodes = {name: catalog.judged(node, checks) for name, node in nodes.items()}
                if deep or stale or nodes.keys() != self._owned() or self._others(checks):
                    await self._read_services(nodes, checks)
                else:
                    self._take(self._with_checks(checks), nodes, self.used)
            except StoreError:
                self._stale = True
                raise

    def _well_named(self, found: dict[str, Node]) -> dict[str, Node]:
        """Without nodes that somebody else made and gave this cluster's mark."""
        odd = {name for name in found if not catalog.named(self._cluster, name)}
        if odd - self._odd:
            log.warning("catalog.foreign_nodes_with_our_mark", nodes=sorted(name[:80] for name in odd)[:5])
        self._odd = odd
        return {name: node for name, node in found.items() if name not in odd}

    def _owned(self) -> set[str]:
        return {name for name, node in self.nodes.items() if catalog.owns(self._cluster, node)}

    def _others(self, found: Mapping[tuple[str, str], Check]) -> bool:
        """Whether there are checks of other entries than it shows."""
        known = {catalog.check_id(ident) for entries in self._entries.values() for ident in entries}
        ours = (name for _, name in found if catalog.parts(self._cluster, name.removeprefix("service:")))
        return any(name not in known for name in ours)

    async def _read_services(self, nodes: dict[str, Node], checks: dict[tuple[str, str], Check]) -> None:
        found: dict[str, dict[str, Standing]] = {}
        used = set[str]()
        doubted, self._doubted = self._doubted, set()
        for name, told in (await catalog.services(self._client, {*nodes, *doubted})).items():
            if told is None:
                nodes.pop(name, None)
                continue
            node, registered = told
            nodes[name] = catalog.judged(node, checks)
            if not catalog.owns(self._cluster, nodes[name]):
                continue
            used.update([name] if registered else [])
            for ident, service in registered.items():
                parts = catalog.parts(self._cluster, ident)
                if parts is not None and catalog.node_name(self._cluster, parts[1]) == name:
                    check = checks.get((name, catalog.check_id(ident)))
                    found.setdefault(parts[0], {})[ident] = Standing(name, service, check)
        self._take(found, nodes, used)

    def _with_checks(self, checks: dict[tuple[str, str], Check]) -> dict[str, dict[str, Standing]]:
        return {
            service: {
                ident: Standing(each.node, each.service, checks.get((each.node, catalog.check_id(ident))))
                for ident, each in entries.items()
            }
            for service, entries in self._entries.items()
        }

    def _take(self, found: dict[str, dict[str, Standing]], nodes: dict[str, Node], used: set[str]) -> None:
        """Show what was read; what this farm wrote meanwhile stays."""
        for ident in self._own:
            service = self._service(ident)
            mine = self._entries.get(service, {}).get(ident)
            if mine is None:
                found.get(service, {}).pop(ident, None)
            else:
                found.setdefault(service, {})[ident] = mine
                nodes.setdefault(mine.node, self.nodes[mine.node])
        before, self._entries, self.nodes, self.used = self._entries, found, nodes, used
        different = {
            service
            for service in before.keys() | found.keys()
            if _differ(before.get(service, {}), found.get(service, {}))
        }
        if different:
            self._changed(different)

    def _service(self, ident: str) -> str:
        """The id of the service that an entry belongs to; empty: it is not this cluster's."""
        return (catalog.parts(self._cluster, ident) or ("",))[0]

    # -- own commits -----------------------------------------------------------------------------
    def apply(self, changes: Sequence[Change], index: int) -> None:
        """Show what was committed at that index."""
        self._applied = max(self._applied, index)
        for change in changes:
            before, after = change.before, change.after
            ident = (after or before).service.id  # type: ignore[union-attr]
            service = self._service(ident)
            self._own[ident] = index
            if after is None:
                self._entries.get(service, {}).pop(ident, None)
                continue
            if change.address:
                meta = catalog.meta_of(self._cluster)
                self.nodes[after.node] = Node(after.node, change.address, meta, modify_index=index)
            self.used.add(after.node)
            self._entries.setdefault(service, {})[ident] = change.committed(index)
        self.wake.set()

    def removed(self, node: str) -> None:
        """A node was deleted."""
        self.nodes.pop(node, None)
        self.used.discard(node)

    def counted(self, services: Iterable[str]) -> dict[str, int]:
        """How many entries of these services there are, by the status of their checks."""
        found = {"passing": 0, "critical": 0}
        for service in services:
            for each in self._entries.get(service, {}).values():
                status = each.check.status if each.check is not None else "passing"
                found["passing" if status == "passing" else "critical"] += 1
        return found


def _differ(one: Mapping[str, Standing], other: Mapping[str, Standing]) -> bool:
    return one.keys() != other.keys() or any(
        not (same(each, other[ident]) and alike(each.check, other[ident].check))
        for ident, each in one.items()
    )


# What the workers of one farm share: records of services, pods that run, and the view of the catalogue.
#
# It wakes the workers that a change concerns. While no service asks for the catalogue it follows nothing.

DRIFT = "farmd_catalog_drift_total"


@dataclass(frozen=True, slots=True)
class Follower:
    """A worker of one service: what wakes it, and the pods that it looks at."""

    wake: Wake
    sightings: Sightings


class Shared:
    """What the workers of a farm share."""

    def __init__(self, context: Context) -> None:
        caches = context.caches
        self._context = context
        section = context.sections.get(SERVICES.name)
        self._all = section is not None and section.catalog == "all"
        self.members = MEMBERS if section is not None and section.register_members else ()
        for feature in (*[ALL] * self._all, *[REGISTERED] * bool(self.members)):
            context.features.add(feature)
        self.tree: PrefixCache[Service] = caches.tree(SERVICES)
        self.running = Running(caches, context.keys)
        self.view = View(context.client, context.cluster, context.clock, self._differ)
        self.followers: dict[str, Follower] = {}
        self.sweeper: Wake | None = None
        """What wakes the worker of leftovers; None: it works in another farm."""
        caches.reality.subscribe(self._realities_changed)
        caches.agents.subscribe(self._agents_changed)
        self._switches = [caches.tree(family) for family in FAMILIES.values() if family.switches]
        for tree in self._switches:
            tree.subscribe(lambda _: self._wake_all())
        self.tree.subscribe(lambda _: self._sweep())
        caches.farms.subscribe(self._farms_changed)
        caches.on_forget(self._forget)

    def wish(self, service: Service) -> Service | None:
        """A service as it is to be found, by its own words or this farm's setting; None: not at all."""
        found = wish(service, self._all)
        return None if found is None else replace(service, catalog=found)

    def asked(self, service: str) -> Stored[Service] | None:
        """The record of a service that is to be in the catalogue."""
        stored = self.tree.get(self._context.keys.record(SERVICES.name, service))
        return stored if stored is not None and self.wish(stored.record) is not None else None

    def kept(self, service: Service) -> bool:
        """Whether a service is to be there by its own words or the setting of a farm that is present."""
        return wish(service, self._somewhere(ALL)) is not None

    def registered(self, service: str) -> bool:
        """Whether these are farms or agents, and a farm that is present registers them."""
        return service in MEMBERS and self._somewhere(REGISTERED)

    def _somewhere(self, feature: str) -> bool:
        farms = self._context.caches.farms.entries.values()
        return any(feature in farm.record.features for farm in farms)

    def switching(self) -> Iterator[Stored[Any]]:
        """The records that bring a new version in place of an old one."""
        return chain.from_iterable(tree.entries.values() for tree in self._switches)

    def needed(self) -> bool:
        """Whether this farm looks at the catalogue: an idle one without services in it does not (R23)."""
        return bool(self.followers) or (self.sweeper is not None and bool(self.view.nodes))

    def join(self, service: str, follower: Follower) -> None:
        """A worker hears of the pods of its owners from now on."""
        if not self.followers:
            self.running.fill()
        self.followers[service] = follower
        self.view.wake.set()

    def leave(self, service: str) -> None:
        """It hears of nothing any more."""
        self.followers.pop(service, None)
        self._sweep()
        self.view.settled.discard(service)
        if not self.followers:
            self.running.clear()
        self.view.wake.set()

    def _sweep(self) -> None:
        if self.sweeper is not None:
            self.sweeper.set()

    def _wake_all(self) -> None:
        for follower in self.followers.values():
            follower.wake.set()

    def _forget(self) -> None:
        self.view.expire()
        self._wake_all()
        self._sweep()

    def _realities_changed(self, keys: set[str]) -> None:
        concerned = self.running.changed(keys) if self.followers else set[str]()
        for follower in self.followers.values() if concerned else ():
            if not follower.sightings.owners.isdisjoint(concerned):
                follower.wake.set()

    def _farms_changed(self, _: set[str]) -> None:
        self._sweep()
        self._wake(FARMS)

    def _wake(self, service: str) -> None:
        if (follower := self.followers.get(service)) is not None:
            follower.wake.set()

    def _agents_changed(self, keys: set[str]) -> None:
        self._wake(AGENTS)
        nodes = {self._context.keys.last_part(key) for key in keys} if self.followers else set[str]()
        for follower in self.followers.values():
            if not follower.sightings.nodes.isdisjoint(nodes):
                follower.wake.set()

    def _differ(self, services: set[str]) -> None:
        """Entries are others than they were: their workers look, and the one of leftovers."""
        for service in services & self.followers.keys():
            self.followers[service].wake.set()
        if drifted := services & self.view.settled:
            log.warning("catalog.drift", services=len(drifted), first=min(drifted))
            self._context.recorder.count(DRIFT, len(drifted))
        self._sweep()
