"""Knative Services and their rollouts as the API server has them when a person asks."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from farmd.config.kubernetes import KNATIVE_NAMESPACE
from farmd.kubernetes.client import Objects
from farmd.kubernetes.errors import NotFound
from farmd.kubernetes.progressive.assembly import Parts, assembled, named
from farmd.kubernetes.progressive.ground import Ground
from farmd.kubernetes.progressive.model import Knative
from farmd.kubernetes.progressive.objects import (
    AUTOSCALERS,
    CONFIGURATIONS,
    ENABLED,
    ORCHESTRATORS,
    REVISIONS,
    ROUTES,
    SERVICES,
    STAGE_AUTOSCALERS,
    Configuration,
    Orchestrator,
    Pod,
    PodAutoscaler,
    Revision,
    Route,
    Service,
    StageAutoscaler,
)
from farmd.kubernetes.progressive.settings import Settings, load_config_from_service
from farmd.kubernetes.resources import PODS, Resource
from farmd.kubernetes.store import Object
from farmd.kubernetes.transport import REQUEST_SECONDS, KubernetesTransport, Request
from farmd.rollout.revisions import SERVICE_LABEL
from store import errors
from store.ports import Clock

T = TypeVar("T", bound=Object)


class Seen(NamedTuple):
    """A service with all that its rollout reads, what is wrong with settings, and the farm that has it."""

    knative: Knative
    problem: str = ""
    owner: str = ""

    @property
    def name(self) -> str:
        """As people write it: ``shop/web``."""
        meta = self.knative.service.metadata
        return f"{meta.namespace}/{meta.name}"

    def held_by(self, owners: Mapping[str, str]) -> Seen:
        """The same with the farm that owns it, of the farms by item."""
        return self._replace(owner=owners.get(self.knative.service.metadata.uid, ""))


class Services:
    """The Knative Services of one cluster; ``misfits`` are lines for objects that do not decode."""

    def __init__(self, transport: KubernetesTransport, clock: Clock) -> None:
        self._transport, self._clock = transport, clock
        self._ground = Ground(transport, KNATIVE_NAMESPACE, clock)
        self.misfits: builtins.list[str] = []

    def of(self, resource: Resource, kind: type[T]) -> Objects[T]:
        """The objects of one resource."""
        return Objects(
            self._transport, resource, kind, "other", lambda: REQUEST_SECONDS, misfits=self.misfits
        )

    async def get(self, namespace: str, name: str) -> Seen:
        """One service and its rollout.

        Raises:
            NotFound: there is none of that name.
        """
        service = await self.of(SERVICES, Service).get(namespace, name)
        if service is None:
            raise errors.NotFound(f"ksvc '{namespace}/{name}' does not exist")
        return await self._seen(service)

    async def template(self, namespace: str, name: str) -> Any:
        """The template of a service, whole; None: there is no such service."""
        request = Request("GET", SERVICES.path(namespace, name))
        try:
            return msgspec.json.decode(await self._transport.send(request))["spec"].get("template")
        except NotFound as error:
            if not error.reason:
                raise  # Knative is not there
            return None

    async def base(self) -> Settings:
        """The settings of all services."""
        await self._look()
        return self._ground.settings

    async def list(self, namespace: str = "") -> Sequence[Seen]:
        """The services of a namespace, or of all, whose rollouts are progressive, or were."""
        services, records = await asyncio.gather(
            self.of(SERVICES, Service).list(namespace), self.of(ORCHESTRATORS, Orchestrator).list(namespace)
        )
        recorded = {(each.metadata.namespace, each.metadata.name) for each in records}
        chosen = [
            each
            for each in services
            if each.metadata.labels.get(ENABLED) == "true"
            or (each.metadata.namespace, each.metadata.name) in recorded
        ]
        return sorted(
            await asyncio.gather(*(self._seen(each) for each in chosen)), key=lambda seen: seen.name
        )

    async def _seen(self, service: Service) -> Seen:
        name, namespace = service.metadata.name, service.metadata.namespace
        selector = f"{SERVICE_LABEL}={name}"
        await self._look()
        configuration, route, record = await asyncio.gather(
            self.of(CONFIGURATIONS, Configuration).get(namespace, name),
            self.of(ROUTES, Route).get(namespace, name),
            self.of(ORCHESTRATORS, Orchestrator).get(namespace, name),
        )
        revisions, autoscalers, spas, pods = await asyncio.gather(
            self.of(REVISIONS, Revision).list(namespace, selector),
            self.of(AUTOSCALERS, PodAutoscaler).list(namespace, selector),
            self.of(STAGE_AUTOSCALERS, StageAutoscaler).list(namespace, selector),
            self.of(PODS, Pod).list(namespace, selector),
        )
        ground = self._ground
        settings, wrong = load_config_from_service(ground.settings, service)
        parts = Parts(
            named([configuration] if configuration is not None else []),
            named([route] if route is not None else []),
            named(revisions),
            named(autoscalers),
            named(spas),
            named(pods),
            record,
        )
        found = assembled(
            service,
            service.metadata.uid,
            parts,
            settings=settings,
            bounds_on_revisions=ground.bounds_on_revisions,
            now=self._clock.now(),
        )
        return Seen(found, ground.problem or "; ".join(wrong))

    async def _look(self) -> None:
        """Knative's version and settings, once; a person may lack the right to read them."""
        if not self._ground.found.is_set():
            await self._ground.look()
