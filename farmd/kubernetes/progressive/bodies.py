"""Bodies of what is written for a rollout: pure.

Fields of the record and of StagePodAutoscalers are named one by one, so that a patch erases no other hand's.
An apply names all fields that farmd owns of an object: one that it leaves out is deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from farmd.kubernetes.progressive import bounds, traffic
from farmd.kubernetes.progressive.model import Bounds, RevisionBounds, Snapshot, StageBounds, Turn
from farmd.kubernetes.progressive.objects import (
    CLAIM,
    FINAL,
    FINALIZER,
    MAX_SCALE,
    MIN_SCALE,
    ORCHESTRATORS,
    SERVICES,
    Meta,
    OrchestratorSpec,
    OrchestratorStatus,
    StageAutoscalerStatus,
    TrafficTarget,
)
from farmd.kubernetes.resources import Resource
from farmd.rollout.staging import REVISION_LABEL, SERVICE_LABEL

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
    """What a revision's autoscaler says, as the status of its StagePodAutoscaler."""
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
