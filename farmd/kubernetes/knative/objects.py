"""Knative's objects with the fields that a rollout reads, and the names of what farmd writes on them.

The structs are lean, because a farm keeps all of them in memory, and they are never sent back whole. A field
that is absent, one that is 0 and one that is null mean different things where a type says ``None``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from farmd.kubernetes.objects import PODS, ManagedMeta, ObjectMeta, PodStatus, Resource
from farmd.rollout.staging import TargetRevision
from store.version import USER_AGENT

GROUP = "serving.knative.dev"
SERVICES = Resource(GROUP, "v1", "services", "Service")
CONFIGURATIONS = Resource(GROUP, "v1", "configurations", "Configuration")
ROUTES = Resource(GROUP, "v1", "routes", "Route")
REVISIONS = Resource(GROUP, "v1", "revisions", "Revision")
ORCHESTRATORS = Resource(GROUP, "v1", "rolloutorchestrators", "RolloutOrchestrator")
STAGE_AUTOSCALERS = Resource(GROUP, "v1", "stagepodautoscalers", "StagePodAutoscaler")
AUTOSCALERS = Resource("autoscaling.internal.knative.dev", "v1alpha1", "podautoscalers", "PodAutoscaler")
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")

# The names under which farmd owns fields: of objects that other hands write, too, and of its own.
MANAGER, WRITER = "farmd-progressive", USER_AGENT.partition("/")[0]

# Knative's own labels and annotations.
GENERATION_LABEL = f"{GROUP}/configurationGeneration"
VERSION_LABEL = "app.kubernetes.io/version"
MIN_SCALE, MAX_SCALE = "autoscaling.knative.dev/min-scale", "autoscaling.knative.dev/max-scale"
ALIASES = {MIN_SCALE: "autoscaling.knative.dev/minScale", MAX_SCALE: "autoscaling.knative.dev/maxScale"}
CLASS = "autoscaling.knative.dev/class"
HPA = "hpa.autoscaling.knative.dev"
UNREACHABLE = "Unreachable"

# What people write: the label of a service, and words on its orchestrator.
ENABLED = "rollout.farmd.io/enabled"
WORDS = "rollout.farmd.io/"
PAUSED, RESUMED, REVERT, PROMOTE, RETRY = (
    WORDS + word for word in ("paused", "resumed", "revert", "promote", "retry")
)

# What farmd writes: on an orchestrator, on a StagePodAutoscaler, and on both a service and a status.
FOLLOW, REFUSED, HEARD, RELEASED, CAUSE = (
    f"farmd.io/{word}" for word in ("follow", "refused", "heard", "released", "cause")
)
FINAL = "farmd.io/final"
CLAIM = "farmd.io/claim"
FINALIZER = "farmd.io/bounds"


# A condition of which nobody knows yet.
UNKNOWN = "Unknown"


class _Lean(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    pass


class Meta(ManagedMeta, frozen=True):
    """Identity, generation, and who set which fields."""

    generation: int = 0
    finalizers: tuple[str, ...] = ()


class KnativeCondition(_Lean, frozen=True):
    """One condition; ``severity`` is empty where it matters to ``Ready``."""

    type: str = ""
    status: str = ""
    severity: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


def condition(found: tuple[KnativeCondition, ...], name: str) -> KnativeCondition:
    """The condition of that type; one of status Unknown where there is none."""
    return next((each for each in found if each.type == name), KnativeCondition(type=name, status=UNKNOWN))


class TrafficTarget(_Lean, frozen=True):
    """A share of the traffic. A percent of 0 keeps the revision reachable; None is no share."""

    revision_name: str = ""
    configuration_name: str = ""
    latest_revision: bool | None = None
    percent: int | None = None
    tag: str = ""
    url: str | None = None


def routed(entries: Iterable[TrafficTarget]) -> dict[str, int]:
    """The share of each revision that a route reaches."""
    found: dict[str, int] = {}
    for each in entries:
        if each.percent is not None or not each.tag:
            found[each.revision_name] = found.get(each.revision_name, 0) + (each.percent or 0)
    return found


class TemplateMeta(_Lean, frozen=True):
    """What the template says of its revision."""

    name: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class Template(_Lean, frozen=True):
    """The revision that comes next."""

    metadata: TemplateMeta = TemplateMeta()


class ServiceSpec(_Lean, frozen=True):
    """What people ask: the template of the next revision, and the traffic."""

    template: Template = Template()
    traffic: tuple[TrafficTarget, ...] = ()


class KnativeService(_Lean, frozen=True):
    """A Knative Service."""

    metadata: Meta = Meta()
    spec: ServiceSpec = ServiceSpec()

    @property
    def name(self) -> str:
        """As people write it: ``shop/web``."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def enabled(self) -> bool:
        """Whether its rollouts are to be progressive."""
        return self.metadata.labels.get(ENABLED) == "true"


