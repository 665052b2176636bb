"""The base of kinds of work whose items are objects in a Kubernetes cluster.

The farm's feature for the cluster is there while the cluster answers, so items go to farms that reach it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from farmd.kubernetes.evidence import evidence
from farmd.kubernetes.informer import Informer
from farmd.kubernetes.settings import KubernetesSettings
from farmd.runtime.wake import Wake
from farmd.work.context import Context
from farmd.work.kind import Kind
from store.errors import SessionSuspended
from store.ports import Recorder
from store.sessions import Session

SWEEP_SECONDS = 600.0


class KubernetesKind(Kind):
    """A kind in one cluster; ``session`` is that of its last claim."""

    def __init__(self, context: Context) -> None:
        settings: KubernetesSettings = context.sections["kubernetes"]
        self.contact = settings.contact
        self.session: Session | None = None
        super().__init__(context)
        if self.name in context.guards:
            self.guard.evidence += evidence(settings.name, self.informers, context.clock)
            self.guard.evidence.append(self.contact.stranger)
        self.contact.informers += self.informers

    @property
    @abstractmethod
    def informers(self) -> Sequence[Informer[Any]]:
        """All that it watches in the cluster."""

    @property
    @abstractmethod
    def wakes(self) -> Mapping[str, Wake]:
        """The wakes of its workers, by item."""

    async def barrier(self, items: Sequence[str]) -> None:
        """Read the last statuses. What is planned from may lag: a claim's first write is conditional on the
        very version of the object (R15, R16).
        """
        await self.recollection.read(items)

    def background(self) -> Sequence[Coroutine[Any, Any, None]]:
        """The contact with the cluster, and what wakes each worker now and then."""
        return (*super().background(), self._sweep(), self.contact.run(self.context))

    def publish(self, recorder: Recorder) -> None:
        """Write what a scrape needs of the cluster, too."""
        super().publish(recorder)
        self.contact.publish(recorder)

    def validity(self) -> float:
        """Seconds that a write may take (R16).

        Raises:
            SessionSuspended: nothing may be written now.
        """
        if self.session is None:
            raise SessionSuspended("no session yet")
        self.session.require()
        return self.session.remaining()

    async def _sweep(self) -> None:
        """Look at each item now and then, whatever events told."""
        while True:
            await self.context.clock.sleep(SWEEP_SECONDS * self.context.rng.uniform(0.9, 1.1))
            for wake in self.wakes.values():
                wake.set()
