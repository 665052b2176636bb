"""What the workers of one farm share: records of services, pods that run, and the view of the catalogue.

It wakes the workers that a change concerns. While no service asks for the catalogue it follows nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import structlog

from farmd.catalog.asked import asks
from farmd.catalog.view import View
from farmd.runtime.wake import Wake
from farmd.services.board import Running, Sightings
from farmd.work.context import Context
from store.cache import PrefixCache
from store.entry import Stored
from store.families import FAMILIES, SERVICES
from store.services import Service

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
        caches.on_forget(self._forget)

    def asked(self, service: str) -> Stored[Service] | None:
        """The record of a service that asks for the catalogue."""
        stored = self.tree.get(self._context.keys.record(SERVICES.name, service))
        return stored if stored is not None and asks(stored.record) else None

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

    def _agents_changed(self, keys: set[str]) -> None:
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
