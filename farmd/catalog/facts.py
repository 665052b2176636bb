"""The facts of the kind ``catalog``: what a service should have in the catalogue, and what stands there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import structlog
from msgspec.structs import replace

from farmd.cache.catalog import View
from farmd.runtime.wake import Wake
from farmd.services.board import Running, Sightings
from farmd.work.context import Context
from farmd.work.model import Blocked
from store.cache import PrefixCache
from store.catalog import AGENTS, ALL, FARMS, MEMBERS, REGISTERED, Change, Node, Standing, wish
from store.entry import Stored
from store.families import FAMILIES, SERVICES
from store.services import Service

# The values of the kind: what a worker sees of a service, and what it wants to change in the catalogue.


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


# What the workers of one farm share: records of services, pods that run, and the view of the catalogue.
#
# It wakes the workers that a change concerns. While no service asks for the catalogue it follows nothing.

log = structlog.get_logger()
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
