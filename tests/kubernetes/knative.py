"""Knative's controllers, autoscaler, kubelet and garbage collector, played in one namespace.

    async with playing(transport, namespace) as knative:
        await knative.push("web", least=10)

They act by ``knative_rules`` on a real API server with definitions of Knative's kinds. Each pass runs them in
another order, and with ``lag`` some of them not at all, as the random numbers say. What a test says happens:
pods of ``broken`` revisions never get ready, no more than ``room`` pods find a place, those that are deleted
stay while ``stubborn``, ``load`` is how many pods a service's requests need. With ``digest`` a new revision
waits that many seconds for its autoscaler; a pod is ready ``start`` seconds after it found a place.
``restarts`` counts changes of pods' templates: it stays empty.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from farmd.kubernetes.errors import Conflict, KubernetesError, NotFound, Unavailable, UnknownOutcome
from farmd.kubernetes.knative.objects import (
    AUTOSCALERS,
    CONFIGURATIONS,
    GENERATION_LABEL,
    ORCHESTRATORS,
    REVISIONS,
    ROUTES,
    SERVICES,
    STAGE_AUTOSCALERS,
)
from farmd.kubernetes.objects import CRDS, PODS, Resource
from farmd.kubernetes.transport import ApiRequest, KubernetesTransport
from farmd.rollout.staging import REVISION_LABEL, SERVICE_LABEL
from tests.fleet import LIMIT
from tests.kubernetes import knative_rules as rules
from tests.kubernetes.knative_world import (
    CLOCK,
    CONFIGURATION_LABEL,
    NODE,
    Thing,
    World,
    condition,
    owned,
    says,
    serves,
)


class Knative(World):
    """See above."""

    # -- the loop --------------------------------------------------------------------------------
    async def run(self) -> None:
        """Play until cancelled."""
        for informer in self.informers:
            await informer.until_synced()
        while True:
            await self.changed.wait()
            self.changed.clear()
            await CLOCK.sleep(self.rng.uniform(0.0, 0.01))
            parts = [
                self._service,
                self._configuration,
                self._revision,
                self._route,
                self._scale,
                self._kubelet,
            ]
            self.rng.shuffle(parts)
            for part in (self._collect, *parts):
                if part in parts and self.rng.random() < self.lag:
                    self._again()
                    continue
                try:
                    await part()
                except (NotFound, Conflict):
                    pass  # what changed it wakes the loop
                except (Unavailable, UnknownOutcome):
                    self._again()

    def _again(self) -> None:
        """Run all parts soon, whether anything changes or not."""
        asyncio.get_running_loop().call_later(0.02, self.changed.set)

    # -- the controllers -------------------------------------------------------------------------
    async def _service(self) -> None:
        """A service's Configuration and Route are overwritten by what the service says."""
        for service in self.each(SERVICES):
            meta = service.metadata
            labels, notes = {SERVICE_LABEL: service.name}, dict(meta.annotations)
            entries = service.spec.get("traffic") or [{"latestRevision": True, "percent": 100}]
            traffic = [
                entry if entry.get("revisionName") else entry | {"configurationName": service.name}
                for entry in entries
            ]
            specs = {CONFIGURATIONS: {"template": service.spec["template"]}, ROUTES: {"traffic": traffic}}
            for kind, spec in specs.items():
                await self.put(
                    kind, owned(SERVICES, service, service.name, labels=labels, annotations=notes), spec
                )
            await self.say(SERVICES, service, {"observedGeneration": meta.generation})

    async def _configuration(self) -> None:
        """Each generation of a Configuration becomes a Revision."""
        for found in self.each(CONFIGURATIONS):
            generation, those = str(found.metadata.generation), self.revisions(found.name)
            if not any(each.metadata.labels[GENERATION_LABEL] == generation for each in those):
                await self._new_revision(found, generation)
                continue
            ready = [each for each in those if says(each, "Ready") == "True"]
            status = {"observedGeneration": found.metadata.generation}
            status |= {"latestCreatedRevisionName": those[-1].name}
            status |= {"latestReadyRevisionName": ready[-1].name} if ready else {}
            await self.say(CONFIGURATIONS, found, status)

    async def _new_revision(self, configuration: Thing, generation: str) -> None:
        template = configuration.spec["template"]
        labels = dict.fromkeys((SERVICE_LABEL, CONFIGURATION_LABEL), configuration.name)
        labels |= {GENERATION_LABEL: generation, rules.STATE: "pending"}
        notes = template.get("metadata", {}).get("annotations", {})
        name = rules.new_revision_name(msgspec.to_builtins(configuration))
        await self.put(
            REVISIONS,
            owned(CONFIGURATIONS, configuration, name, labels=labels, annotations=notes),
            template["spec"],
        )

    async def _revision(self) -> None:
        """A Revision has an autoscaler, and restarts its pods when their template changes."""
        for revision in self.each(REVISIONS):
            meta = revision.metadata
            template = rules.template_of(msgspec.to_builtins(meta), self.version)
            if self.templates.setdefault(meta.uid, template) != template:
                self.templates[meta.uid] = template
                self.restarts[revision.name] += 1
            due = self.born.setdefault(meta.uid, CLOCK.mono()) + self.digest - CLOCK.mono()
            if due > 0:
                asyncio.get_running_loop().call_later(due, self.changed.set)
                continue
            state = {"active": "Reachable", "reserve": "Unreachable"}.get(meta.labels[rules.STATE], "")
            there = self.stores[AUTOSCALERS].get(self.namespace, revision.name)
            labels = {SERVICE_LABEL: meta.labels[SERVICE_LABEL], REVISION_LABEL: revision.name}
            notes = rules.scaling(meta.annotations)
            if there is not None and rules.minor(self.version) < 21:
                notes = there.metadata.annotations
            owner = owned(REVISIONS, revision, revision.name, labels=labels, annotations=notes)
            await self.put(AUTOSCALERS, owner, {"reachability": state})
            await self.say(REVISIONS, revision, {"conditions": self._health(revision)})

    def _health(self, revision: Thing) -> list[dict[str, str]]:
        """The conditions of a Revision; one that was ready stays so until its pods break."""
        pods = self.pods(revision.name)
        autoscaler = self.stores[AUTOSCALERS].get(self.namespace, revision.name)
        least, _ = _bounds(autoscaler) if autoscaler is not None else (0, 0)
        was = says(revision, "Ready") == "True"
        unplaced = any("nodeName" not in each.spec for each in pods)
        room = None if not pods and not was else not unplaced or was
        health: bool | None = was or len(self.ready(revision.name)) >= max(1, least) or None
        if revision.name in self.broken and pods:
            health = False
        ready = False if health is False or room is False else health
        return [
            condition("ContainerHealthy", health, "ExitCode1" if health is False else ""),
            condition("Ready", ready),
            condition("ResourcesAvailable", room, "Unschedulable" if room is False else ""),
        ]

    async def _route(self) -> None:
        """A Route goes to ready revisions, or stays as it was; what it names is reachable."""
        for route in self.each(ROUTES):
            those = self.revisions(route.name)
            ready = [each.name for each in those if says(each, "Ready") == "True"]
            found = rules.assigned(route.spec.get("traffic", ()), ready, ready[-1] if ready else "")
            status: dict[str, Any] = {"observedGeneration": route.metadata.generation}
            status["conditions"] = [condition("AllTrafficAssigned", found is not None)]
            await self.say(ROUTES, route, status | ({} if found is None else {"traffic": found}))
            created = those[-1].name if those else ""
            names = rules.routed({"spec": route.spec, "status": route.status}, created)
            for revision in those:
                before = revision.metadata.labels[rules.STATE]
                after = "active" if revision.name in names else "reserve" if before == "active" else before
                if after != before:
                    labels = {"metadata": {"labels": {rules.STATE: after}}}
                    await self.objects[REVISIONS].patch(self.namespace, revision.name, labels)

    async def _scale(self) -> None:
        """An autoscaler's status, and as many pods as it wants."""
        for found in self.each(AUTOSCALERS):
            revision = self.stores[REVISIONS].get(self.namespace, found.name)
            if revision is None:
                continue
            kept = says(revision, "Ready") != "True" or rules.never_empty(found.metadata.annotations)
            least, most = _bounds(found)
            wanted = rules.desired(self._share(revision), least, most, kept=kept)
            known = "desiredScale" in found.status
            status = {"desiredScale": wanted if known else -1, "actualScale": len(self.ready(found.name))}
            await self.say(AUTOSCALERS, found, status)
            pods = [each for each in self.pods(found.name) if not each.metadata.terminating]
            names = {each.name for each in self.pods(found.name)}
            free = (f"{found.name}-{i}" for i in range(10_000) if f"{found.name}-{i}" not in names)
            for _ in range(wanted - len(pods)):
                await self._new_pod(revision, next(free))
            unready = sorted(pods, key=lambda each: (serves(each), each.name))
            for pod in unready[: max(0, len(pods) - wanted)]:
                await self.remove(pod, 30)

    def _share(self, revision: Thing) -> float:
        """The pods that a revision's requests need."""
        name = revision.metadata.labels[SERVICE_LABEL]
        route = self.stores[ROUTES].get(self.namespace, name)
        entries = route.status.get("traffic", ()) if route is not None else ()
        percent = sum(each.get("percent", 0) for each in entries if each["revisionName"] == revision.name)
        return self.load[name] * percent / 100

    async def _new_pod(self, revision: Thing, name: str) -> None:
        meta = revision.metadata
        labels = {key: meta.labels[key] for key in (SERVICE_LABEL, CONFIGURATION_LABEL)}
        owner = owned(REVISIONS, revision, name, labels=labels | {REVISION_LABEL: revision.name})
        body = {"metadata": owner, "spec": {"containers": [{"name": "main", "image": "none"}]}}
        await self.objects[PODS].create(self.namespace, body)

    async def _kubelet(self) -> None:
        """Pods find a place while there is room, run, and end."""
        used = sum("nodeName" in pod.spec for pod in self.stores[PODS])
        for pod in sorted(self.stores[PODS], key=lambda each: int(each.metadata.resource_version)):
            revision = pod.metadata.labels.get(REVISION_LABEL, "")
            if "nodeName" not in pod.spec:
                if used >= self.room:
                    full = condition("PodScheduled", False, "Unschedulable") | {"message": "Insufficient cpu"}
                    await self.say(PODS, pod, {"conditions": [full]})
                    continue
                used += 1
                target = {"target": {"name": NODE}, "metadata": {"name": pod.name}}
                path, body = PODS.path(self.namespace, pod.name, "binding"), msgspec.json.encode(target)
                await self.transport.send(ApiRequest("POST", path, body=body))
            elif not pod.metadata.terminating:
                if self._early(pod):
                    continue
                healthy = revision not in self.broken
                await self.say(PODS, pod, {"phase": "Running", "conditions": [condition("Ready", healthy)]})
            elif not self.stubborn:
                await self.remove(pod, 0)

    def _early(self, pod: Thing) -> bool:
        """Whether a pod has not started yet; the pass after its start sees to it."""
        due = self.placed.setdefault(pod.metadata.uid, CLOCK.mono()) + self.start - CLOCK.mono()
        if due > 0:
            asyncio.get_running_loop().call_later(due, self.changed.set)
        return due > 0

    async def _collect(self) -> None:
        """Objects whose owner is gone follow it."""
        uids = {each.metadata.uid for store in self.stores.values() for each in store}
        for kind, store in self.stores.items():
            for each in store:
                owner = each.metadata.controller
                if owner is not None and owner.uid not in uids and not each.metadata.terminating:
                    await self.delete(kind, each, 0)


