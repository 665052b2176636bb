"""A kind of custom resource that is a job, read from its file in ``kinds/``.

A new kind is a file: group, labels, the path of its types, its environment. Nothing in the code names a kind.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Literal

import msgspec

from farmd.jobs.facts import Services
from farmd.kubernetes.jobs.protocols import FindJob, GetJob, GroupVersion, GroupVersionKind

Environment = Literal["farmd", "tf", "torch"]


class Labels(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of the labels that members bear, and the value of the one that names their kind."""

    group: str
    group_value: str
    job: str
    type: str
    index: str
    role: str


class Defaults(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a resource that does not say it means; a limit of None is no limit."""

    restart: str = "OnFailure"
    clean: str = "None"
    backoff_limit: int | None = None


class DefaultSuccess(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where there is no master: the types, and the one index of them, that decide."""

    types: tuple[str, ...] = ()
    index: int | None = None


class KindFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One kind. ``replica_specs``: the field of ``spec`` with its types; ``types``: those that it knows, in
    the order of creation; none: any. ``fields``: what of ``training.FIELDS`` it has. ``allows_limit``: see
    ``JobSpec``. ``greets_master``: members that are no masters wait for its name in an init container of this
    name. ``container``: the one that does the work; empty: the first.
    ``port_name`` and ``port``: where members listen, if a template does not say. ``closed``: it has no fields
    but those that farmd knows, so a file with others is refused. ``dated``: the API server drops ``claim``
    from a status, so that a claim changes ``lastReconcileTime`` in its place (R16).
    """

    group: str
    version: str
    kind: str
    plural: str
    replica_specs: str
    types: tuple[str, ...] = ()
    masters: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    allows_limit: bool = False
    greets_master: str = ""
    container: str = ""
    port_name: str = ""
    port: int
    services: Services
    environment: Environment
    dated: bool = False
    labels: Labels
    defaults: Defaults = Defaults()
    success: DefaultSuccess = DefaultSuccess()
    closed: bool = False

    @property
    def title(self) -> str:
        """Kind and group, as people tell jobs of one name apart: ``tfjob.kubeflow.org``."""
        return f"{self.kind.lower()}.{self.group}"

    def canonical(self, name: str) -> str:
        """A type's name as the kind spells it; as it is where the kind knows any type, or not this one."""
        return next((each for each in self.types if each.lower() == name.lower()), name)


@cache
def kinds() -> dict[str, KindFile]:
    """All kinds by plural: ``tfjobs``."""
    files = sorted(resources.files("farmd.kubernetes.jobs.kinds").iterdir(), key=lambda each: each.name)
    found = [
        msgspec.toml.decode(each.read_bytes(), type=KindFile) for each in files if each.name.endswith(".toml")
    ]
    return {each.plural: each for each in found}


def titles() -> frozenset[str]:
    """What stands before the namespace of a job whose kind is named."""
    return frozenset(kind.title for kind in kinds().values())


class JobKind:
    """A kind with its jobs (``ControllerInterface``): ``find`` asks the watch, ``get`` the API server."""

    def __init__(self, data: KindFile, find: FindJob, get: GetJob) -> None:
        self.data = data
        self.get_job_from_informer_cache = find
        self.get_job_from_api_client = get

    def controller_name(self) -> str:
        """Such as ``tfjobs``."""
        return self.data.plural

    def get_api_group_version_kind(self) -> GroupVersionKind:
        """Group, version and kind of the jobs."""
        return GroupVersionKind(self.data.group, self.data.version, self.data.kind)

    def get_api_group_version(self) -> GroupVersion:
        """Group and version of the jobs."""
        return GroupVersion(self.data.group, self.data.version)

    def get_group_name_label_key(self) -> str:
        """The label that names the kind."""
        return self.data.labels.group

    def get_group_name_label_value(self) -> str:
        """Its value."""
        return self.data.labels.group_value

    def get_job_name_label_key(self) -> str:
        """The label that names the job."""
        return self.data.labels.job

    def get_replica_type_label_key(self) -> str:
        """The label that names the type."""
        return self.data.labels.type

    def get_replica_index_label_key(self) -> str:
        """The label with the index."""
        return self.data.labels.index
