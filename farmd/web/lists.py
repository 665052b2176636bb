"""The lists of the page: all items of one family as people see them, kept in memory while somebody looks.

Records come from the farm's caches, statuses and holders are followed beside them. A line is made again only
when something of its item changed, so that ten thousand items cost a request no more than their sorting.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

from farmd import kinds
from farmd.commands.mutation import Call
from farmd.farm.farm import Farm
from farmd.runtime import tasks
from farmd.runtime.wake import Wake
from farmd.tables.model import Described, Table
from store import codec
from store.cache import PAUSE_AN_ENTRY
from store.consul.client import ConsulClient
from store.entry import Page, RawEntry
from store.errors import RecordInvalid
from store.families import FAMILIES
from store.locks import Holder
from store.ports import Clock, Rng
from store.watch import follow

# What the page follows in the store while somebody looks, beside what the farm's caches hold.
#
# A prefix is followed by one parked query, and only entries that changed are decoded, in slices. Half a
# minute after the last look the query ends: while nobody looks the page costs nothing.

T = TypeVar("T")

LINGER_SECONDS = 30.0
PAUSE_SECONDS = 0.5
SLICE = 500


class Followed(Generic[T]):
    """The values below one prefix by their keys; what does not decode is left out, and the doctor tells it.

    ``changed`` gets the keys that were changed, added or removed.
    """

    def __init__(
        self,
        client: ConsulClient,
        prefix: str,
        decode: Callable[[RawEntry], T | None],
        clock: Clock,
        rng: Rng,
        changed: Callable[[set[str]], None],
    ) -> None:
        self._client = client
        self._prefix = prefix
        self._decode = decode
        self._clock = clock
        self._rng = rng
        self._changed = changed
        self._indexes: dict[str, int] = {}
        self.values: dict[str, T] = {}
        self.ready = asyncio.Event()

    async def run(self) -> None:
        """Follow until cancelled."""

        async def query(index: int, wait: float) -> Page[RawEntry]:
            return await self._client.list(self._prefix, index=index, wait=wait)

        pages = follow(query, name=self._prefix, clock=self._clock, rng=self._rng, pause=PAUSE_SECONDS)
        try:
            async for page in pages:
                await self._accept(page)
                await self._clock.sleep(len(page.items) * PAUSE_AN_ENTRY)
        finally:
            self.ready.clear()

    async def _accept(self, page: Page[RawEntry]) -> None:
        news = [raw for raw in page.items if self._indexes.get(raw.key) != raw.modify_index]
        changed = self._indexes.keys() - {raw.key for raw in page.items}
        for key in changed:
            del self._indexes[key]
            self.values.pop(key, None)
        for start in range(0, len(news), SLICE):
            await self._clock.sleep(0)
            for raw in news[start : start + SLICE]:
                self._see(raw)
        self._changed(changed | {raw.key for raw in news})
        self.ready.set()

    def _see(self, raw: RawEntry) -> None:
        self._indexes[raw.key] = raw.modify_index
        try:
            value = self._decode(raw)
        except RecordInvalid:
            value = None
        if value is None:
            self.values.pop(raw.key, None)
        else:
            self.values[raw.key] = value


class WhileLooked:
    """Runs something from the first look until ``LINGER_SECONDS`` after the last one."""

    def __init__(self, run: Callable[[], Iterator[asyncio.Task[None]]], clock: Clock) -> None:
        self._run = run
        self._clock = clock
        self._looking = 0
        self._last = 0.0
        self._task: asyncio.Task[None] | None = None

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Somebody looks for the length of a ``with`` block."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._keep(), name="web-following")
        self._looking += 1
        try:
            yield
        finally:
            self._looking -= 1
            self._last = self._clock.mono()

    async def close(self) -> None:
        """End at once."""
        if self._task is not None:
            await tasks.end(self._task)

    async def _keep(self) -> None:
        await self._once()
        while self._looking:  # a look may begin while the tasks of the last one end
            await self._once()

    async def _once(self) -> None:
        running = list(self._run())
        self._last = self._clock.mono()
        try:
            while self._looking or self._clock.mono() - self._last < LINGER_SECONDS:
                await self._clock.sleep(LINGER_SECONDS / 3)
        finally:
            await tasks.end(*running)


FIRST_SECONDS = 10.0
MOST_NOTED = 100_000


class ListLine(NamedTuple):
    """One item of a list; ``text`` is what a search looks through, in lower case."""

    name: str
    state: str
    text: str
    row: Any


class Shape(NamedTuple):
    """What JSON has of an item: the fields of the type ``base``, and ``more`` with their types."""

    base: Any
    more: Mapping[str, Any] = MappingProxyType({})


class Bell:
    """A version that only grows, and who wants to be woken when it does."""

    def __init__(self, first: int) -> None:
        self.version = first
        self._listening: set[Wake] = set()
        self._telling: list[Callable[[], None]] = []

    def ring(self) -> None:
        """Something changed."""
        self.version += 1
        for tell in self._telling:
            tell()
        for wake in self._listening:
            wake.set()

    def tell(self, callback: Callable[[], None]) -> None:
        """Call somebody at each ring."""
        self._telling.append(callback)

    @contextmanager
    def listening(self, wake: Wake) -> Iterator[None]:
        """Wake somebody at each ring for the length of a ``with`` block."""
        self._listening.add(wake)
        try:
            yield
        finally:
            self._listening.discard(wake)


class Source(ABC):
    """Something that is followed while somebody looks, with a bell that rings when it changed."""

    def __init__(self, farm: Farm) -> None:
        self.farm = farm
        self.bell = Bell(int(farm.clock.now() * 1000))
        self._while = WhileLooked(self._run, farm.clock)

    @abstractmethod
    def _run(self) -> Iterator[asyncio.Task[None]]:
        """Tasks that follow it."""

    def version_of(self, _: str) -> int:
        """The version at which an item of it changed last."""
        return self.bell.version

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Follow it for the length of a ``with`` block, and a while longer."""
        with self._while.looking():
            yield

    async def close(self) -> None:
        """Follow nothing any more."""
        await self._while.close()


