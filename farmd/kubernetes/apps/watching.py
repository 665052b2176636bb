"""What a farm watches of the objects that bear apps' labels: one watch for each resource that apps name.

It tells the apps of changes and says which version of an object is the newest, so an idle app costs no
request; the answer to an own write is the newest until the watch comes to another. It is no evidence: what it
does not show is read.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from farmd.kubernetes.apps.marks import LABEL
from farmd.kubernetes.client import Objects
from farmd.kubernetes.informer import Informer, Source
from farmd.kubernetes.objects import ObjectMeta, Resource
from farmd.kubernetes.store import ObjectStore
from farmd.kubernetes.transport import KubernetesTransport
from farmd.runtime.tasks import end
from farmd.runtime.wake import Wake
from store.apps import TypedReference
from store.ports import Clock, Rng


class Marked(msgspec.Struct, frozen=True, kw_only=True):
    """An object with an app's label: its metadata alone."""

    metadata: ObjectMeta


class Watching:
    """The watches of one farm; ``namespaces`` are those that it works in, none: all. Close it at the end."""

    def __init__(
        self,
        transport: KubernetesTransport,
        namespaces: Sequence[str],
        clock: Clock,
        rng: Rng,
    ) -> None:
        self._transport, self._namespaces = transport, namespaces or ("",)
        self._clock, self._rng = clock, rng
        self._watches: dict[tuple[Resource, str], Informer[Marked]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._wakes: dict[str, Wake] = {}

    async def close(self) -> None:
        """End all watches."""
        await end(*self._tasks)

    def attach(self, app: str, wake: Wake) -> None:
        """Set ``wake`` when an object with the app's label changes."""
        self._wakes[app] = wake

    def detach(self, app: str) -> None:
        """The app's worker ended."""
        self._wakes.pop(app, None)

    def watch(self, resource: Resource) -> None:
        """Watch a resource from now on."""
        for namespace in self._namespaces if resource.namespaced else ("",):
            if (resource, namespace) in self._watches:
                continue
            store = ObjectStore(owner=_app_of)
            store.listen(self)
            source = Source(resource, namespace, LABEL, metadata=True)
            made = Informer(self._transport, source, Marked, store, clock=self._clock, rng=self._rng)
            self._watches[resource, namespace] = made
            self._tasks.append(asyncio.create_task(made.run()))

    def version(self, resource: Resource, ref: TypedReference) -> str:
        """The newest version of an object from a watch; empty: none, or in doubt."""
        for informer in self._of(resource):
            found = informer.store.get(ref.namespace, ref.name)
            if found is not None and informer.synced and not informer.doubt:
                return found.metadata.resource_version
        return ""

    def lacks(self, resource: Resource, ref: TypedReference, app: str) -> bool:
        """Whether a watch proves that no object of that name bears the app's label."""
        watches = [each for each in self._of(resource) if each.source.namespace in ("", ref.namespace)]
        shown = (each.store.get(ref.namespace, ref.name) for each in watches)
        bears = any(found is not None and _app_of(found) == app for found in shown)
        return not bears and any(each.synced and not each.doubt for each in watches)

    def own(self, resource: Resource, written: Mapping[str, Any]) -> None:
        """Note an object from the answer to an own write, unless the watch has shown that version or a later
        one.
        """
        found = msgspec.convert(written, Marked)
        for informer in self._of(resource):
            if informer.source.namespace in ("", found.metadata.namespace):
                informer.store.own(found)

    async def names(self, resource: Resource, namespace: str, most: int) -> Collection[str] | None:
        """The names of all objects of a resource in a namespace, with a label or without, as the server has
        them now; None: there are more than ``most``, or the farm does not watch this namespace.

        Raises:
            KubernetesError: the server does not list them now.
        """
        watches = (each for each in self._of(resource) if each.source.namespace in ("", namespace))
        if all(each.doubt for each in watches):
            return None
        objects = Objects[Any](self._transport, resource, dict, "other", lambda: math.inf)
        return await objects.names(namespace, most)

    def marked(self, resources: Iterable[Resource], app: str) -> Iterable[tuple[Resource, ObjectMeta]]:
        """The objects of these resources that bear an app's label; none of a kind that is not served."""
        for resource in resources:
            for informer in self._of(resource):
                unserved = informer.doubt and not informer.denied
                for each in () if unserved else informer.store.owned_by(app):
                    yield resource, each.metadata

    def _of(self, resource: Resource) -> Iterable[Informer[Marked]]:
        return (informer for (each, _), informer in self._watches.items() if each == resource)

    # -- a listener of the stores ----------------------------------------------------------------
    def added(self, new: Any) -> None:
        """An object that was not known."""
        self._tell(new)

    def updated(self, old: Any, new: Any) -> None:
        """A newer version; the label of its former app may have gone."""
        self._tell(old)
        self._tell(new)

    def deleted(self, last: Any) -> None:
        """An object is gone, or bears no label any more."""
        self._tell(last)

    def reset(self) -> None:
        """The server went back to an earlier state."""
        for wake in self._wakes.values():
            wake.set()

    def _tell(self, found: Marked) -> None:
        wake = self._wakes.get(_app_of(found))
        if wake is not None:
            wake.set()


def _app_of(found: Marked) -> str:
    """The app that an object's label names; empty: it has none."""
    return found.metadata.labels.get(LABEL, "")
