"""The base of the readers of all kinds that own replicas (R15)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

from farmd.pods.state import PodState, observed
from farmd.work.named import NamedKind
from scheduler.model import PlacementRequest
from store.entry import Stored
from store.pods import Place

R = TypeVar("R")


class ReplicaReader(ABC, Generic[R]):
    """Reads for one owner under one claim; a kind defines its reading."""

    __slots__ = ("context", "guard", "item", "noun")

    def __init__(self, kind: NamedKind, item: str) -> None:
        self.item = item
        self.context = kind.context
        self.guard = kind.guard
        self.noun = kind.noun

    @abstractmethod
    async def read(self, stored: Stored[Any]) -> R:
        """The owner and its fleet; facts that are needed only sometimes are left to ``answer``."""

    @abstractmethod
    async def answer(self, reading: R, need: Any) -> R:
        """The reading with the fact that was asked for."""

    async def request(self, record: Any) -> PlacementRequest:
        """The request to the scheduler for pods of a record of this kind.

        Raises:
            NotFound: its manifest is gone.
        """
        assert self.noun.pods is not None
        return self.noun.pods.request(record, await self.context.manifests.of(record))

    def pods(self, record: Any) -> dict[Place, PodState]:
        """The owner's present pods."""
        mono = self.context.clock.mono()
        return observed(self.context.fleet, self.item, record.min_healthy_time, mono)

    def running(self, record: Any) -> str:
        """The processes that nodes still run of an owner that is being deleted and has no pods left, as
        text.
        """
        fleet = self.context.fleet
        return fleet.processes.told(self.item) if record.deleting and not fleet.pods(self.item) else ""
