"""What a farm watches of Knative in one namespace, or in all: the objects of each service, and which services
are work.

Services bear a label, so that the watch is selective; whatever belongs to one is found by Knative's labels.
A service whose record is not released is work, too, until its bounds are what people gave them.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from farmd.kubernetes.client import Objects
from farmd.kubernetes.informer import Informer, Source
from farmd.kubernetes.progressive.assembly import service_of
from farmd.kubernetes.progressive.objects import (
    ENABLED,
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
from farmd.kubernetes.store import Key, Object, ObjectStore
from farmd.kubernetes.transport import KubernetesTransport
from farmd.rollout.staging import SERVICE_LABEL
from farmd.runtime.tasks import until_one_fails
from store.ports import Clock, Rng

T = TypeVar("T", bound=Object)
Told = Callable[[str, str], None]
"""Namespace and name of the service that changed."""


class Watched(Generic[T]):
    """The objects of one resource, by the service that they belong to."""

    def __init__(self, store: ObjectStore[T], objects: Objects[T], informer: Informer[T], told: Told) -> None:
        self.store, self.objects, self.informer = store, objects, informer
        self._told = told
        self._by_service: dict[Key, dict[str, T]] = {}
        store.listen(self)

    def of(self, namespace: str, service: str) -> Mapping[str, T]:
        """The objects of a service, by name."""
        return self._by_service.get((namespace, service), {})

    def added(self, new: T) -> None:
        """Enter it."""
        key = service_of(new)
        self._by_service.setdefault(key, {})[new.metadata.name] = new
        self._told(*key)

    def updated(self, old: T, new: T) -> None:
        """Enter the newer version."""
        if service_of(old) != service_of(new):
            self.deleted(old)
        self.added(new)

    def deleted(self, last: T) -> None:
        """Forget it."""
        key = service_of(last)
        found = self._by_service.get(key, {})
        found.pop(last.metadata.name, None)
        if not found:
            self._by_service.pop(key, None)
        self._told(*key)

    def reset(self) -> None:
        """Each change of a reset is told by itself."""


class KnativeWatches:
    """The watches of one namespace (empty: of all); ``validity``: see ``Objects``."""

    def __init__(
        self,
        namespace: str,
        transport: KubernetesTransport,
        validity: Callable[[], float],
        told: Told,
        *,
        clock: Clock,
        rng: Rng,
    ) -> None:
        def watch(kind: type[T], selector: str = SERVICE_LABEL) -> Watched[T]:
            resource = RESOURCES[kind]
            label = resource.plural if resource != SERVICES else "ksvcs"
            store: ObjectStore[T] = ObjectStore()
            objects = Objects(transport, resource, kind, label, validity, store)
            source = Source(resource, namespace, selector, label)
            informer = Informer(transport, source, kind, store, clock=clock, rng=rng)
            return Watched(store, objects, informer, told)

        self.namespace = namespace
        self.services = watch(KnativeService, f"{ENABLED}=true")
        self.orchestrators = watch(Orchestrator, "")
        self.spas = watch(StageAutoscaler)
        self.configurations = watch(Configuration)
        self.routes = watch(KnativeRoute)
        self.revisions = watch(Revision)
        self.autoscalers = watch(PodAutoscaler)
        self.pods = watch(RevisionPod)
        # Other services are asked for by name: the store knows those alone that bear the label.
        self.any_services = Objects(transport, SERVICES, KnativeService, "ksvcs", validity)

    @property
    def informers(self) -> Sequence[Informer[Any]]:
        """Those of all resources."""
        return [each.informer for each in (*self._members(), self.orchestrators, self.services)]

    @property
    def synced(self) -> bool:
        """Whether all resources were read."""
        return all(informer.synced for informer in self.informers)

    def work(self) -> Iterator[Coroutine[Any, Any, None]]:
        """The informers. A service is known once its objects are, so that no farm claims one that it cannot
        see whole.
        """
        for each in self._members():
            yield each.informer.run()
        yield self._after()

    async def _after(self) -> None:
        for each in self._members():
            await each.informer.until_synced()
        await until_one_fails([self.orchestrators.informer.run(), self.services.informer.run()])

    def _members(self) -> Sequence[Watched[Any]]:
        return self.spas, self.configurations, self.routes, self.revisions, self.autoscalers, self.pods
