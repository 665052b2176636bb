"""A custom resource as a job: what people wrote, with the defaults of its kind (Kubeflow's RunPolicy).

Unknown fields are ignored, as the API server's schema may be newer. What cannot be a job is one clear line,
and never a crash: another controller's schema may have let it in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from farmd.jobs.facts import JobSpec, ReplicaType, Restart
from farmd.kubernetes.jobs import training
from farmd.kubernetes.jobs.kindfile import KindFile
from farmd.kubernetes.jobs.names import too_long
from farmd.kubernetes.jobs.training import ORDINARY, Training
from farmd.kubernetes.objects import ObjectMeta
from store.errors import InputInvalid, refuse
from store.jobs import MASTERS, MAX_ARRAY, MAX_REPLICAS, Action, Rule, Success
from store.mistakes import first, shown

# The parts of a pod template that farmd reads.
#
# The API server keeps templates of custom resources as they are: until a pod is created, one may have any
# form.

Amount = str | int | float


class _Camel(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    pass


class Variable(_Camel, frozen=True):
    """An entry of a container's environment."""

    name: str


class ContainerPort(_Camel, frozen=True):
    """A port of a container."""

    container_port: int
    name: str | None = None
    protocol: str | None = None


class Amounts(_Camel, frozen=True):
    """What a container asks for."""

    requests: dict[str, Amount] | None = None
    limits: dict[str, Amount] | None = None


class PodContainer(_Camel, frozen=True):
    """One container."""

    name: str = ""
    command: list[str] | None = None
    args: list[str] | None = None
    env: list[Variable] | None = None
    ports: list[ContainerPort] | None = None
    resources: Amounts | None = None


class PodSpec(_Camel, frozen=True):
    """What the pod runs."""

    containers: list[PodContainer] = []
    priority_class_name: str | None = None


class TemplateMeta(_Camel, frozen=True):
    """What its pods are called by."""

    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    finalizers: list[str] | None = None


class Template(_Camel, frozen=True):
    """A pod template."""

    metadata: TemplateMeta | None = None
    spec: PodSpec = PodSpec()


T = TypeVar("T")
Count = Annotated[int, msgspec.Meta(ge=0)]
PodPolicy = Literal["None", "Running", "All"]
RestartPolicy = Literal["Always", "OnFailure", "Never", "ExitCode"]

_RESTARTS: Mapping[str, Restart] = {
    "Always": "always",
    "OnFailure": "on-failure",
    "Never": "never",
    "ExitCode": "exit-code",
}
_CLEANS: Mapping[str, Literal["none", "running", "all"]] = {
    "None": "none",
    "Running": "running",
    "All": "all",
}
_ACTIONS: Mapping[str, Action] = {
    "FailJob": "fail-job",
    "Restart": "restart",
    "RestartJob": "restart-job",
    "Ignore": "ignore",
}


class SchedulingPolicy(_Camel, frozen=True):
    """What a scheduler of gangs is told of a job."""

    min_available: Count | None = None
    queue: str = ""
    min_resources: dict[str, str | int | float] | None = None
    priority_class: str = ""
    schedule_timeout_seconds: Count | None = None


class RunPolicy(_Camel, frozen=True):
    """The limits of a job; a missing one is the kind's default."""

    clean_pod_policy: PodPolicy | None = None
    ttl_seconds_after_finished: Count | None = None
    active_deadline_seconds: Count | None = None
    backoff_limit: Count | None = None
    scheduling_policy: SchedulingPolicy | None = None
    suspend: bool = False
    managed_by: str = ""
    restart_scope: Literal["Slot", "Job"] = "Slot"


class ReplicaSpec(_Camel, frozen=True):
    """One type of a job's members."""

    replicas: Count | None = None
    parallelism: Count = 0
    restart_policy: RestartPolicy | None = None
    template: dict[str, Any] = {}


class SuccessPolicy(_Camel, frozen=True):
    """Which members must end well."""

    operator: Literal["All", "Any"] = "All"
    replica_types: list[str] = []


class FailureRule(_Camel, frozen=True):
    """What follows a member's failure."""

    action: Literal["FailJob", "Restart", "RestartJob", "Ignore"]
    exit_codes: list[int] = []
    reasons: list[str] = []
    types: list[str] = []


