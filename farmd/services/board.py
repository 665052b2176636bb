"""The endpoints of services, for routers: kept while somebody asks, and told when they change.

One task a service that is asked for follows the pods of its owners in the farm's caches, for all who wait.
Half a minute after the last question it ends. What must never break: doubt takes no endpoint away. While an
answer of the store proves nothing, the last endpoints stay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from farmd.cache.caches import Caches
from farmd.cache.fleet import FleetIndex
from farmd.runtime import tasks
from farmd.runtime.errors import FarmdError
from farmd.runtime.wake import Wake, earliest, wait
from farmd.services import endpoints
from farmd.services.endpoints import Endpoint
from farmd.services.sightings import Doubt, Running, Sightings
from store.cache import PrefixCache
from store.consul.client import ConsulClient
from store.errors import NotFound, StoreError
from store.families import SERVICES
from store.keys import Keys
from store.ports import Clock
from store.services import NOUN, Service

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
    """This farm cannot tell the endpoints now; the message says why."""

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
            raise TooManyWaiting(f"{MOST_WAITING} requests wait here already, ask another farm or later")
        if name not in self._asked and len(self._asked) >= MOST_ASKED:
            raise TooManyWaiting(f"{MOST_ASKED} names are asked for here already, ask another farm or later")
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
        """Nobody asks for a service any more."""
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
