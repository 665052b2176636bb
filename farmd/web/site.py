"""What all requests for the page share: its lists, and the listeners for changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from farmd.commands.mutation import Call
from farmd.config.sections import WebSection
from farmd.farm.farm import Farm
from farmd.kinds import KINDS
from farmd.runtime.wake import Wake
from farmd.services.board import Board
from farmd.web.access import Access
from farmd.web.audit import AuditBell
from farmd.web.hosts import Refusals
from farmd.web.item_lists import FarmList, NamedList, ServiceList
from farmd.web.lists import ItemList, Source
from farmd.web.usage import UsageSource
from store.families import NODES
from store.presence import host
from store.times import rfc3339

# Rings when an agent says something else of a pod, for pages that show the health of pods.


class PodBell(Source):
    """All pods; what it follows are the farm's own copies."""

    def __init__(self, farm: Farm) -> None:
        super().__init__(farm)
        farm.caches.reality.subscribe(lambda _: self.bell.ring())

    def _run(self) -> Iterator[asyncio.Task[None]]:
        yield from ()


# Addresses of processes that may be gone, for Prometheus: it alerts of targets that do not answer.


@dataclass(eq=False)
class Remembered:
    """Where processes were that cannot be asked any more: an address by name, and when it was seen last."""

    seen: dict[str, tuple[str, float]] = field(default_factory=dict)

    def addresses(self, present: Mapping[str, str], now: float) -> Mapping[str, tuple[str, float]]:
        """Those that are present, and those that were."""
        self.seen |= {name: (address, now) for name, address in present.items() if host(address)}
        return self.seen

    def forget(self, gone: Iterable[str]) -> None:
        """Drop what is no target any more."""
        for name in tuple(gone):
            del self.seen[name]


MOST_STREAMS = 200


@dataclass(frozen=True, slots=True)
class Topic:
    """What a page shows: lists as a whole, or one item of a list by its id."""

    lists: tuple[Source, ...]
    item: str = ""
    usage: Source | None = None

    @property
    def version(self) -> str:
        """A text that changes with what is shown; equal texts of two processes may mean different states."""
        used = f".{self.usage.bell.version}" if self.usage is not None else ""
        if self.item:
            return f"{self.lists[0].version_of(self.item)}{used}"
        return f"{sum(each.bell.version for each in self.lists)}{used}"

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Follow what is shown for the length of a ``with`` block."""
        with ExitStack() as stack:
            for each in self._sources():
                stack.enter_context(each.looking())
            yield

    @contextmanager
    def listening(self, wake: Wake) -> Iterator[None]:
        """Follow what the page shows, as ``looking``, and set ``wake`` when that may have changed."""
        with self.looking(), ExitStack() as stack:
            for each in self._sources():
                stack.enter_context(each.bell.listening(wake))
            yield

    def _sources(self) -> tuple[Source, ...]:
        return self.lists if self.usage is None else (*self.lists, self.usage)


class Site:
    """The page of one farm; ``board`` has the endpoints of services, once the farm has seen the store."""

    def __init__(self, farm: Farm, section: WebSection, board: Callable[[], Board | None]) -> None:
        self.farm = farm
        self.board = board
        self.farms_seen, self.agents_seen = Remembered(), Remembered()
        self.access = Access(section, farm.clock, Refusals(farm.recorder, farm.clock))
        self.by_family: dict[str, ItemList] = {}
        for kind in KINDS.values():
            if kind.asked:
                self.by_family[kind.family] = NamedList(farm, kind, self.by_family)
            elif kind.listed:
                self.by_family[kind.family] = kind.listed()(farm, kind)
        self.by_family["services"] = ServiceList(farm, self.by_family)
        self.by_family["farms"] = FarmList(farm)
        self.lists = {each.path: each for each in self.by_family.values()}
        self.audit, self.pods = AuditBell(farm), PodBell(farm)
        self.usage = UsageSource(farm, section)
        self.streams: set[Wake] = set()
        self.closed = False
        self.drawing = asyncio.Semaphore()
        """Held while a thread makes a page."""

    def call(self, person: str = "", reason: str = "") -> Call:
        """The means of a command, for the audit as that person's."""
        farm = self.farm
        actor = f"user/{person or 'nobody'}@{farm.settings.name}"
        return Call(farm.client, farm.keys, farm.clock, farm.ids, actor, reason)

    def silent(self) -> str:
        """Since when Consul has not answered this farm, so that all data are of then; empty: it answers."""
        since = self.farm.silent_since()
        return rfc3339(since) if since else ""

    def topic(self, path: str) -> Topic | None:
        """What a page of that address shows; None where nothing of it changes by itself."""
        _, found, item = (*path.split("/"), "", "")[:3]
        if path == "/audit":
            return Topic((self.audit,))
        if path == "/map":
            return Topic((self.by_family[NODES.name], self.pods))
        if path == "/":
            return Topic(tuple(self.lists.values()), usage=self.usage)
        usage = self.usage if item else None
        return Topic((self.lists[found],), item, usage) if found in self.lists else None

    def wake_streams(self) -> None:
        """Have all streams look whether they may go on."""
        for wake in self.streams:
            wake.set()

    async def close(self) -> None:
        """End all streams, and follow nothing any more."""
        self.closed = True
        self.wake_streams()
        for each in (*self.lists.values(), self.audit, self.pods, self.usage):
            await each.close()
