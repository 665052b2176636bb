"""The ports of ``farmd.jobs`` onto an API server: control of pods, services and disruption budgets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from farmd.jobs.objects import Budget, KubePod, KubeService
from farmd.jobs.ports import ApiFailed
from farmd.kubernetes.client import STRATEGIC_PATCH, Objects
from farmd.kubernetes.errors import KubernetesError, UnknownOutcome


@asynccontextmanager
async def told() -> AsyncIterator[None]:
    """Tell a refusal as the port's ``ApiFailed``."""
    try:
        yield
    except KubernetesError as error:
        unknown = isinstance(error, UnknownOutcome)
        raise ApiFailed(error.message, status=error.status, reason=error.reason, unknown=unknown) from error


class PodRequests:
    """``farmd.jobs.ports.PodControl``."""

    def __init__(self, objects: Objects[KubePod]) -> None:
        self._objects = objects

    async def create_pod(self, namespace: str, body: Mapping[str, Any]) -> KubePod:
        """Create a pod of this body."""
        async with told():
            return await self._objects.create(namespace, body, _job(body))

    async def delete_pod(self, namespace: str, name: str, *, uid: str, version: str) -> None:
        """Delete the pod if it has this uid and this version; one that is gone is no failure."""
        async with told():
            await self._objects.delete(namespace, name, uid=uid, version=version)

    async def patch_pod(self, namespace: str, name: str, patch: Mapping[str, Any]) -> None:
        """Apply a strategic merge patch."""
        async with told():
            await self._objects.patch(namespace, name, patch, content_type=STRATEGIC_PATCH)


class Services:
    """``farmd.jobs.ports.ServiceControl``."""

    def __init__(self, objects: Objects[KubeService]) -> None:
        self._objects = objects

    async def create_service(self, namespace: str, body: Mapping[str, Any]) -> KubeService:
        """Create a service of this body."""
        async with told():
            return await self._objects.create(namespace, body, _job(body))

    async def delete_service(self, namespace: str, name: str, *, uid: str, version: str) -> None:
        """Delete the service if it has this uid and this version; one that is gone is no failure."""
        async with told():
            await self._objects.delete(namespace, name, uid=uid, version=version)

    async def patch_service(self, namespace: str, name: str, patch: Mapping[str, Any]) -> None:
        """Apply a strategic merge patch."""
        async with told():
            await self._objects.patch(namespace, name, patch, content_type=STRATEGIC_PATCH)


class Budgets:
    """``farmd.jobs.ports.BudgetControl``."""

    def __init__(self, objects: Objects[Budget]) -> None:
        self._objects = objects

    async def get_budget(self, namespace: str, name: str) -> Budget | None:
        """The budget as the API server has it; None: there is none."""
        async with told():
            return await self._objects.get(namespace, name)

    async def create_budget(self, namespace: str, body: Mapping[str, Any]) -> Budget:
        """Create a budget of this body."""
        async with told():
            return await self._objects.create(namespace, body)

    async def delete_budget(self, namespace: str, name: str) -> None:
        """Delete the budget."""
        async with told():
            if (found := await self._objects.get(namespace, name)) is not None:
                meta = found.metadata
                await self._objects.delete(namespace, name, uid=meta.uid, version=meta.resource_version)


def _job(body: Mapping[str, Any]) -> str:
    """The uid of the job that a body belongs to: requests of jobs take turns."""
    owners = body["metadata"].get("ownerReferences") or ({"uid": ""},)
    return str(owners[0]["uid"])
