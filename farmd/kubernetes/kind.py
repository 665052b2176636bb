"""Jobs in Kubernetes as a kind of work: items are the uids of custom resources that farms share by locks.

Runs of jobs that vanished while nobody watched them are found now and then, and deleted.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any

import structlog

from farmd.jobs.resources.kindfile import kinds
from farmd.jobs.resources.podgroups import flavours
from farmd.jobs.run_copy import Takeover, all_runs
from farmd.kubernetes.base import KubernetesKind
from farmd.kubernetes.informer import Informer
from farmd.kubernetes.install import documents
from farmd.kubernetes.items import JobItems, Known, Shared
from farmd.kubernetes.resources import CRDS
from farmd.kubernetes.settings import KubernetesSettings
from farmd.kubernetes.unit import Unit
from farmd.kubernetes.worker import KubeJobWorker
from farmd.runtime.wake import Wake
from farmd.work.context import Context
from store.errors import StoreError
from store.locks import Claim
from store.sessions import Session

log = structlog.get_logger()

KIND = "kubejobs"
COLLECT_SECONDS = 3600.0


class KubeJobs(KubernetesKind):
    """The kind ``kubejobs``."""

    name = KIND

    def __init__(self, context: Context) -> None:
        settings: KubernetesSettings = context.sections["kubernetes"]
        self.units = [
            Unit(
                data,
                namespace,
                settings.transport,
                self.validity,
                clock=context.clock,
                rng=context.rng,
                gang=flavours()[settings.gang] if settings.gang else None,
                init_image=settings.init_image,
            )
            for plural, data in kinds().items()
            if plural in settings.jobs
            for namespace in settings.namespaces or ("",)
        ]
        found = JobItems(self.units, (settings.contact.feature,))
        self.shared = Shared(settings.name, settings.transport, found)
        self.runs = Takeover(context)
        super().__init__(context)
        own = [each for each in documents(settings.jobs) if each["kind"] == CRDS.kind]
        self.contact.definitions |= {each["metadata"]["name"]: each for each in own}

    @property
    def informers(self) -> Sequence[Informer[Any]]:
        """The watches of all units."""
        return [informer for unit in self.units for informer in unit.informers]

    @property
    def wakes(self) -> dict[str, Wake]:
        """The wakers of the jobs' workers."""
        return self.shared.wakes

    def records(self) -> Any:
        """The jobs that the API server has."""
        return self.shared.found

    async def barrier(self, items: Sequence[str]) -> None:
        """Read the last statuses and the runs. What jobs are planned from besides may lag: a claim's first
        write is conditional on the very version of the job (R15, R16).
        """
        await super().barrier(items)
        await self.runs.read(items)

    def worker(self, claim: Claim, session: Session, wake: Wake) -> KubeJobWorker:
        """A worker for one job."""
        self.session = session
        return KubeJobWorker(self, self.shared, self.runs.take(claim.item), claim, session, wake)

    def background(self) -> Sequence[Coroutine[Any, Any, None]]:
        """The informers, and the queues of due jobs."""
        watching = [work for unit in self.units for work in unit.background()]
        return (
            *super().background(),
            *watching,
            *map(self._dispatch, self.units),
            self._collect(),
        )

    async def _dispatch(self, unit: Unit) -> None:
        """Wake the workers of the jobs that the queue names."""
        while True:
            async with unit.engine.work_queue.turn() as key:
                namespace, _, name = (key or "").partition("/")
                job = unit.jobs.get(namespace, name)
                wake = self.shared.wakes.get(job.metadata.uid) if job is not None else None
                if wake is not None:
                    wake.set()

    async def _collect(self) -> None:
        """Find runs of jobs that vanished while nobody watched them; whoever claims these deletes them."""
        while True:
            await self.context.clock.sleep(COLLECT_SECONDS * self.context.rng.uniform(0.9, 1.1))
            try:
                runs = await all_runs(self.context)
            except StoreError as error:
                log.debug("kubernetes.runs_not_read", code=error.code)
                continue
            for uid, stored in runs.items():
                if stored is not None and (where := self._where(stored.record.source)) is not None:
                    self.shared.found.leave(uid, where)

    def _where(self, source: str) -> Known | None:
        """Where the job of a run is; None: it is not for this farm to say whether it is there."""
        cluster, _, rest = source.partition("/")
        plural, _, path = rest.partition("/")
        namespace, _, name = path.partition("/")
        units = (unit for unit in self.units if unit.data.plural == plural)
        unit = next((unit for unit in units if unit.namespace in ("", namespace)), None)
        ours = unit is not None and cluster == self.shared.cluster and name
        return Known(unit, namespace, name) if ours and unit is not None else None
