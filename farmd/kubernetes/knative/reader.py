"""Reads the facts of one service from the watches; it decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from farmd.farm.plan import Item
from farmd.kubernetes.client import Objects
from farmd.kubernetes.informer import Informer, Source
from farmd.kubernetes.knative.facts import ServiceObjects, Snapshot, assembled, owner, service_of
from farmd.kubernetes.knative.ground import Ground
from farmd.kubernetes.knative.objects import (
    ENABLED,
    RELEASED,
    RESOURCES,
    SERVICES,
    Configuration,
    KnativeRoute,
    KnativeService,
    Meta,
    Orchestrator,
    PodAutoscaler,
    Revision,
    RevisionPod,
    StageAutoscaler,
)
from farmd.kubernetes.knative.settings import load_config_from_service
from farmd.kubernetes.store import Key, Object, ObjectStore, version_of
from farmd.kubernetes.transport import KubernetesTransport
from farmd.rollout.staging import SERVICE_LABEL
from farmd.runtime.tasks import until_one_fails
from store.ports import Clock, Rng

# What a farm watches of Knative in one namespace, or in all: the objects of each service, and which
# services are work.
#
# Services bear a label, so that the watch is selective; whatever belongs to one is found by Knative's
# labels. A service whose record is not released is work, too, until its bounds are what people gave them.

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


# Knative Services as items of work: their uids, from watches of all namespaces that farms work in.


@dataclass(frozen=True, slots=True)
class Where:
    """A service, and where it is watched."""

    watches: KnativeWatches
    namespace: str
    name: str


class ServiceItems:
    """The items of all namespaces (``farmd.farm.kind.Items``)."""

    def __init__(self, needs: tuple[str, ...]) -> None:
        self.known: dict[str, Where] = {}
        self.watches: Sequence[KnativeWatches] = ()
        self._needs = needs
        self._items: dict[str, Item] = {}
        self._uids: dict[tuple[str, str], set[str]] = {}
        self._subscribers: list[Callable[[set[str], bool], None]] = []

    def items(self) -> Mapping[str, Item]:
        """All services that are work."""
        return self._items

    def trusted(self) -> bool:
        """Whether every service was known once: a list that failed proves nothing."""
        return bool(self.watches) and all(each.synced for each in self.watches)

    def subscribe(self, changed: Callable[[set[str], bool], None]) -> None:
        """Call back with the changed items, and with whether the change can affect claiming."""
        self._subscribers.append(changed)

    def subscribe_gone(self, gone: Callable[[set[str]], None]) -> None:
        """Call back with the items that are gone."""
        self.subscribe(lambda changed, _: gone(changed - self._items.keys()))

    def look(self, namespace: str, name: str) -> None:
        """Something of a service changed: which items there are of its name now."""
        watches = next((each for each in self.watches if each.namespace in ("", namespace)), None)
        if watches is None:
            return
        found = {item.id: item for item in self._found(watches, namespace, name)}
        before = self._uids.get((namespace, name), set())
        self._uids[namespace, name] = set(found)
        if not found:
            del self._uids[namespace, name]
        matters = False
        for uid in before | found.keys():
            old, new = self._items.get(uid), found.get(uid)
            matters = matters or old is None or new is None or not old.claimed_like(new)
            if new is None:
                self._items.pop(uid, None)
                self.known.pop(uid, None)
            else:
                self._items[uid] = new
                self.known[uid] = Where(watches, namespace, name)
        if changed := before | found.keys():
            for callback in self._subscribers:
                callback(changed, matters)

    def of(self, namespace: str, name: str) -> Iterable[str]:
        """The items of that name: two while one follows another that is not released."""
        return self._uids.get((namespace, name), ())

    def _found(self, watches: KnativeWatches, namespace: str, name: str) -> list[Item]:
        service = watches.services.store.get(namespace, name)
        record = watches.orchestrators.store.get(namespace, name)
        found = []
        if record is not None and (uid := owner(record)) and RELEASED not in record.metadata.annotations:
            found.append(Item(uid, version_of(record), {}, self._needs))
        if service is not None:
            meta = service.metadata
            found.append(Item(meta.uid, version_of(service), meta.labels, self._needs))
        return found


# The facts about one service, from the watches: it decides nothing.


async def read(
    where: Where, item: str, ground: Ground, *, frozen: str | None, risen: float, now: float
) -> tuple[Snapshot, tuple[str, ...]]:
    """The service at one moment, and what is wrong with its annotations."""
    watches, key = where.watches, (where.namespace, where.name)
    service = await _service(where, item)
    settings, wrong = load_config_from_service(ground.settings, service)
    parts = ServiceObjects(
        watches.configurations.of(*key),
        watches.routes.of(*key),
        watches.revisions.of(*key),
        watches.autoscalers.of(*key),
        watches.spas.of(*key),
        watches.pods.of(*key),
    )
    found = assembled(
        service,
        item,
        watches.orchestrators.store.get(*key),
        parts,
        settings=settings,
        bounds_on_revisions=ground.bounds_on_revisions,
        frozen=frozen,
        risen=risen,
        now=now,
    )
    return found, wrong


async def _service(where: Where, item: str) -> KnativeService:
    """The service; one that lost its label is asked for, and of one that is gone only its name is left."""
    found = where.watches.services.store.get(where.namespace, where.name)
    if found is None or found.metadata.uid != item:
        found = await where.watches.any_services.get(where.namespace, where.name, item)
    if found is None or found.metadata.uid != item:
        return KnativeService(metadata=Meta(name=where.name, namespace=where.namespace))
    return found
