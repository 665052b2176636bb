"""The writes of a plan to the API server for one service, under one claim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from farmd.kubernetes.knative import bounds, traffic
from farmd.kubernetes.knative.facts import (
    Bounds,
    Drop,
    Reap,
    RevisionBounds,
    Snapshot,
    StageBounds,
    Traffic,
    Turn,
    Write,
)
from farmd.kubernetes.knative.objects import (
    CLAIM,
    FINAL,
    FINALIZER,
    MANAGER,
    MAX_SCALE,
    MIN_SCALE,
    ORCHESTRATORS,
    SERVICES,
    KnativeService,
    Meta,
    Orchestrator,
    OrchestratorSpec,
    OrchestratorStatus,
    StageAutoscaler,
    StageAutoscalerStatus,
    TrafficTarget,
)
from farmd.kubernetes.knative.reader import KnativeWatches
from farmd.kubernetes.objects import Resource
from farmd.rollout.staging import REVISION_LABEL, SERVICE_LABEL

# Bodies of what is written for a rollout: pure.
#
# Fields of the record and of StagePodAutoscalers are named one by one, so that a patch erases no other
# hand's. An apply names all fields that farmd owns of an object: one that it leaves out is deleted.

Body = dict[str, Any]


def _owner(resource: Resource, meta: Meta) -> Body:
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "name": meta.name,
        "uid": meta.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def new_orchestrator(knative: Snapshot, turn: Turn) -> Body:
    """The record of a service (seed ``NewInitialFinalTargetRev``)."""
    meta = knative.service.metadata
    assert turn.spec is not None
    return {
        "metadata": {
            "name": meta.name,
            "namespace": meta.namespace,
            "labels": {SERVICE_LABEL: meta.name},
            "annotations": {key: text for key, text in turn.annotations.items() if text is not None},
            "finalizers": [FINALIZER],
            "ownerReferences": [_owner(SERVICES, meta)],
        },
        "spec": _spec(turn.spec),
    }


def orchestrator_patch(knative: Snapshot, turn: Turn) -> Body:
    """A change of the record: spec, annotations and finalizer in one patch."""
    meta = knative.record.metadata
    changed: Body = {"annotations": dict(turn.annotations)} if turn.annotations else {}
    held = FINALIZER in meta.finalizers
    if turn.finalizer and not held and not meta.terminating:
        changed["finalizers"] = [*meta.finalizers, FINALIZER]
    elif turn.finalizer is False and held:
        changed["finalizers"] = [each for each in meta.finalizers if each != FINALIZER]
    body: Body = {"metadata": changed} if changed else {}
    return body | ({"spec": _spec(turn.spec)} if turn.spec is not None else {})


def _spec(spec: OrchestratorSpec) -> Body:
    return {
        "initialRevisions": msgspec.to_builtins(spec.initial_revisions),
        "targetRevisions": msgspec.to_builtins(spec.target_revisions),
        "stageTargetRevisions": msgspec.to_builtins(spec.stage_target_revisions),
        "targetFinishTime": spec.target_finish_time,
        "rolloutStrategy": spec.rollout_strategy,
    }


def status_patch(status: OrchestratorStatus, claim: str) -> Body:
    """The record's status, with the claim of who writes it."""
    return {
        "status": {
            "stageRevisionStatus": msgspec.to_builtins(status.stage_revision_status),
            "conditions": msgspec.to_builtins(status.conditions),
            "observedGeneration": status.observed_generation,
            "annotations": {**status.annotations, CLAIM: claim},
        }
    }


def claim_patch(claim: str) -> Body:
    """The claim alone."""
    return {"status": {"annotations": {CLAIM: claim}}}


def new_stage_autoscaler(knative: Snapshot, write: StageBounds) -> Body:
    """A StagePodAutoscaler (seed ``CreateBaseStagePodAutoscaler``), with the final bounds."""
    record = knative.record.metadata
    return {
        "metadata": {
            "name": write.revision,
            "namespace": record.namespace,
            "labels": {REVISION_LABEL: write.revision, SERVICE_LABEL: record.name},
            "annotations": {FINAL: bounds.written(write.final)},
            "ownerReferences": [_owner(ORCHESTRATORS, record)],
        },
        "spec": _bounds(write.bounds),
    }


def stage_autoscaler_patch(write: StageBounds) -> Body:
    """Other bounds of a stage."""
    return {"metadata": {"annotations": {FINAL: bounds.written(write.final)}}, "spec": _bounds(write.bounds)}


def _bounds(found: Bounds) -> Body:
    return {"stageMinScale": found.least, "stageMaxScale": found.most}


def mirror_patch(status: StageAutoscalerStatus) -> Body:
    """The status of a revision's autoscaler, as that of its StagePodAutoscaler."""
    return {"status": msgspec.to_builtins(status)}


def bounds_apply(write: RevisionBounds) -> Body:
    """The bounds of a revision: all of them, or those that are left out would go."""
    named = {MIN_SCALE: write.bounds.least, MAX_SCALE: write.bounds.most}
    return {"metadata": {"annotations": {key: str(each) for key, each in named.items() if each is not None}}}


def service_apply(knative: Snapshot, claim: str, entries: Sequence[TrafficTarget] | None = None) -> Body:
    """The claim on a service, and its traffic where that is farmd's."""
    found: Body = {"metadata": {"annotations": {CLAIM: claim}}}
    if entries is None and traffic.ours(knative):
        entries = knative.service.spec.traffic
    if entries is not None:
        found["spec"] = {"traffic": msgspec.to_builtins(tuple(entries))}
    return found


# What a plan writes to the API server for one service, under one claim.
#
# Each request carries the version that was planned from, or a name that is fixed: what was read too late,
# or sent by a former owner, is refused.


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
            body = new_orchestrator(knative, turn)
            await watches.orchestrators.objects.create(meta.namespace, body, self.item)
            return
        record = knative.record
        if turn.status is not None:
            body = status_patch(turn.status, self.claim)
            await self.patch(record, body, subresource="status")
            return
        if body := orchestrator_patch(knative, turn):
            await self.patch(record, body)

    async def write(self, knative: Snapshot, write: Write) -> None:
        """Carry out one write."""
        key, namespace = self.item, knative.service.metadata.namespace
        watches = self.watches
        match write:
            case Traffic():
                body = service_apply(knative, self.claim, write.entries)
                await self.apply(knative.service, body)
            case StageBounds():
                spa = knative.spas.get(write.revision)
                objects = watches.spas.objects
                if spa is None:
                    await objects.create(namespace, new_stage_autoscaler(knative, write), key)
                else:
                    version = spa.metadata.resource_version
                    body = stage_autoscaler_patch(write)
                    await objects.patch(namespace, write.revision, body, version=version, key=key)
            case RevisionBounds():
                found = bounds.bearer(knative, write.revision)
                assert found is not None
                bearers = watches.revisions if knative.bounds_on_revisions else watches.autoscalers
                await bearers.objects.apply(
                    namespace,
                    write.revision,
                    bounds_apply(write),
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

    async def patch(self, record: Orchestrator, body: Body, subresource: str = "") -> Orchestrator:
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

    async def apply(self, service: KnativeService, body: Body) -> KnativeService:
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
            mirror_patch(status),
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
