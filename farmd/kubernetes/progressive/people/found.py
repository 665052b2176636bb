"""Knative Services and their rollouts as the API server has them when a person asks."""

from __future__ import annotations

import asyncio
import builtins
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from farmd.commands.mutation import Call
from farmd.kubernetes.client import Objects
from farmd.kubernetes.errors import NotFound
from farmd.kubernetes.progressive.assembly import ServiceObjects, assembled, service_of
from farmd.kubernetes.progressive.ground import Ground
from farmd.kubernetes.progressive.model import Snapshot
from farmd.kubernetes.progressive.objects import (
    RESOURCES,
    SERVICES,
    Configuration,
    KnativeRoute,
    KnativeService,
    Orchestrator,
    PodAutoscaler,
    Revision,
    RevisionPod,
    StageAutoscaler,
)
from farmd.kubernetes.progressive.settings import Settings, load_config_from_service
from farmd.kubernetes.store import Key, Object
from farmd.kubernetes.transport import REQUEST_SECONDS, ApiRequest, KubernetesTransport
from farmd.overview.owners import holders
from farmd.rollout.staging import SERVICE_LABEL
from farmd.work.status import STUCK
from store import errors
from store.ports import Clock
from store.status import ItemStatus, StatusStore

KIND = "progressive"
T = TypeVar("T", bound=Object)


class FoundService(NamedTuple):
    """A service with all that its rollout reads, what is wrong with settings, the farm that has it, and why
    that farm cannot go on.
    """

    knative: Snapshot
    problem: str = ""
    owner: str = ""
    obstacle: str = ""

    @property
    def name(self) -> str:
        """As people write it: ``shop/web``."""
        return self.knative.service.name

    def with_word_of(self, farms: Farms) -> FoundService:
        """The same with what farms say of it."""
        uid = self.knative.service.metadata.uid
        said = farms.statuses.get(uid)
        stuck = said is not None and said.state in STUCK
        obstacle = said.reason if said is not None and stuck else ""
        return self._replace(owner=farms.owners.get(uid, ""), obstacle=obstacle)


class Farms(NamedTuple):
    """What farms say of services, by uid: who holds the lock, and their statuses."""

    owners: Mapping[str, str]
    statuses: Mapping[str, ItemStatus]


async def told(call: Call) -> Farms:
    """What farms say of all services."""
    owners = await holders(call.client, call.keys, KIND)
    return Farms(owners, await StatusStore(call.client, call.keys, KIND, ItemStatus).list())


class Services:
    """The Knative Services of one cluster; ``misfits`` are lines for objects that do not decode."""

    def __init__(self, transport: KubernetesTransport, clock: Clock, namespace: str) -> None:
        """``namespace``: that of Knative's controllers, where the settings lie."""
        self._transport, self._clock = transport, clock
        self._ground = Ground(transport, namespace, clock)
        self.misfits: builtins.list[str] = []

    def of(self, kind: type[T]) -> Objects[T]:
        """The objects of one type."""
        resource, misfits = RESOURCES[kind], self.misfits
        return Objects(self._transport, resource, kind, "other", lambda: REQUEST_SECONDS, misfits=misfits)

    async def get(self, namespace: str, name: str) -> FoundService:
        """One service and its rollout.

        Raises:
            NotFound: there is none of that name.
        """
        service = await self.of(KnativeService).get(namespace, name)
        if service is None:
            raise errors.NotFound(f"ksvc '{namespace}/{name}' does not exist")
        record = await self.of(Orchestrator).get(namespace, name)
        parts = await self._parts(namespace, f"{SERVICE_LABEL}={name}")
        return self._seen(service, record, parts((namespace, name)))

    async def template(self, namespace: str, name: str) -> Any:
        """The template of a service, whole; None: there is no such service."""
        request = ApiRequest("GET", SERVICES.path(namespace, name))
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

    async def list(self, namespace: str = "") -> Sequence[FoundService]:
        """The services of a namespace, or of all, whose rollouts are progressive, or were."""
        services, records = await asyncio.gather(
            self.of(KnativeService).list(namespace), self.of(Orchestrator).list(namespace)
        )
        return [
            seen
            for seen in await self.seen(services, records, namespace)
            if seen.knative.service.enabled or seen.knative.orchestrator is not None
        ]

    async def seen(
        self, services: Iterable[KnativeService], records: Iterable[Orchestrator], namespace: str = ""
    ) -> Sequence[FoundService]:
        """Services and records that were read, with all that belongs to them, by name."""
        parts = await self._parts(namespace, SERVICE_LABEL)
        recorded = {(each.metadata.namespace, each.metadata.name): each for each in records}
        found = [
            self._seen(service, recorded.get(key), parts(key))
            for service in services
            for key in [(service.metadata.namespace, service.metadata.name)]
        ]
        return sorted(found, key=lambda seen: seen.name)

    async def _parts(self, namespace: str, selector: str) -> Callable[[Key], ServiceObjects]:
        """What belongs to each service."""
        await self._look()

        async def grouped(kind: type[T]) -> defaultdict[Key, dict[str, T]]:
            """The objects of one type by their service, and then by their own names."""
            found: defaultdict[Key, dict[str, T]] = defaultdict(dict)
            for each in await self.of(kind).list(namespace, selector):
                found[service_of(each)][each.metadata.name] = each
            return found

        configurations, routes, revisions, autoscalers, spas, pods = await asyncio.gather(
            grouped(Configuration),
            grouped(KnativeRoute),
            grouped(Revision),
            grouped(PodAutoscaler),
            grouped(StageAutoscaler),
            grouped(RevisionPod),
        )
        return lambda key: ServiceObjects(
            configurations[key], routes[key], revisions[key], autoscalers[key], spas[key], pods[key]
        )

    def _seen(
        self, service: KnativeService, record: Orchestrator | None, parts: ServiceObjects
    ) -> FoundService:
        ground = self._ground
        settings, wrong = load_config_from_service(ground.settings, service)
        found = assembled(
            service,
            service.metadata.uid,
            record,
            parts,
            settings=settings,
            bounds_on_revisions=ground.bounds_on_revisions,
            now=self._clock.now(),
        )
        return FoundService(found, ground.problem or "; ".join(wrong))

    async def _look(self) -> None:
        """Knative's version and settings, once; a person may lack the right to read them."""
        if not self._ground.found.is_set():
            await self._ground.look()