class ConfigurationStatus(_Lean, frozen=True):
    """Which revision the last template became."""

    observed_generation: int = 0
    latest_created_revision_name: str = ""


class Configuration(_Lean, frozen=True):
    """The configuration of a service, of the same name."""

    metadata: Meta = Meta()
    status: ConfigurationStatus = ConfigurationStatus()


class RouteStatus(_Lean, frozen=True):
    """Where the traffic goes."""

    observed_generation: int = 0
    traffic: tuple[TrafficTarget, ...] = ()


class KnativeRoute(_Lean, frozen=True):
    """The route of a service, of the same name."""

    metadata: Meta = Meta()
    status: RouteStatus = RouteStatus()

    @property
    def observed(self) -> bool:
        """Whether its status is that of its spec."""
        return self.status.observed_generation == self.metadata.generation


class Conditions(_Lean, frozen=True):
    """A status of which only the conditions are read."""

    conditions: tuple[KnativeCondition, ...] = ()


class Revision(_Lean, frozen=True):
    """One version of a service."""

    metadata: Meta = Meta()
    status: Conditions = Conditions()

    @property
    def ready(self) -> bool:
        """Whether traffic may go to it."""
        return condition(self.status.conditions, "Ready").status == "True"


class AutoscalerSpec(_Lean, frozen=True):
    """Whether a route reaches the revision, as the autoscaler knows: else its least pods are ignored."""

    reachability: str = ""


class AutoscalerStatus(_Lean, frozen=True):
    """Pods that the autoscaler wants and has; None, and below 0, are not known."""

    desired_scale: int | None = None
    actual_scale: int | None = None


class PodAutoscaler(_Lean, frozen=True):
    """Knative's autoscaler of a revision, of the same name."""

    metadata: Meta = Meta()
    spec: AutoscalerSpec = AutoscalerSpec()
    status: AutoscalerStatus = AutoscalerStatus()


class RevisionPod(_Lean, frozen=True):
    """A pod of a revision. Who wrote which of its fields is not kept: there are many pods."""

    metadata: ObjectMeta = ObjectMeta()
    status: PodStatus = PodStatus()


class OrchestratorSpec(_Lean, frozen=True):
    """Where a rollout began, where it ends, and the goal of its stage."""

    initial_revisions: tuple[TargetRevision, ...] = ()
    target_revisions: tuple[TargetRevision, ...] = ()
    stage_target_revisions: tuple[TargetRevision, ...] = ()
    target_finish_time: str | None = None
    rollout_strategy: str = ""


class OrchestratorStatus(_Lean, frozen=True):
    """What the last finished stage left."""

    stage_revision_status: tuple[TargetRevision, ...] = ()
    conditions: tuple[KnativeCondition, ...] = ()
    observed_generation: int = 0
    annotations: dict[str, str] = {}


class Orchestrator(_Lean, frozen=True):
    """A RolloutOrchestrator as the API server has it; its service has the same name."""

    metadata: Meta = Meta()
    spec: OrchestratorSpec = OrchestratorSpec()
    status: OrchestratorStatus = OrchestratorStatus()

    @property
    def observed(self) -> bool:
        """Whether its status is that of its spec."""
        return self.status.observed_generation == self.metadata.generation


class StageAutoscalerSpec(_Lean, frozen=True):
    """The bounds of a revision in a stage; None: not bounded by it."""

    stage_min_scale: int | None = None
    stage_max_scale: int | None = None


class StageAutoscalerStatus(_Lean, frozen=True):
    """What the revision's autoscaler says."""

    desired_scale: int | None = None
    actual_scale: int | None = None
    replicas_terminating: int | None = None
    conditions: tuple[KnativeCondition, ...] = ()
    observed_generation: int = 0


class StageAutoscaler(_Lean, frozen=True):
    """A StagePodAutoscaler as the API server has it; its revision has the same name."""

    metadata: Meta = Meta()
    spec: StageAutoscalerSpec = StageAutoscalerSpec()
    status: StageAutoscalerStatus = StageAutoscalerStatus()


class ConfigMap(_Lean, frozen=True):
    """A ConfigMap of the namespace where Knative's controllers run."""

    metadata: Meta = Meta()
    data: dict[str, str] = {}


RESOURCES: Mapping[type, Resource] = {
    KnativeService: SERVICES,
    Configuration: CONFIGURATIONS,
    KnativeRoute: ROUTES,
    Revision: REVISIONS,
    Orchestrator: ORCHESTRATORS,
    StageAutoscaler: STAGE_AUTOSCALERS,
    PodAutoscaler: AUTOSCALERS,
    RevisionPod: PODS,
    ConfigMap: CONFIG_MAPS,
}