def _bounds(autoscaler: Thing) -> tuple[int, int]:
    """The least and the most pods that count: the least of a revision that no route reaches does not."""
    reachable = autoscaler.spec.get("reachability") != "Unreachable"
    return rules.bounds(autoscaler.metadata.annotations, reachable=reachable)


@asynccontextmanager
async def playing(
    transport: KubernetesTransport, namespace: str, *, version: str = "1.21.0", seed: int = 1
) -> AsyncIterator[Knative]:
    """Knative of a version at work in a namespace; one of its controllers that fell fails the test."""
    await define(transport, version)
    knative = Knative(transport, namespace, seed)
    knative.version = version
    tasks = [asyncio.create_task(each.run()) for each in (*knative.informers, knative)]
    try:
        yield knative
        for task in tasks:
            assert not task.done(), task.exception()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def define(transport: KubernetesTransport, version: str) -> None:
    """Let the API server know Knative's kinds, of that version."""
    for each in rules.definitions(version):
        path = CRDS.path(name=each["metadata"]["name"])
        params = (("fieldManager", "knative"), ("force", "true"))
        body = msgspec.json.encode(each)
        await transport.send(
            ApiRequest("PATCH", path, params, body=body, content_type="application/apply-patch+yaml")
        )
    for kind in (*rules.KINDS, ORCHESTRATORS, STAGE_AUTOSCALERS):
        async with asyncio.timeout(LIMIT):
            while not await _serving(transport, kind):
                await CLOCK.sleep(0.05)


async def _serving(transport: KubernetesTransport, kind: Resource) -> bool:
    try:
        await transport.send(ApiRequest("GET", kind.path(), (("limit", "1"),)))
    except KubernetesError:
        return False
    return True
