"""The endpoints of services, for routers: kept while somebody asks, and told when they change.

One task a service that is asked for follows the pods of its owners in the farm's caches, for all who wait.
Half a minute after the last question it ends. What must never break: doubt takes no endpoint away. While an
answer of the store proves nothing, the last endpoints stay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import structlog

from farmd.cache.caches import Caches
from farmd.cache.fleet import FleetIndex
from farmd.pods.state import PodState
from farmd.runtime import tasks
from farmd.runtime.errors import FarmdError
from farmd.runtime.wake import Wake, earliest, wait
from farmd.services import endpoints
from farmd.services.endpoints import Endpoint, Sighting
from store import codec
from store.cache import PrefixCache
from store.consul.client import ConsulClient
from store.entry import Stored
from store.errors import NotFound, RecordInvalid, StoreError
from store.families import FAMILIES, SERVICES, owns_pods
from store.keys import Keys
from store.named import Owner
from store.pods import Place, Pod
from store.ports import Clock
from store.reality import Glance, Intent, Reality
from store.services import NOUN, Service

# What a farm sees of the pods of a service: what their agents say, as far as no newer intent is known.
#
# The farm learns of other farms' pods and intents seconds late, but of what agents say at once. So a pod is
# known by its reality, which names its owner and the index of the intent that the agent acted on (R22); an
# intent that the farm knows, or knows to be gone, counts where it is newer. The caches keep no ports, which
# only routing needs: these are read once for each start of a pod.

READ_AT_ONCE = 16


class Doubt(FarmdError):
    """The store's answers prove nothing now."""

    code = "doubt"


