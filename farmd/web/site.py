"""What all requests for the page share: its lists, and who listens to changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from farmd.farm.farm import Farm
from farmd.kinds import KINDS
from farmd.runtime.wake import Wake
from farmd.web.items import NamedList
from farmd.web.lists import ItemList


@dataclass(frozen=True, slots=True)
class Topic:
    """What a page shows: lists as a whole, or one item of a list by its id."""

    lists: tuple[ItemList, ...]
    item: str = ""

    @property
    def version(self) -> str:
        """Another one when something changed; equal versions of two processes may differ in what they saw."""
        if self.item:
            return str(self.lists[0].version_of(self.item))
        return str(sum(each.bell.version for each in self.lists))

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Follow what is shown for the length of a ``with`` block."""
        with ExitStack() as stack:
            for each in self.lists:
                stack.enter_context(each.looking())
            yield

    @contextmanager
    def listening(self, wake: Wake) -> Iterator[None]:
        """The same, and be woken when it may have changed."""
        with self.looking(), ExitStack() as stack:
            for each in self.lists:
                stack.enter_context(each.bell.listening(wake))
            yield


class Site:
    """The page of one farm."""

    def __init__(self, farm: Farm) -> None:
        self.farm = farm
        self.by_family: dict[str, ItemList] = {}
        for kind in KINDS.values():
            if kind.asked:
                path = kind.many.replace(" ", "")
                self.by_family[kind.family] = NamedList(farm, kind, path, self.by_family)
        self.lists = {each.path: each for each in self.by_family.values()}
        self.streams: set[Wake] = set()
        self.closed = False

    def topic(self, path: str) -> Topic | None:
        """What a page of that address shows; None where nothing of it changes by itself."""
        _, found, item = (*path.split("/"), "")[:3]
        if path == "/":
            return Topic(tuple(self.lists.values()))
        return Topic((self.lists[found],), item) if found in self.lists else None

    async def close(self) -> None:
        """End all streams, and follow nothing any more."""
        self.closed = True
        for wake in self.streams:
            wake.set()
        for each in self.lists.values():
            await each.close()
