"""Where apps' workers find the objects that lie in Kubernetes (``farmd.apps.protocols.Elsewhere``)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from farmd.kubernetes.apps.api import Api
from farmd.kubernetes.apps.applicator import Applicator
from farmd.kubernetes.apps.discovery import Discovery
from farmd.kubernetes.apps.watching import Watching
from farmd.kubernetes.settings import KubernetesSettings
from farmd.runtime.wake import Wake
from farmd.work.context import Context
from store.ports import Clock, Rng


class AppsCluster:
    """One cluster for all apps of a farm: they share what it serves and what is watched there."""

    def __init__(self, settings: KubernetesSettings, watching: Watching) -> None:
        self._transport, self._watching = settings.transport, watching
        self._discovery = Discovery(settings.transport)

    def __call__(self, context: Context, app: str, wake: Wake, validity: Callable[[], float]) -> Applicator:
        """The objects of one app; ``validity``: see ``Api``."""
        api = Api(self._transport, self._discovery, app, validity)
        self._watching.attach(app, wake)
        return Applicator(api, app, context.cluster, context.clock, self._watching)


@asynccontextmanager
async def opened(settings: KubernetesSettings, clock: Clock, rng: Rng) -> AsyncIterator[AppsCluster]:
    """A cluster whose watches end with the farm."""
    watching = Watching(settings.transport, settings.namespaces, clock, rng)
    try:
        yield AppsCluster(settings, watching)
    finally:
        await watching.close()
