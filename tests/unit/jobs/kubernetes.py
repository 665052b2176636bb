"""A kind of job, and the ports of Kubernetes as recorders: objects in memory, calls in lists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from farmd.kubernetes.jobs.controller import Controls, JobController, JobControllerConfiguration
from farmd.kubernetes.jobs.protocols import ApiFailed, GroupVersion, GroupVersionKind
from farmd.kubernetes.objects import Budget, KubePod, KubeService, ObjectMeta, Owned, OwnerReference
from tests.virtual import VirtualClock

GROUP = "kubeflow.org"


class TestJob(msgspec.Struct, frozen=True):
    """A job object."""

    __test__ = False
    metadata: ObjectMeta = ObjectMeta()


def job(name: str = "bert", uid: str = "123", **fields: Any) -> TestJob:
    return TestJob(ObjectMeta(name=name, namespace="default", uid=uid, **fields))


class TestKind:
    """A minimal kind, as data."""

    __test__ = False

    def __init__(self, name: str = "test-operator") -> None:
        self.name = name
        self.cached: dict[tuple[str, str], Owned] = {}
        self.served: dict[tuple[str, str], Owned] = {}
        self.reads = 0

    def knows(self, *jobs: TestJob) -> TestKind:
        for each in jobs:
            self.cached[each.metadata.namespace, each.metadata.name] = each
            self.served[each.metadata.namespace, each.metadata.name] = each
        return self

    def controller_name(self) -> str:
        return self.name

    def get_api_group_version_kind(self) -> GroupVersionKind:
        return GroupVersionKind(GROUP, "v1", "TestJob")

    def get_api_group_version(self) -> GroupVersion:
        return GroupVersion(GROUP, "v1")

    def get_group_name_label_key(self) -> str:
        return "operator-name"

    def get_job_name_label_key(self) -> str:
        return "job-name"

    def get_group_name_label_value(self) -> str:
        return self.name

    def get_replica_type_label_key(self) -> str:
        return "replica-type"

    def get_replica_index_label_key(self) -> str:
        return "replica-index"

    def get_job_from_informer_cache(self, namespace: str, name: str) -> Owned | None:
        return self.cached.get((namespace, name))

    async def get_job_from_api_client(self, namespace: str, name: str) -> Owned | None:
        self.reads += 1
        return self.served.get((namespace, name))


def owner(uid: str = "123", **fields: Any) -> OwnerReference:
    values = {"api_version": f"{GROUP}/v1", "kind": "TestJob", "name": "bert", "controller": True}
    return OwnerReference(uid=uid, **{**values, **fields})


def meta(name: str, labels: Mapping[str, str] | None = None, **fields: Any) -> ObjectMeta:
    own = {"operator-name": "test-operator", "job-name": "bert"}
    values: dict[str, Any] = {"namespace": "default", "uid": f"uid-{name}", "resource_version": "1"}
    return ObjectMeta(name=name, labels={**own, **(labels or {})}, **{**values, **fields})


def pod(name: str, kind: str = "worker", index: str = "0", **fields: Any) -> KubePod:
    labels = {"replica-type": kind, "replica-index": index, **fields.pop("labels", {})}
    return KubePod(metadata=meta(name, labels, **fields))


class Recorder:
    """All ports: what was written, and a failure to answer with."""

    def __init__(self) -> None:
        self.objects: list[Any] = []
        self.created: list[tuple[str, Mapping[str, Any]]] = []
        self.deleted: list[tuple[str, str, str]] = []
        self.patched: dict[str, Mapping[str, Any]] = {}
        self.events: list[tuple[str, str]] = []
        self.budgets: dict[str, Budget] = {}
        self.failure: ApiFailed | None = None

    def _fail(self) -> None:
        if self.failure is not None:
            raise self.failure

    async def create_pod(self, namespace: str, body: Mapping[str, Any]) -> KubePod:
        self.created.append((namespace, body))
        self._fail()
        return msgspec.convert(body, KubePod)

    async def delete_pod(self, namespace: str, name: str, *, uid: str, version: str) -> None:
        self.deleted.append((name, uid, version))
        self._fail()

    async def patch_pod(self, namespace: str, name: str, patch: Mapping[str, Any]) -> None:
        self.patched[name] = patch
        self._fail()

    async def create_service(self, namespace: str, body: Mapping[str, Any]) -> KubeService:
        self.created.append((namespace, body))
        self._fail()
        return msgspec.convert(body, KubeService)

    async def delete_service(self, namespace: str, name: str, *, uid: str, version: str) -> None:
        await self.delete_pod(namespace, name, uid=uid, version=version)

    async def patch_service(self, namespace: str, name: str, patch: Mapping[str, Any]) -> None:
        await self.patch_pod(namespace, name, patch)

    def owned_by(self, uid: str) -> Iterable[Any]:
        return [each for each in self.objects if (each.metadata.controller or OwnerReference()).uid == uid]

    def orphans(self, namespace: str, labels: Mapping[str, str]) -> Iterable[Any]:
        return [
            each
            for each in self.objects
            if each.metadata.controller is None and labels.items() <= each.metadata.labels.items()
        ]

    def event(self, of: Owned, kind: str, reason: str, message: str, *, anew: bool = False) -> None:
        self.events.append((kind, reason))

    async def get_budget(self, namespace: str, name: str) -> Budget | None:
        self._fail()
        return self.budgets.get(name)

    async def create_budget(self, namespace: str, body: Mapping[str, Any]) -> Budget:
        self.created.append((namespace, body))
        self.budgets[body["metadata"]["name"]] = made = msgspec.convert(body, Budget)
        return made

    async def delete_budget(self, namespace: str, name: str) -> None:
        self.deleted.append((name, "", ""))
        del self.budgets[name]


def controller(
    kind: TestKind, api: Recorder, *, gangs: bool = True, clock: VirtualClock | None = None
) -> JobController:
    controls = Controls(pods=api, services=api, pod_lister=api, service_lister=api, recorder=api, budgets=api)
    config = JobControllerConfiguration(enable_gang_scheduling=gangs)
    return JobController(kind, config, controls, clock or VirtualClock())
