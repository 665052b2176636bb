"""The file of a job, as people write it (docs/jobs.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from farmd.commands import specs
from store import manifests
from store.canonical import builtins
from store.errors import refuse
from store.jobs import Action, Job, Rule, Success, Type, check, check_meant
from store.manifests import Manifest, Restart
from store.mistakes import shown
from store.quantities import Seconds
from store.variables import GANG, MEMBER, PEERS


class TypeSpec(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """One type of a job's slots, with what its members run."""

    name: str
    pod: Manifest
    replicas: int = 1
    parallelism: int = 0
    restart: Literal["never", "on-failure", "exit-code"] = "on-failure"
    node_selector: str = ""
    pod_labels: dict[str, str] = {}


class SuccessSpec(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """Which slots must end well."""

    operator: Literal["all", "any"] = "all"
    types: list[str] = []


class RuleSpec(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """What follows a failure."""

    action: Action
    exit_codes: list[int] = []
    reasons: list[str] = []
    types: list[str] = []


class JobSpec(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """One document of a job file."""

    name: str
    types: list[TypeSpec]
    gang: bool = False
    peers: bool = False
    success: SuccessSpec = SuccessSpec()
    rules: list[RuleSpec] = []
    suspend: bool | None = None
    backoff_limit: int = 6
    active_deadline: Seconds | None = None
    ttl: Seconds | None = 86_400.0
    clean: Literal["none", "running", "all"] = "running"
    restart_scope: Literal["slot", "job"] = "slot"
    on_lost: Literal["replace", "wait"] = "replace"
    gang_timeout: Seconds = 60.0
    labels: dict[str, str] = {}
    needs: list[str] = []

    @property
    def pods(self) -> tuple[Manifest, ...]:
        """What the members run, type by type."""
        return tuple(_compiled(self, each) for each in self.types)


def _compiled(spec: JobSpec, each: TypeSpec) -> Manifest:
    """What members of a type run: their agent starts them again in place only where nothing else decides."""
    alone = not (spec.rules or spec.peers or spec.restart_scope == "job")
    policy: Literal["on-failure", "never"] = (
        "on-failure" if each.restart == "on-failure" and alone else "never"
    )
    return msgspec.structs.replace(each.pod, restart=msgspec.structs.replace(each.pod.restart, policy=policy))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFile(specs.SpecFile[JobSpec, Job]):
    """Job files. ``given`` are the values of parameters that a person named."""

    given: Mapping[str, str] = field(default_factory=dict)

    def parse(self, data: Any, source: str) -> JobSpec:
        """One parsed document, with its parameters filled in."""
        from farmd.jobs import parameters  # as in ``parse_all``: farms need no YAML

        spec: JobSpec = specs.SpecFile.parse(self, parameters.filled(data, self.given, source), source)
        return spec

    def renamed(self, spec: JobSpec, name: str) -> JobSpec:
        """The same job under another name.

        Raises:
            InputInvalid: no job can have it.
        """
        renamed = msgspec.structs.replace(spec, name=name)
        check(self.build(renamed, "0"), "--name")
        return renamed

    def build(self, spec: JobSpec, record_id: str, sha: str = "", existing: Job | None = None) -> Job:  # noqa: ARG002
        """The record of a spec, under an id."""
        fields = {name: getattr(spec, name) for name in _ALIKE}
        suspend = spec.suspend if spec.suspend is not None else existing is not None and existing.suspend
        job = Job(
            id=record_id,
            types=[_type(spec, each) for each in spec.types],
            success=msgspec.convert(msgspec.structs.asdict(spec.success), Success),
            rules=[msgspec.convert(msgspec.structs.asdict(each), Rule) for each in spec.rules],
            suspend=suspend,
            recorded=existing is not None and existing.recorded,
            **fields,
        )
        return job if existing is None else specs.changed(existing, **msgspec.structs.asdict(job))

    def kept_digests(self, record: Job, digests: Mapping[str, str]) -> Job:
        """A built job whose types refer to manifests by these ``digests``."""
        types = [
            msgspec.structs.replace(each, manifest=digests.get(each.manifest, each.manifest))
            for each in record.types
        ]
        return msgspec.structs.replace(record, types=types)

    def document(self, job: Job, pods: Mapping[str, Manifest]) -> dict[str, Any]:
        """A record as the document that a person would write; ``pods`` are its manifests by digest."""
        types = [
            TypeSpec(
                pod=msgspec.structs.replace(
                    pods[each.manifest],
                    restart=msgspec.structs.replace(pods[each.manifest].restart, policy=Restart().policy),
                ),
                **{name: getattr(each, name) for name in _ALIKE_TYPES},
            )
            for each in job.types
        ]
        spec = JobSpec(
            types=types,
            success=msgspec.convert(msgspec.structs.asdict(job.success), SuccessSpec),
            rules=[msgspec.convert(msgspec.structs.asdict(each), RuleSpec) for each in job.rules],
            suspend=job.suspend or None,
            **{name: getattr(job, name) for name in _ALIKE},
        )
        found: dict[str, Any] = builtins(spec)
        return found


_OWN = {"types", "success", "rules", "suspend"}
_ALIKE = tuple(each for each in JobSpec.__struct_fields__ if each not in _OWN)
_ALIKE_TYPES = tuple(each for each in TypeSpec.__struct_fields__ if each != "pod")


def _type(spec: JobSpec, each: TypeSpec) -> Type:
    pod = _compiled(spec, each)
    where = f"{spec.name}: types.{each.name}.node_selector"
    return Type(
        manifest=manifests.digest(manifests.canonical(pod)),
        pod_id=pod.id,
        **{name: getattr(each, name) for name in _ALIKE_TYPES if name != "node_selector"},
        node_selector=specs.canonical_selector(each.node_selector, where),
    )


def _check(spec: JobSpec, source: str) -> None:
    for number, each in enumerate(spec.types):
        where = f"types[{number}]."
        if each.pod.restart.policy != Restart().policy:
            refuse(
                f"{source}: {where}pod.restart.policy",
                shown(each.pod.restart.policy),
                f"none: {where}restart says it",
                field=f"{where}pod.restart.policy",
            )
        variables = MEMBER | (GANG if spec.gang else frozenset()) | (PEERS if spec.peers else frozenset())
        specs.check_pod(_compiled(spec, each), source, f"{where}pod", variables)
        specs.check_pod_labels(each.pod_labels, source, f"{where}pod_labels")
        specs.canonical_selector(each.node_selector, f"{source}: {where}node_selector")
    job = FILE.build(spec, "0")
    check(job, source)
    check_meant(job, source)


FILE = JobFile(spec=JobSpec, record=Job, check=_check, kept={"suspend": ""})
