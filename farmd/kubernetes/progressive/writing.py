"""What a plan writes to the API server for one service, under one claim.

Each request carries the version that was planned from, or a name that is fixed: what was read too late, or
sent by a former owner, is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from farmd.kubernetes.progressive import bodies, bounds
from farmd.kubernetes.progressive.model import (
    Drop,
    Reap,
    RevisionBounds,
    Snapshot,
    StageBounds,
    Traffic,
    Turn,
    Write,
)
from farmd.kubernetes.progressive.objects import (
    MANAGER,
    KnativeService,
    Orchestrator,
    StageAutoscaler,
    StageAutoscalerStatus,
)
from farmd.kubernetes.progressive.watches import KnativeWatches


@dataclass(frozen=True, slots=True)
class Writing:
    """Writes for an item; ``claim`` is the text that objects bear."""

    watches: KnativeWatches
    item: str
    claim: str

    async def turn(self, knative: Snapshot, turn: Turn) -> None:
        """Change the record, or make it."""
        watches = self.watches
        if knative.orchestrator is None:
            meta = knative.service.metadata
            body = bodies.new_orchestrator(knative, turn)
            await watches.orchestrators.objects.create(meta.namespace, body, self.item)
            return
        record = knative.record
        if turn.status is not None:
            body = bodies.status_patch(turn.status, self.claim)
            await self.patch(record, body, subresource="status")
            return
        if body := bodies.orchestrator_patch(knative, turn):
            await self.patch(record, body)

    async def write(self, knative: Snapshot, write: Write) -> None:
        """Carry out one write."""
        key, namespace = self.item, knative.service.metadata.namespace
        watches = self.watches
        match write:
            case Traffic():
                body = bodies.service_apply(knative, self.claim, write.entries)
                await self.apply(knative.service, body)
            case StageBounds():
                spa = knative.spas.get(write.revision)
                objects = watches.spas.objects
                if spa is None:
                    await objects.create(namespace, bodies.new_stage_autoscaler(knative, write), key)
                else:
                    version = spa.metadata.resource_version
                    body = bodies.stage_autoscaler_patch(write)
                    await objects.patch(namespace, write.revision, body, version=version, key=key)
            case RevisionBounds():
                found = bounds.bearer(knative, write.revision)
                assert found is not None
                bearers = watches.revisions if knative.bounds_on_revisions else watches.autoscalers
                await bearers.objects.apply(
                    namespace,
                    write.revision,
                    bodies.bounds_apply(write),
                    manager=MANAGER,
                    force=True,
                    uid=found.metadata.uid,
                    version=found.metadata.resource_version,
                    key=key,
                )
            case Reap():
                pod = write.pod.metadata
                uid, version = pod.uid, pod.resource_version
                await watches.pods.objects.delete(
                    namespace, pod.name, uid=uid, version=version, at_once=True, key=key
                )
            case Drop():
                meta = knative.spas[write.revision].metadata
                uid, version = meta.uid, meta.resource_version
                await watches.spas.objects.delete(namespace, meta.name, uid=uid, version=version, key=key)

    async def patch(self, record: Orchestrator, body: bodies.Body, subresource: str = "") -> Orchestrator:
        """Patch the record if it is still the version that was read."""
        meta = record.metadata
        return await self.watches.orchestrators.objects.patch(
            meta.namespace,
            meta.name,
            body,
            version=meta.resource_version,
            subresource=subresource,
            key=self.item,
        )

    async def apply(self, service: KnativeService, body: bodies.Body) -> KnativeService:
        """Have farmd own these fields of the service, if that is still the version that was read."""
        meta = service.metadata
        return await self.watches.services.objects.apply(
            meta.namespace,
            meta.name,
            body,
            manager=MANAGER,
            force=True,
            uid=meta.uid,
            version=meta.resource_version,
            key=self.item,
        )

    async def mirror(self, spa: StageAutoscaler, status: StageAutoscalerStatus) -> None:
        """Write the status of a StagePodAutoscaler."""
        meta = spa.metadata
        await self.watches.spas.objects.patch(
            meta.namespace,
            meta.name,
            bodies.mirror_patch(status),
            version=meta.resource_version,
            subresource="status",
            key=self.item,
        )


def told_of(write: Write) -> dict[str, int | str | bool]:
    """A write as its audit record names it."""
    match write:
        case Traffic():
            return {"traffic": ",".join(f"{each.revision_name}={each.percent}" for each in write.entries)}
        case RevisionBounds() | StageBounds():
            kind = "bounds" if isinstance(write, RevisionBounds) else "stage"
            return {f"{kind}/{write.revision}": bounds.written(write.bounds)}
        case Reap():
            return {f"pod/{write.pod.metadata.name}": "deleted"}
        case Drop():
            return {f"stage/{write.revision}": "deleted"}