class ItemList(Source):
    """All items of one family. A list of its own makes its lines in ``made`` and its table in ``table``.

    Attributes:
        path: the word in addresses, such as ``controllers``.
        one, many: what people call an item, and several.
        first: the command with which people make one where there is none.
        states: whether items have a state to choose by.
    """

    states = True

    def __init__(self, farm: Farm, family: str, one: str, many: str) -> None:
        super().__init__(farm)
        self.family = family
        self.one, self.many, self.path = one, many, many.replace(" ", "")
        self.first = kinds.first(family)
        self._changed_at: dict[str, int] = {}
        self._lines: tuple[ListLine, ...] = ()
        self._made_at = 0
        self._followed: list[Followed[Any]] = []
        self._needs: list[ItemList] = []

    # -- what a list of its own says ------------------------------------------------------------
    @abstractmethod
    def made(self) -> Sequence[ListLine]:
        """All lines as they are now, in any order."""

    @abstractmethod
    def table(self, rows: Sequence[Any]) -> Table:
        """The table of the rows that are shown."""

    @abstractmethod
    def shape(self) -> Shape:
        """What ``table`` tells of an item as plain data."""

    @abstractmethod
    async def described(self, call: Call, name: str) -> Described:
        """One item by its name, or its id.

        Raises:
            NotFound: there is none.
        """

    @property
    def explains(self) -> bool:
        """Whether there is anything to explain of the items."""
        return False

    async def explained(self, call: Call, row: Any) -> list[tuple[str, Table]]:
        """Why an item's pods are where they are, or why nodes get one more, by tables with titles."""
        raise NotImplementedError

    # -- for requests ---------------------------------------------------------------------------
    def lines(self) -> tuple[ListLine, ...]:
        """All lines by name."""
        if self._made_at != self.bell.version:
            self._lines = tuple(sorted(self.made(), key=lambda line: line.name))
            self._made_at = self.bell.version
        return self._lines

    def version_of(self, item: str) -> int:
        """The version at which an item changed last; 0: none of those that this list saw."""
        return self._changed_at.get(item, 0)

    @contextmanager
    def looking(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(super().looking())
            for needed in self._needs:
                stack.enter_context(needed.looking())
            yield

    async def ready(self) -> None:
        """Return once all was read that the list is made of.

        Raises:
            TimeoutError: the store does not answer.
        """
        async with asyncio.timeout(FIRST_SECONDS):
            for each in self._followed:
                await each.ready.wait()
            for needed in self._needs:
                await needed.ready()

    # -- what the list is made of ---------------------------------------------------------------
    def subscribe(self, *families: str) -> None:
        """Be told of changes in the farm's copies of these families."""
        for family in families:
            self.farm.caches.tree(FAMILIES[family]).subscribe(self.changed)

    def follow(self, prefix: str, decode: Callable[[RawEntry], Any | None]) -> Followed[Any]:
        """Follow a prefix besides, while somebody looks."""
        farm = self.farm
        found = Followed(farm.client, prefix, decode, farm.clock, farm.rng, self.changed)
        self._followed.append(found)
        return found

    def need(self, *others: ItemList) -> None:
        """Be made of the lines of other lists, too."""
        self._needs += others

    def statuses(self) -> Followed[Any]:
        """The statuses of the family's items."""
        kind = FAMILIES[self.family].status
        return self.follow(
            self.farm.keys.status(self.family, ""), lambda raw: codec.decode(kind, raw.decoded(), raw.key)
        )

    def holders(self) -> Followed[str]:
        """The farms that hold the family's items."""
        keys = self.farm.keys

        def holder(raw: RawEntry) -> str | None:
            return None if keys.lock_parts(raw.key)[2] else Holder.parse(raw.decoded()).id

        return self.follow(keys.lock(self.family, ""), holder)

    def changed(self, keys: set[str]) -> None:
        """Something of these items changed."""
        if not keys:
            return
        self.bell.ring()
        version = self.bell.version
        if len(self._changed_at) > MOST_NOTED:  # also of items that are gone; pages ask once too often then
            self._changed_at.clear()
        for key in keys:
            self._changed_at[self.farm.keys.last_part(key)] = version

    def _run(self) -> Iterator[asyncio.Task[None]]:
        for each in self._followed:
            yield asyncio.create_task(each.run(), name=f"web-{self.path}")


def text_of(record: Any, *more: str) -> str:
    """What a search looks through of a record."""
    labels = getattr(record, "labels", {})
    words = [getattr(record, "name", ""), getattr(record, "id", ""), getattr(record, "manifest", "")]
    words += [f"{key}={value}" for key, value in labels.items()]
    return " ".join((*words, *more)).lower()
