"""The base of kinds of work whose items are objects in a Kubernetes cluster.

The farm's feature for the cluster is there while the cluster answers, so items go to farms that reach it.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

import structlog

from farmd.kubernetes.errors import KubernetesError
from farmd.kubernetes.evidence import evidence
from farmd.kubernetes.informer import Informer
from farmd.kubernetes.settings import KubernetesSettings
from farmd.kubernetes.transport import Request
from farmd.runtime.wake import Wake
from farmd.work.context import Context
from farmd.work.kind import Kind
from store.errors import CredentialInvalid, SessionSuspended
from store.sessions import Session

log = structlog.get_logger()

SWEEP_SECONDS = 600.0
REACH_SECONDS = 5.0
UNREACHED_SECONDS = 30.0


class KubernetesKind(Kind):
    """A kind in one cluster; ``session`` is that of its last claim."""

    def __init__(self, context: Context) -> None:
        self.settings: KubernetesSettings = context.sections["kubernetes"]
        self.transport = self.settings.transport
        self.session: Session | None = None
        super().__init__(context)
        if self.name in context.guards:
            self.guard.evidence += evidence(self.settings.name, self.informers, context.clock)

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
        """What keeps the feature, and wakes each worker now and then."""
        return (*super().background(), self._sweep(), self._reach())

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

    async def _reach(self) -> None:
        """Know the cluster's feature while it answers."""
        clock, features = self.context.clock, self.context.features
        reached = -math.inf
        while True:
            try:
                await self.transport.send(Request("GET", "/readyz"), REACH_SECONDS)
                reached = clock.mono()
            except (KubernetesError, CredentialInvalid) as error:
                log.debug("kubernetes.unreached", error=error.message)
            if clock.mono() - reached > UNREACHED_SECONDS:
                features.withdraw(self.settings.feature)
            else:
                features.add(self.settings.feature)
            await clock.sleep(REACH_SECONDS)