class FailurePolicy(_Camel, frozen=True):
    """Rules, of which the first that fits decides."""

    rules: list[FailureRule] = []


class Common(_Camel, frozen=True):
    """What all kinds may say beside their types."""

    run_policy: RunPolicy = RunPolicy()
    success_policy: SuccessPolicy | str | None = None
    failure_policy: FailurePolicy = FailurePolicy()
    services: Literal["shared", "each", "none"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """A job of Kubernetes; ``templates`` are its pods' by type. One that is ``managed_by`` another is not
    ours.
    """

    kind: KindFile
    metadata: ObjectMeta
    job: JobSpec
    templates: Mapping[str, Mapping[str, Any]]
    scheduling: SchedulingPolicy
    training: Training = ORDINARY
    managed_by: str = ""

    @property
    def members(self) -> int:
        """How many members need a place together: what the job says, or all."""
        least = self.scheduling.min_available
        return self.job.size if least is None else least


def read(kind: KindFile, raw: Mapping[str, Any], *, gangs: bool = False) -> Resource:
    """A custom resource as a job; ``gangs``: whether members wait for a scheduler of gangs.

    Raises:
        InputInvalid: one line that names the field, what was found and what is expected.
    """
    metadata = _read(ObjectMeta, raw.get("metadata") or {}, "metadata")
    spec = raw.get("spec") or {}
    common = _read(Common, _given(spec), "spec")
    field = f"spec.{kind.replica_specs}"
    found = _read(dict[str, ReplicaSpec], _given(spec.get(kind.replica_specs) or {}), field)
    replicas = _types(kind, found, field)
    types = tuple(_type(kind, name, each) for name, each in replicas.items())
    trains = _read(Training, _given(spec), "spec")
    workers = sum(each.replicas for each in types if each.name == training.WORKER)
    training.check(trains, _given(spec), kind.fields, kind.kind, workers)
    _check(kind, metadata.name, types, replicas, field, gangs=gangs)
    return Resource(
        kind=kind,
        metadata=metadata,
        job=_job(kind, metadata, types, common, trains, gangs=gangs),
        templates={name: each.template for name, each in replicas.items()},
        scheduling=common.run_policy.scheduling_policy or SchedulingPolicy(),
        training=trains,
        managed_by=common.run_policy.managed_by,
    )


def _read(kind: type[T], data: Any, field: str) -> T:
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        found = first(kind, data, unknown=False)
        where, what = found or ("", str(error))
        joined = "." if where and not where.startswith("[") else ""
        raise InputInvalid(f"{field}{joined}{where}: {what}", field=field) from error


def _given(data: Any) -> Any:
    """Data of the API without fields that are null or empty text, which is as good as missing; templates stay
    as they are.
    """
    if not isinstance(data, Mapping):
        return data
    given = {name: each for name, each in data.items() if each is not None and each != ""}
    return {name: each if name == "template" else _given(each) for name, each in given.items()}


def _types(kind: KindFile, found: Mapping[str, ReplicaSpec], field: str) -> dict[str, ReplicaSpec]:
    """The types by their own names, in the order of creation: as the kind says, else masters first."""
    named: dict[str, ReplicaSpec] = {}
    for name, each in found.items():
        own = kind.canonical(name)
        if kind.types and own not in kind.types:
            refuse(field, repr(name), f"one of {', '.join(kind.types)}", field=field)
        if any(own.lower() == other.lower() for other in named):
            refuse(field, f"{name!r} twice, in two spellings", "each type once", field=field)
        named[own] = each
    if not named:
        refuse(field, "no types", "at least one", field=field)
    order = {name: place for place, name in enumerate(kind.types)}
    ranked = sorted(named, key=lambda name: (order.get(name, 0), name.lower() not in MASTERS, name))
    return {name: named[name] for name in ranked}


def _type(kind: KindFile, name: str, each: ReplicaSpec) -> ReplicaType:
    return ReplicaType(
        name=name,
        replicas=1 if each.replicas is None else each.replicas,
        parallelism=each.parallelism,
        restart=_RESTARTS[each.restart_policy or kind.defaults.restart],
    )


def _check(
    kind: KindFile,
    name: str,
    types: tuple[ReplicaType, ...],
    replicas: Mapping[str, ReplicaSpec],
    field: str,
    *,
    gangs: bool,
) -> None:
    if (told := too_long(name, {each.name: each.replicas for each in types})) != "":
        raise InputInvalid(told, field="metadata.name")
    for each in types:
        where = f"{field}.{each.name}"
        if gangs and each.parallelism:
            refuse(f"{where}.parallelism", shown(each.parallelism), "0: all members of a gang run together")
        most = MAX_ARRAY if each.parallelism else MAX_REPLICAS
        if each.replicas > most:
            what = "" if each.parallelism else ", or a parallelism"
            refuse(f"{where}.replicas", shown(each.replicas), f"at most {most}{what}")
        template = _read(Template, _given(replicas[each.name].template), f"{where}.template")
        names = [one.name for one in template.spec.containers]
        if not names or (kind.container and kind.container not in names):
            wanted = repr(kind.container) if kind.container else "at least one"
            refuse(f"{where}.template.spec.containers", ", ".join(map(repr, names)) or "none", wanted)


def _job(
    kind: KindFile,
    metadata: ObjectMeta,
    types: tuple[ReplicaType, ...],
    common: Common,
    trains: Training,
    *,
    gangs: bool,
) -> JobSpec:
    policy, defaults = common.run_policy, kind.defaults
    success, index = _success(kind, types, common.success_policy)
    if common.success_policy is None:
        elastic = training.any_worker(trains, [each.name for each in types if each.replicas])
        success = elastic or success
    limit = policy.backoff_limit
    return JobSpec(
        id=metadata.uid,
        name=metadata.name,
        types=types,
        gang=gangs,
        services=common.services or kind.services,
        success=success,
        success_index=index,
        rules=tuple(
            _rule(kind, types, number, each) for number, each in enumerate(common.failure_policy.rules)
        ),
        backoff_limit=defaults.backoff_limit if limit is None else limit,
        allows_limit=kind.allows_limit,
        spared=(training.WORKER,) if trains.enable_dynamic_worker else (),
        active_deadline=policy.active_deadline_seconds,
        ttl=policy.ttl_seconds_after_finished,
        clean=_CLEANS[policy.clean_pod_policy or defaults.clean],
        restart_scope="job" if policy.restart_scope == "Job" else "slot",
        suspend=policy.suspend,
        deleting=metadata.terminating,
    )


def _success(
    kind: KindFile, types: tuple[ReplicaType, ...], policy: SuccessPolicy | str | None
) -> tuple[Success, int | None]:
    """The success policy and the one index that counts. ``AllWorkers`` is a word of TFJob."""
    if isinstance(policy, SuccessPolicy):
        own = _known(kind, types, policy.replica_types, "spec.successPolicy.replicaTypes")
        slots = {each.name: each.replicas for each in types}
        if own and any(slots.values()) and not any(slots[name] for name in own):
            told = f"{', '.join(own)} with 0 replicas"
            refuse("spec.successPolicy.replicaTypes", told, "a type that has slots")
        return Success(operator="any" if policy.operator == "Any" else "all", types=own), None
    if any(each.name in kind.masters and each.replicas for each in types):
        return Success(types=[each.name for each in types if each.name in kind.masters]), None
    present = [each.name for each in types if each.name in kind.success.types and each.replicas]
    if not present:
        return Success(), None
    return Success(types=present), None if policy == "AllWorkers" else kind.success.index


def _rule(kind: KindFile, types: tuple[ReplicaType, ...], number: int, rule: FailureRule) -> Rule:
    return Rule(
        action=_ACTIONS[rule.action],
        exit_codes=rule.exit_codes,
        reasons=[each.lower() for each in rule.reasons],
        types=_known(kind, types, rule.types, f"spec.failurePolicy.rules[{number}].types"),
    )


def _known(kind: KindFile, types: tuple[ReplicaType, ...], names: list[str], field: str) -> list[str]:
    """Types that a policy names, as the job spells them."""
    known = {each.name.lower(): each.name for each in types}
    for name in names:
        if kind.canonical(name).lower() not in known:
            refuse(field, repr(name), f"one of the job's types: {', '.join(known.values())}", field=field)
    return [known[kind.canonical(name).lower()] for name in names]
