"""What a farm sees of the pods of a service: what their agents say, as far as no newer intent is known.

The farm learns of other farms' pods and intents seconds late, but of what agents say at once. So a pod is
known by its reality, which names its owner and the index of the intent that the agent acted on (R22); an
intent that the farm knows, or knows to be gone, counts where it is newer. The caches keep no ports, which
only routing needs: these are read once for each start of a pod.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from farmd.cache.caches import Caches
from farmd.cache.fleet import FleetIndex
from farmd.pods.state import PodState
from farmd.runtime.errors import FarmdError
from farmd.runtime.wake import Wake, earliest
from farmd.services.endpoints import Endpoint, Sighting
from store import codec
from store.consul.client import ConsulClient
from store.entry import Stored
from store.errors import RecordInvalid
from store.families import FAMILIES, owns_pods
from store.keys import Keys
from store.named import Owner
from store.pods import Place, Pod
from store.ports import Clock
from store.reality import Glance, Intent, Reality
from store.services import Service

READ_AT_ONCE = 16


class Doubt(FarmdError):
    """The store's answers prove nothing now."""

    code = "doubt"


class Running:
    """Which instances run for which owner, as agents say; empty until it is filled.

    Of a reality that does not decode, what it said before stays (R22).
    """

    def __init__(self, caches: Caches, keys: Keys) -> None:
        self._reality = caches.reality
        self._keys = keys
        self._said: dict[str, Glance] = {}
        self._of: dict[str, set[str]] = {}

    def fill(self) -> None:
        """Begin to know."""
        self.changed(self._reality.entries)

    def clear(self) -> None:
        """Know nothing any more."""
        self._said.clear()
        self._of.clear()

    def changed(self, keys: Iterable[str]) -> set[str]:
        """Take in the realities that changed; the owners that this concerns."""
        found = set[str]()
        for key in set(keys).difference(self._reality.broken):
            before, stored = self._said.pop(key, None), self._reality.get(key)
            if before is not None:
                self._of[before.owner].discard(key)
                found.add(before.owner)
            if stored is not None:
                self._said[key] = stored.record
                self._of.setdefault(stored.record.owner, set()).add(key)
                found.add(stored.record.owner)
        return found

    def of(self, owner: str) -> dict[Place, Glance]:
        """What runs for an owner."""
        return {
            self._keys.reality_parts(key): self._said[key]
            for key in self._of.get(owner, ())
            if self._reality.holds(key)
        }


