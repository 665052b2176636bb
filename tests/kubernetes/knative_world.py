"""The objects of a namespace as the stand-in for Knative sees and writes them, and what people do there."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec

from farmd.kubernetes.client import Objects
from farmd.kubernetes.errors import Conflict, NotFound
from farmd.kubernetes.informer import Informer, Source
from farmd.kubernetes.knative.objects import (
    GENERATION_LABEL,
    GROUP,
    ORCHESTRATORS,
    REVISIONS,
    SERVICES,
    STAGE_AUTOSCALERS,
    VERSION_LABEL,
    Meta,
)
from farmd.kubernetes.objects import CRDS, PODS, Resource
from farmd.kubernetes.store import ObjectStore
from farmd.kubernetes.transport import ApiRequest, KubernetesTransport
from farmd.rollout.staging import REVISION_LABEL
from farmd.runtime.clock import SystemClock
from tests.fleet import eventually
from tests.kubernetes import knative_rules as rules

CONFIGURATION_LABEL = f"{GROUP}/configuration"
WATCHED = (*rules.KINDS, ORCHESTRATORS, STAGE_AUTOSCALERS, PODS)
CLOCK = SystemClock()
NODE = "nobody"


class Thing(msgspec.Struct, frozen=True):
    """Any object of the API."""

    metadata: Meta
    spec: dict[str, Any] = {}
    status: dict[str, Any] = {}
    data: dict[str, str] = {}

    @property
    def name(self) -> str:
        """Its name."""
        return self.metadata.name


def owned(kind: Resource, owner: Thing, name: str, **more: Any) -> dict[str, Any]:
    """The metadata of an object that belongs to another."""
    reference = {"apiVersion": kind.api_version, "kind": kind.kind, "name": owner.name}
    reference |= {"uid": owner.metadata.uid, "controller": True, "blockOwnerDeletion": True}
    return {"name": name, "ownerReferences": [reference], **more}


def condition(kind: str, value: bool | None, reason: str = "") -> dict[str, str]:
    """A condition of a status."""
    return {"type": kind, "status": "Unknown" if value is None else str(value), "reason": reason}


class World:
    """The objects of one namespace (``stores``), what people do with them, and what a test says happens."""

    def __init__(self, transport: KubernetesTransport, namespace: str, seed: int) -> None:
        self.transport, self.namespace = transport, namespace
        self.rng = random.Random(seed)
        self.version = "1.21.0"
        self.lag, self.digest, self.start = 0.0, 0.0, 0.0
        self.load: Counter[str] = Counter()
        self.broken: set[str] = set()
        self.room, self.stubborn = 10_000, False
        self.restarts: Counter[str] = Counter()
        self.stores: dict[Resource, ObjectStore[Thing]] = {}
        self.objects: dict[Resource, Objects[Thing]] = {}
        self.informers: list[Informer[Thing]] = []
        self.changed = asyncio.Event()
        for kind in WATCHED:
            store = self.stores[kind] = ObjectStore()
            store.listen(self)
            self.objects[kind] = Objects(transport, kind, Thing, "other", lambda: 60.0, store)
            source = Source(kind, namespace)
            self.informers.append(Informer(transport, source, Thing, store, clock=CLOCK, rng=self.rng))
        self.templates: dict[str, frozenset[tuple[str, str]]] = {}
        self.born: dict[str, float] = {}
        self.placed: dict[str, float] = {}

    # -- the listener of the stores --------------------------------------------------------------
    def added(self, new: Thing) -> None:
        """Look again."""
        self.changed.set()

    def updated(self, old: Thing, new: Thing) -> None:
        """Look again."""
        self.changed.set()

    def deleted(self, last: Thing) -> None:
        """Look again."""
        self.changed.set()

    def reset(self) -> None:
        """Look again."""
        self.changed.set()

    # -- what people do --------------------------------------------------------------------------
    async def push(self, name: str, image: str = "web:1", **options: Any) -> None:
        """Create a service that is rolled progressively, or give it another template.

        ``least`` and ``most`` are its scales, ``annotations`` more of the template, ``labels`` the service's.
        """
        scales = {"min-scale": options.get("least"), "max-scale": options.get("most")}
        annotations = {
            f"{rules.SCALING}/{key}": str(value) for key, value in scales.items() if value is not None
        }
        annotations |= options.get("annotations", {})
        template = {"metadata": {"annotations": annotations}, "spec": {"containers": [{"image": image}]}}
        labels = options.get("labels", {"rollout.farmd.io/enabled": "true"})
        if self.stores[SERVICES].get(self.namespace, name) is None:
            body = {"metadata": {"name": name, "labels": labels}, "spec": {"template": template}}
            await self.objects[SERVICES].create(self.namespace, body)
            return
        # Fields of the former template must go: a merge patch keeps them, so the annotations are replaced.
        ops = [{"op": "replace", "path": "/spec/template", "value": template}]
        await self.json_patch(SERVICES, name, ops)

    async def pin(self, name: str, *traffic: dict[str, Any], manager: str = "kn") -> None:
        """Write a service's traffic as a tool of that name."""
        ops = [{"op": "add", "path": "/spec/traffic", "value": list(traffic)}]
        await self.json_patch(SERVICES, name, ops, manager)

    async def json_patch(self, kind: Resource, name: str, ops: list[Any], manager: str = "kubectl") -> None:
        """Send a JSON patch."""
        path, body = kind.path(self.namespace, name), msgspec.json.encode(ops)
        params = (("fieldManager", manager),)
        await self.transport.send(
            ApiRequest("PATCH", path, params, body=body, content_type="application/json-patch+json")
        )

    async def upgrade(self, version: str) -> None:
        """Let Knative be of another version: its definitions first, as its files are applied."""
        label = {"metadata": {"labels": {VERSION_LABEL: version or None}}}
        for kind in rules.KINDS:
            path, body = CRDS.path(name=str(kind)), msgspec.json.encode(label)
            await self.transport.send(
                ApiRequest("PATCH", path, body=body, content_type="application/merge-patch+json")
            )
        self.version = version
        self.templates.clear()  # whatever that changes is Knative's own doing

    async def evict(self, revision: str) -> None:
        """Delete a pod as an eviction does: one that ends by nothing else, as the server has it, because a
        second deletion would change nothing. The stores know of it then.

        Raises:
            LookupError: no pod is left that does not end.
        """
        while True:
            found = await self.objects[PODS].list(self.namespace, f"{REVISION_LABEL}={revision}")
            alive = {each.name: each for each in found if not each.metadata.terminating}
            if not alive:
                raise LookupError(f"no pod of {revision} is left that does not end")
            pod = alive[min(alive)]
            with suppress(NotFound, Conflict):  # it changed meanwhile, and may end
                await self._delete(PODS, pod, 30, resourceVersion=pod.metadata.resource_version)
                break

        async def known() -> bool:
            there = self.stores[PODS].get(self.namespace, pod.name)
            return there is None or there.metadata.uid != pod.metadata.uid or there.metadata.terminating

        await eventually(known, what=f"the end of {pod.name}")

    def pods(self, revision: str) -> list[Thing]:
        """The pods of a revision, those that end included."""
        pods = [each for each in self.stores[PODS] if each.metadata.labels.get(REVISION_LABEL) == revision]
        return sorted(pods, key=lambda each: each.name)

    def ready(self, revision: str) -> list[Thing]:
        """The pods of a revision that serve."""
        return [each for each in self.pods(revision) if not each.metadata.terminating and serves(each)]

    # -- reading and writing ---------------------------------------------------------------------
    def each(self, kind: Resource) -> list[Thing]:
        return [each for each in self.stores[kind] if not each.metadata.terminating]

    def revisions(self, configuration: str) -> list[Thing]:
        """The revisions of a Configuration, the oldest first."""
        those = (
            each
            for each in self.each(REVISIONS)
            if each.metadata.labels[CONFIGURATION_LABEL] == configuration
        )
        return sorted(those, key=lambda each: int(each.metadata.labels[GENERATION_LABEL]))

    async def put(self, kind: Resource, meta: dict[str, Any], spec: Mapping[str, Any]) -> None:
        """Create an object, or overwrite its spec and annotations where they differ."""
        there = self.stores[kind].get(self.namespace, meta["name"])
        if there is None:
            manager = (("fieldManager", "controller"),)
            await self.objects[kind].create(self.namespace, {"metadata": meta, "spec": spec}, params=manager)
            return
        ops = [{"op": "add", "path": "/spec", "value": spec}] if there.spec != spec else []
        if there.metadata.annotations != meta["annotations"]:
            ops.append({"op": "add", "path": "/metadata/annotations", "value": meta["annotations"]})
        if ops:
            await self.json_patch(kind, meta["name"], ops, "controller")

    async def say(self, kind: Resource, of: Thing, status: dict[str, Any]) -> None:
        """Write a status where it differs."""
        if any(of.status.get(field) != value for field, value in status.items()):
            await self.objects[kind].patch(self.namespace, of.name, {"status": status}, subresource="status")

    async def remove(self, pod: Thing, grace: int) -> None:
        await self.delete(PODS, pod, grace)

    async def delete(self, kind: Resource, each: Thing, grace: int) -> None:
        with suppress(NotFound, Conflict):
            await self._delete(kind, each, grace)

    async def _delete(self, kind: Resource, each: Thing, grace: int, **conditions: str) -> None:
        options = {"preconditions": {"uid": each.metadata.uid} | conditions, "gracePeriodSeconds": grace}
        path, body = kind.path(self.namespace, each.name), msgspec.json.encode(options)
        await self.transport.send(ApiRequest("DELETE", path, body=body))


def says(thing: Thing, name: str) -> str:
    return next((each["status"] for each in thing.status.get("conditions", ()) if each["type"] == name), "")


def serves(pod: Thing) -> bool:
    return says(pod, "Ready") == "True"
