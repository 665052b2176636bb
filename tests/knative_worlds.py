"""Knative Services at one moment, for pure tests: objects as the API server would show them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from farmd.kubernetes.knative.facts import Bounds
from farmd.kubernetes.knative.objects import (
    ENABLED,
    MANAGER,
    MAX_SCALE,
    MIN_SCALE,
    AutoscalerStatus,
    Conditions,
    Configuration,
    ConfigurationStatus,
    KnativeCondition,
    KnativeRoute,
    KnativeService,
    Meta,
    Orchestrator,
    OrchestratorSpec,
    OrchestratorStatus,
    PodAutoscaler,
    Revision,
    RouteStatus,
    ServiceSpec,
    StageAutoscaler,
    Template,
    TemplateMeta,
    TrafficTarget,
)
from farmd.kubernetes.objects import ManagedFields
from farmd.rollout.staging import TargetRevision
from store.times import rfc3339

FREE = Bounds()


def annotations(bounds: Bounds) -> dict[str, str]:
    """Bounds as annotations."""
    named = {MIN_SCALE: bounds.least, MAX_SCALE: bounds.most}
    return {key: str(each) for key, each in named.items() if each is not None}


def target(
    name: str,
    percent: int | None = 100,
    replicas: int | None = None,
    direction: Any = "",
    newest: bool | None = None,
    bounds: tuple[int | None, int | None] = (None, None),
    **more: Any,
) -> TargetRevision:
    """A target revision in the order in which the tables write it."""
    return TargetRevision(
        revision_name=name,
        percent=percent,
        target_replicas=replicas,
        direction=direction,
        latest_revision=newest,
        min_scale=bounds[0],
        max_scale=bounds[1],
        **more,
    )


def entry(name: str, percent: int | None, *, newest: bool = False, **more: Any) -> TrafficTarget:
    """A share of the traffic."""
    return TrafficTarget(revision_name=name, percent=percent, latest_revision=newest, **more)


def revision(
    name: str, bounds: Bounds = FREE, *, ready: bool = True, at: float = 0.0, own: Iterable[str] = ()
) -> Revision:
    """A revision; ``own``: annotations that farmd wrote last."""
    conditions = (KnativeCondition(type="Ready", status=str(ready)),)
    meta = Meta(
        name=name,
        namespace="shop",
        uid=f"uid-{name}",
        annotations=annotations(bounds),
        creation_timestamp=rfc3339(at),
        managed_fields=tuple(owned(MANAGER, "metadata", "annotations", key) for key in own),
    )
    return Revision(metadata=meta, status=Conditions(conditions=conditions))


def owned(manager: str, *path: str, time: str | None = None) -> ManagedFields:
    """A manager's entry of one field."""
    fields: dict[str, Any] = {}
    for part in reversed(path):
        fields = {f"f:{part}": fields}
    return ManagedFields(manager=manager, operation="Apply", time=time, fields_v1=fields)


def autoscaler(name: str, actual: int | None) -> PodAutoscaler:
    """A revision's autoscaler, which wants what it has."""
    status = AutoscalerStatus(desired_scale=actual, actual_scale=actual)
    return PodAutoscaler(metadata=Meta(name=name, namespace="shop"), status=status)


def service(
    name: str = "web", bounds: Bounds = FREE, traffic: tuple[TrafficTarget, ...] = (), **more: Any
) -> KnativeService:
    """A service that is opted in; ``more`` is of its metadata."""
    meta = Meta(
        **{"name": name, "namespace": "shop", "uid": f"uid-{name}", "labels": {ENABLED: "true"}} | more
    )
    template = Template(metadata=TemplateMeta(annotations=annotations(bounds)))
    return KnativeService(metadata=meta, spec=ServiceSpec(template=template, traffic=traffic))


def configuration(newest: str, name: str = "web") -> Configuration:
    """A configuration whose template became a revision."""
    status = ConfigurationStatus(observed_generation=1, latest_created_revision_name=newest)
    return Configuration(metadata=Meta(name=name, namespace="shop", generation=1), status=status)


def route(
    *shares: tuple[str, int | None], name: str = "web", tags: Mapping[str, str] | None = None
) -> KnativeRoute:
    """A route that shows these shares, and revisions by their tags."""
    traffic = tuple(entry(each, percent) for each, percent in shares)
    traffic += tuple(entry(each, None, tag=tag) for tag, each in (tags or {}).items())
    meta = Meta(name=name, namespace="shop", generation=1)
    return KnativeRoute(metadata=meta, status=RouteStatus(observed_generation=1, traffic=traffic))


def orchestrator(
    *,
    initial: tuple[TargetRevision, ...] = (),
    targets: tuple[TargetRevision, ...] = (),
    stage: tuple[TargetRevision, ...] = (),
    finished: tuple[TargetRevision, ...] = (),
    conditions: Mapping[str, str] | None = None,
    strategy: str = "availability",
) -> Orchestrator:
    """A record whose generation is observed."""
    said = (conditions or {}).items()
    found = tuple(
        KnativeCondition(type=kind, status=word, last_transition_time=rfc3339(0.0)) for kind, word in said
    )
    return Orchestrator(
        metadata=Meta(name="web", namespace="shop", generation=1),
        spec=OrchestratorSpec(
            initial_revisions=initial,
            target_revisions=targets,
            stage_target_revisions=stage,
            rollout_strategy=strategy,
        ),
        status=OrchestratorStatus(stage_revision_status=finished, conditions=found, observed_generation=1),
    )


def named(*objects: Any) -> dict[str, Any]:
    """Objects by their names."""
    return {each.metadata.name: each for each in objects}


def spa(name: str) -> StageAutoscaler:
    """A StagePodAutoscaler without bounds."""
    return StageAutoscaler(metadata=Meta(name=name, namespace="shop"))