class Sightings:
    """The pods of one service's owners; ``close`` stops hearing of them."""

    def __init__(
        self,
        client: ConsulClient,
        keys: Keys,
        caches: Caches,
        fleet: FleetIndex,
        running: Running,
        clock: Clock,
    ) -> None:
        self._client = client
        self._keys = keys
        self._caches = caches
        self._fleet = fleet
        self._running = running
        self._clock = clock
        self._hosts: dict[str, str] = {}
        self._ports: dict[Place, tuple[float, dict[str, int]]] = {}
        self.owners: set[str] = set()
        """The ids of the owners whose pods it looks at."""
        self.nodes: frozenset[str] = frozenset()
        """The nodes of these pods."""

    async def look(self, service: Service, wake: Wake) -> tuple[list[Sighting], float | None]:
        """All pods of a service's owners, and seconds until time alone changes something.

        ``wake`` is set when an intent or the node of one of the pods changes.

        Raises:
            Doubt: the absence of something is not proven. StoreError: a port could not be read.
        """
        found = self._owners(service)
        self._follow({owner.id for owner in found.values()}, wake)
        seen = {
            (ref, place): self._state(owner, place, glance)
            for ref, owner in found.items()
            for place, glance in self._running.of(owner.id).items()
        }
        self.nodes = frozenset(place[0] for _, place in seen)
        settles = [
            state.settles_in for state in seen.values() if state.healthy and not self._available(state)
        ]
        serve = {place: s for (_, place), s in seen.items() if self._available(s) or s.leaving}
        await self._read_ports(serve)
        return [self._sighting(service, *each, state) for each, state in seen.items()], earliest(*settles)

    def close(self) -> None:
        """Hear of nothing any more."""
        self._follow(set(), Wake())

    def _owners(self, service: Service) -> dict[str, Owner]:
        """The owners that exist, as ``active`` names them; the caches must prove what they lack."""
        caches = self._caches
        refs = [ref.partition("/") for ref in service.active]
        trees = {family: caches.tree(FAMILIES[family]) for family, _, _ in refs if owns_pods(family)}
        for tree in (*trees.values(), caches.intent, caches.reality, caches.agents, caches.work):
            if tree.doubt or not tree.ready.is_set():
                raise Doubt(tree.doubt or f"{tree.family}: not read yet")
        found = dict[str, Owner]()
        for family, _, owner in refs:
            key = self._keys.record(family, owner)
            if family in trees and key in trees[family].broken:
                raise Doubt(trees[family].broken[key].message)
            if family in trees and (stored := trees[family].get(key)) is not None:
                found[f"{family}/{owner}"] = stored.record
        return found

    def _follow(self, owners: set[str], wake: Wake) -> None:
        follower = f"services/{id(self)}"
        for owner in self.owners - owners:
            self._fleet.unfollow(owner, follower)
        for owner in owners - self.owners:
            self._fleet.follow(owner, follower, wake)
        self.owners = owners

    def _state(self, owner: Owner, place: Place, glance: Glance) -> PodState:
        """A pod by what its agent says; it counts for the intent that the agent acted on."""
        node, manifest = place[0], glance.manifest
        known, key = self._fleet.intent(place), self._keys.intent(*place)
        intents, intent = self._caches.intent, known
        if known is None and (key in intents.broken or not intents.knows(key, glance.intent)):
            intent = Stored(key, Intent(manifest, owner.id), glance.intent, b"")
        return PodState(
            Stored(key, Pod(manifest), glance.intent, b""),
            intent,
            glance,
            lost=self._fleet.lost_since(node) or None,
            absent=not self._fleet.present(node),
            settles_in=glance.seen + owner.min_healthy_time - self._clock.mono(),
        )

    def _available(self, state: PodState) -> bool:
        """Whether a pod is available; for how long it was healthy before the first look nobody knows."""
        seen = getattr(state.reality, "seen", 0.0)
        return state.available or (state.healthy and seen <= self._caches.reality.whole_since)

    async def _read_ports(self, pods: Mapping[Place, PodState]) -> None:
        """Read the ports of pods that started since they were read, a few at a time."""
        self._ports = {place: self._ports[place] for place in pods if place in self._ports}
        wanted = [place for place, state in pods.items() if self._known(place, state) is None]
        for first in range(0, len(wanted), READ_AT_ONCE):
            some = wanted[first : first + READ_AT_ONCE]
            entries = await asyncio.gather(*(self._client.read(self._keys.reality(*place)) for place in some))
            for place, entry in zip(some, entries, strict=True):
                if entry is None:
                    continue
                try:
                    said = codec.decode(Reality, entry.value, entry.key)
                except RecordInvalid:
                    continue  # its agent writes it again
                self._ports[place] = (said.started, said.ports)

    def _known(self, place: Place, state: PodState) -> dict[str, int] | None:
        """The ports of this very start; None: not read."""
        started, ports = self._ports.get(place, (0.0, {}))
        return ports if state.reality is not None and started == state.reality.started else None

    def _sighting(self, service: Service, ref: str, place: Place, state: PodState) -> Sighting:
        if known := self._fleet.addresses.host(place[0]):
            self._hosts[place[0]] = known
        port = (self._known(place, state) or {}).get(service.port, 0)
        endpoint = Endpoint(*place, ref, self._hosts.get(place[0], ""), port)
        running = state.reality.manifest if state.reality is not None else ""
        return Sighting(endpoint, self._available(state), state.unknown, state.leaving, running)
