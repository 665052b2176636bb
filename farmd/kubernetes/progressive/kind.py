"""Progressive rollouts of Knative Services as a kind of work: items are the services' uids, shared by locks.

Without Knative the kind is idle: it looks now and then whether Knative is there, and watches nothing.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from farmd.kubernetes.base import KubernetesKind
from farmd.kubernetes.events import Events
from farmd.kubernetes.informer import Informer
from farmd.kubernetes.progressive.ground import Ground
from farmd.kubernetes.progressive.items import ServiceItems
from farmd.kubernetes.progressive.objects import SERVICES
from farmd.kubernetes.progressive.watches import KnativeWatches
from farmd.kubernetes.progressive.worker import ProgressiveWorker, Shared
from farmd.kubernetes.settings import KubernetesSettings
from farmd.rollout.metrics import PHASES
from farmd.runtime.tasks import until_one_fails
from farmd.runtime.wake import Wake
from farmd.work.context import Context
from farmd.work.managing import Phases
from store.locks import Claim
from store.sessions import Session

KIND = "progressive"


class Progressive(KubernetesKind):
    """The kind ``progressive``."""

    name = KIND

    def __init__(self, context: Context) -> None:
        settings: KubernetesSettings = context.sections["kubernetes"]
        transport, clock = settings.transport, context.clock
        found = ServiceItems((settings.contact.feature,))
        ground = Ground(transport, settings.knative_namespace, clock)
        events = Events(transport, SERVICES, clock)
        phases = Phases(context.recorder, "farmd_rollouts", "phase", PHASES, target="ksvc")
        self.shared = Shared(transport, found, ground, events, phases, {})
        found.watches = [
            KnativeWatches(
                namespace,
                transport,
                self.validity,
                self._changed,
                clock=clock,
                rng=context.rng,
            )
            for namespace in settings.namespaces or ("",)
        ]
        super().__init__(context)

    @property
    def informers(self) -> Sequence[Informer[Any]]:
        """Those of all namespaces."""
        return [informer for each in self.shared.found.watches for informer in each.informers]

    @property
    def wakes(self) -> Mapping[str, Wake]:
        """Those of the services' workers."""
        return self.shared.wakes

    def records(self) -> Any:
        """The services that the API server has."""
        return self.shared.found

    def worker(self, claim: Claim, session: Session, wake: Wake) -> ProgressiveWorker:
        """A worker for one service."""
        self.session = session
        return ProgressiveWorker(self, self.shared, claim, session, wake)

    def background(self) -> Sequence[Coroutine[Any, Any, None]]:
        """What looks for Knative, and the informers once it is there."""
        return (
            *super().background(),
            self.shared.ground.run(self._wake_all),
            self.shared.events.run(),
            self._watch(),
        )

    async def _watch(self) -> None:
        await self.shared.ground.found.wait()
        await until_one_fails([work for watches in self.shared.found.watches for work in watches.work()])

    def _changed(self, namespace: str, name: str) -> None:
        """Something of a service changed: look which items there are, and wake their workers."""
        found = self.shared.found
        found.look(namespace, name)
        for uid in found.of(namespace, name):
            if (wake := self.shared.wakes.get(uid)) is not None:
                wake.set()

    def _wake_all(self) -> None:
        for wake in self.shared.wakes.values():
            wake.set()