class Running:
    """The running instances of each owner, from the agents' reports; empty until it is filled.

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


log = structlog.get_logger()

LINGER_SECONDS = 30.0
RETRY_SECONDS = 1.0
# A first answer takes a read of the services and of the pods' ports.
FIRST_SECONDS = 10.0
MOST_WAITING = 1000
# Who asks needs no token, and while the store proves nothing nobody can tell which names are none.
MOST_ASKED = 10_000
NOT_READ = "services: not read yet"


class TooManyWaiting(FarmdError):
    """So many wait already that this farm takes no more; another farm may."""

    code = "too_many_waiting"


class NotKnown(FarmdError):
    """This farm does not know the endpoints now; the message says why."""

    code = "not_known"


@dataclass(frozen=True, slots=True)
class EndpointsAnswer:
    """The endpoints of a service; ``index`` is equal for equal endpoints."""

    service: Service
    endpoints: tuple[Endpoint, ...]
    index: int


class Board:
    """Answers for the endpoints of services (``close`` ends its tasks)."""

    def __init__(
        self, client: ConsulClient, keys: Keys, caches: Caches, fleet: FleetIndex, clock: Clock
    ) -> None:
        self._client = client
        self._keys = keys
        self._caches = caches
        self._fleet = fleet
        self._clock = clock
        self._records = caches.tree(SERVICES)
        self._asked: dict[str, _Asked] = {}
        self._running = Running(caches, keys)
        self._waiting = 0
        self._closed = False
        # Caches have no way to unsubscribe; while nobody asks nothing is done.
        self._records.subscribe(lambda _: self._wake())
        caches.reality.subscribe(self._realities_changed)
        caches.agents.subscribe(self._agents_changed)

    async def answer(self, name: str, index: int, seconds: float) -> EndpointsAnswer:
        """The endpoints of a service, once their index is another one, or after so many seconds.

        Raises:
            NotFound: there is no such service.
            TooManyWaiting: as many requests or names as this farm allows wait already.
            NotKnown: the store gave no answer that proves anything yet.
        """
        if self._closed:
            raise NotKnown("this farm stops")
        if self._waiting >= MOST_WAITING:
            raise TooManyWaiting(
                f"{MOST_WAITING} requests are already waiting here; ask another farm, or try again later"
            )
        if name not in self._asked and len(self._asked) >= MOST_ASKED:
            raise TooManyWaiting(
                f"{MOST_ASKED} names are already watched here; ask another farm, or try again later"
            )
        asked = self._asked.get(name) or self._ask(name)
        self._waiting += 1
        try:
            return await asked.answer(index, seconds)
        finally:
            self._waiting -= 1

    async def close(self) -> None:
        """Answer all who wait, and end."""
        self._closed = True
        await tasks.end(*(asked.task for asked in self._asked.values()))

    def _ask(self, name: str) -> _Asked:
        if not self._asked:
            self._running.fill()
        sightings = Sightings(self._client, self._keys, self._caches, self._fleet, self._running, self._clock)
        asked = self._asked[name] = _Asked(name, self._records, sightings, self._clock, self._forget)
        return asked

    def _wake(self) -> None:
        for asked in self._asked.values():
            asked.wake.set()

    def _realities_changed(self, keys: set[str]) -> None:
        if not self._asked:
            return
        concerned = self._running.changed(keys)
        for asked in self._asked.values():
            if asked.sightings.owners & concerned:
                asked.wake.set()

    def _agents_changed(self, keys: set[str]) -> None:
        nodes = {self._keys.last_part(key) for key in keys} if self._asked else set[str]()
        for asked in self._asked.values():
            if not nodes.isdisjoint(asked.sightings.nodes):
                asked.wake.set()

    def _forget(self, name: str) -> None:
        """Stop following a service that no client asks for any more."""
        del self._asked[name]
        if not self._asked:
            self._running.clear()


class _Asked:
    """One service that somebody asks for."""

    def __init__(
        self,
        name: str,
        records: PrefixCache[Service],
        sightings: Sightings,
        clock: Clock,
        forget: Callable[[str], None],
    ) -> None:
        self._name = name
        self._key = ""
        self._records = records
        self.sightings = sightings
        self._clock = clock
        self._forget = forget
        self._answer: EndpointsAnswer | None = None
        self._why = NOT_READ
        self._missing = False
        self._over = False
        self._changed = asyncio.Event()
        self._waiting = 0
        self._last = clock.mono()
        self.wake = Wake()
        self.task = asyncio.create_task(self._run(), name=f"service-{name}")

    async def answer(self, index: int, seconds: float) -> EndpointsAnswer:
        """See ``Board.answer``."""
        began = self._clock.mono()
        self._waiting += 1
        try:
            while True:
                if self._missing:
                    raise NotFound(f"{NOUN} {self._name!r} does not exist", kind=SERVICES.name, id=self._name)
                left = began + (seconds if self._answer else max(seconds, FIRST_SECONDS)) - self._clock.mono()
                if self._answer is not None and (self._answer.index != index or left <= 0 or self._over):
                    return self._answer
                if left <= 0 or self._over:
                    raise NotKnown(self._why)
                await wait(self._changed, self._clock, left)
        finally:
            self._waiting -= 1
            self._last = self._clock.mono()

    async def _run(self) -> None:
        try:
            while not self._missing and not self._idle():
                self.wake.clear()
                if self._records.ready.is_set():
                    await wait(self.wake, self._clock, earliest(await self._look(), LINGER_SECONDS))
                else:
                    error = self._records.error
                    self._why = self._records.doubt or (error.message if error is not None else NOT_READ)
                    await wait(self._records.ready, self._clock, RETRY_SECONDS)
        except Exception:  # the boundary of the loop: the next question begins anew
            log.exception("services.failed", service=self._name)
        finally:
            self._over = True
            self._tell()
            self.sightings.close()
            self._forget(self._name)

    def _idle(self) -> bool:
        return not self._waiting and self._clock.mono() - self._last >= LINGER_SECONDS

    async def _look(self) -> float | None:
        """Look at the pods once; seconds until the next look is due."""
        try:
            service = self._service()
            if service is None:
                self._missing = True
                self._tell()
                return 0.0
            seen, after = await self.sightings.look(service, self.wake)
        except (Doubt, StoreError) as error:
            self._why = error.message
            log.debug("services.doubt", service=self._name, reason=error.message)
            return RETRY_SECONDS
        before = self._answer.endpoints if self._answer is not None else ()
        found = endpoints.serving(seen, before)
        if self._answer is None or (service, found) != (self._answer.service, self._answer.endpoints):
            self._answer = EndpointsAnswer(service, found, endpoints.index(found))
            self._tell()
        return after

    def _service(self) -> Service | None:
        """The record of that name; it is searched for only where it is not under the key of before.

        Raises:
            Doubt: its absence is not proven.
        """
        found = self._records.get(self._key)
        if found is None or found.record.name != self._name:
            named = (each for each in self._records.entries.values() if each.record.name == self._name)
            found = next(named, None)
        if found is not None:
            self._key = found.key
            return found.record
        if doubt := self._records.doubt:
            raise Doubt(doubt)
        if self._records.broken:
            raise Doubt(next(iter(self._records.broken.values())).message)
        return None

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
