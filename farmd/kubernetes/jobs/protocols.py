"""What ``JobController`` needs of the outside, as Protocols: ``farmd.kubernetes`` implements them, and tests
record the calls.

Jobs on nodes need none of it: their worker stands on the frame (``farmd/work``), as all kinds of work do.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from farmd.kubernetes.objects import Budget, KubePod, KubeService, Owned

O_co = TypeVar("O_co", covariant=True)


FindJob = Callable[[str, str], Owned | None]
"""A job by namespace and name as the watch knows it; None: it knows none of that name."""
GetJob = Callable[[str, str], Awaitable[Owned | None]]
"""A job by namespace and name as the API server has it now (or ``ApiFailed``); None: there is none."""


class GroupVersion(NamedTuple):
    """An API group and its version."""

    group: str
    version: str

    def __str__(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


class GroupVersionKind(NamedTuple):
    """A kind of an API group."""

    group: str
    version: str
    kind: str


class ControllerInterface(Protocol):
    """What distinguishes one kind of job from another: its API, its labels, and where its jobs are found."""

    def controller_name(self) -> str:
        """The controller's name."""

    def get_api_group_version_kind(self) -> GroupVersionKind:
        """Group, version and kind of the jobs."""

    def get_api_group_version(self) -> GroupVersion:
        """Group and version of the jobs."""

    def get_group_name_label_key(self) -> str:
        """The label of members that holds the API group's name."""

    def get_job_name_label_key(self) -> str:
        """The label of members that holds the job's name."""

    def get_group_name_label_value(self) -> str:
        """The value of the group's label."""

    def get_replica_type_label_key(self) -> str:
        """The label of members that holds their type, in lower case."""

    def get_replica_index_label_key(self) -> str:
        """The label of members that holds their index."""

    @property
    def get_job_from_informer_cache(self) -> FindJob:
        """Finds a job as the watch knows it."""

    @property
    def get_job_from_api_client(self) -> GetJob:
        """Reads a job from the API server."""


class ApiFailed(Exception):
    """The API server refused a call, or did not answer it.

    ``status`` is that of the answer, 0 without one; ``reason`` the server's word, such as ``AlreadyExists``.
    ``unknown``: the call may have taken effect all the same.
    """

    def __init__(self, message: str, *, status: int = 0, reason: str = "", unknown: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.unknown = unknown


class PodControl(Protocol):
    """Writes pods. Each call raises ``ApiFailed`` where it did not surely succeed."""

    async def create_pod(self, namespace: str, body: Mapping[str, Any]) -> KubePod:
        """Create a pod of this body."""

    async def delete_pod(self, namespace: str, name: str, *, uid: str, version: str) -> None:
        """Delete the pod if it has this uid and this version; one that is gone is no failure."""

    async def patch_pod(self, namespace: str, name: str, patch: Mapping[str, Any]) -> None:
        """Apply a strategic merge patch."""


class ServiceControl(Protocol):
    """Writes services, as ``PodControl`` writes pods."""

    async def create_service(self, namespace: str, body: Mapping[str, Any]) -> KubeService:
        """Create a service of this body."""

    async def delete_service(self, namespace: str, name: str, *, uid: str, version: str) -> None:
        """Delete the service if it has this uid and this version; one that is gone is no failure."""

    async def patch_service(self, namespace: str, name: str, patch: Mapping[str, Any]) -> None:
        """Apply a strategic merge patch."""


class BudgetControl(Protocol):
    """Reads and writes PodDisruptionBudgets."""

    async def get_budget(self, namespace: str, name: str) -> Budget | None:
        """The budget as the API server has it; None: there is none."""

    async def create_budget(self, namespace: str, body: Mapping[str, Any]) -> Budget:
        """Create a budget of this body."""

    async def delete_budget(self, namespace: str, name: str) -> None:
        """Delete the budget."""


class Lister(Protocol[O_co]):
    """Objects of one resource as a watch knows them, indexed so that a look costs what it finds."""

    def owned_by(self, uid: str) -> Iterable[O_co]:
        """The objects whose controller has this uid."""

    def orphans(self, namespace: str, labels: Mapping[str, str]) -> Iterable[O_co]:
        """The objects of the namespace without a controller that bear all of these labels."""


class EventRecorder(Protocol):
    """Tells people of a job; events may be dropped."""

    def event(
        self,
        of: Owned,
        kind: Literal["Normal", "Warning"],
        reason: str,
        message: str,
        *,
        anew: bool = False,
    ) -> None:
        """Record one event on an object; ``reason`` is a word (CamelCase). ``anew``: another message is told
        even if the reason was told just now.
        """
