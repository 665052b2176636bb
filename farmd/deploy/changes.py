"""Operations become changes of pods that one transaction can carry out (``ports.Client`` of a farm)."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from farmd.deploy.model import ServiceSpec, VolumeSpec
from farmd.deploy.noun import owner_noun
from farmd.deploy.operations import Operation
from farmd.deploy.ports import Client
from farmd.deploy.snapshot import Sight, mark
from farmd.pods.changes import Change, NodeChanges, grouped, removal, repair, reservations, wanted
from farmd.work.context import Context
from scheduler.model import FleetView, Request
from scheduler.requirement import compile_request, next_instance
from store.deployments import DEPLOYMENT_LABEL, SERVICE_LABEL
from store.manifests import Manifest
from store.pods import Place, Pod


class Collector(Client):
    """Makes of each operation on one service the change that carries it out.

    ``view`` is the fleet that places are chosen from; a pod's instance is the first free one of its machine.
    """

    def __init__(self, context: Context, sight: Sight, request: Request, deployment: str) -> None:
        assert sight.owner is not None
        self.view: FleetView = context.fleet.view()
        self.changes: list[Change] = []
        self._sight = sight
        self._owner = sight.owner.record
        self._request = compile_request(request)
        self._next: dict[str, int] = {}
        labels = {
            **request.labels,
            DEPLOYMENT_LABEL: mark(deployment, sight.state),
            SERVICE_LABEL: sight.said.service,
        }
        self._pod = Pod(manifest=self._owner.manifest, labels=labels, at=context.clock.now())

    async def run(self, service: str, spec: ServiceSpec, machine: str) -> None:  # noqa: ARG002
        """Place one more pod on a machine, unless that is gone by now."""
        if machine not in self.view:
            return
        start = self._next.get(machine, 0)
        instance, self._next[machine] = next_instance(self._request, self.view[machine], start)
        intent = wanted(self._owner)
        self.changes.append(Change("place", machine, instance, self._pod, intent, owner=self._owner.id))

    async def replace(self, service: str, spec: ServiceSpec, place: Place) -> None:  # noqa: ARG002
        """Give a pod the new manifest where it stands."""
        state, owner = self._sight.pods[place], self._owner
        intent = wanted(owner, state.intent)
        self.changes.append(
            Change("replace", *place, self._pod, intent, state.pod, state.intent, owner=owner.id)
        )

    async def stop(self, service: str, place: Place) -> None:
        """Remove a pod, because its machine has not room for both."""
        await self.remove(service, place)

    async def remove(self, service: str, place: Place) -> None:  # noqa: ARG002
        """Remove a pod."""
        self.changes.append(removal(place, self._sight.pods[place], self._owner.id))

    async def hook(self, service: str, spec: ServiceSpec, machine: str) -> None:
        """A hook is no pod of the owner's: ``farmd.deploy.hooks`` places it."""
        raise NotImplementedError("hooks are placed by farmd.deploy.hooks")

    async def create_volume(self, machine: str, volume: VolumeSpec) -> None:
        """A volume belongs to no pod: ``farmd.deploy.turns`` notes it."""
        raise NotImplementedError("volumes are noted by farmd.deploy.turns")

    def repair(self, places: Iterable[Place]) -> None:
        """Write intents again that were lost or altered, but those of pods that change besides."""
        changed = {(change.node, change.instance) for change in self.changes}
        for place in places:
            if place not in changed:
                made = repair(self._owner, place, self._sight.pods[place])
                self.changes.append(msgspec.structs.replace(made, owner=self._owner.id))


def request_of(sight: Sight, manifest: Manifest) -> Request:
    """What the scheduler is asked for pods of a service's owner."""
    assert sight.owner is not None
    noun = owner_noun(sight.family)
    assert noun.pods is not None
    return msgspec.structs.replace(noun.pods.request(sight.owner.record, manifest), numbered=True)


async def collected(
    context: Context, sight: Sight, manifest: Manifest, deployment: str, operations: Iterable[Operation],
    repairs: Iterable[Place],
) -> list[NodeChanges]:  # fmt: skip
    """The changes of one step, each of which happens as a whole."""
    request = request_of(sight, manifest)
    client = Collector(context, sight, request, deployment)
    for operation in operations:
        await operation.execute(client)
    client.repair(repairs)
    made = reservations(request, client.changes, client.view)
    return list(grouped(([change] for change in client.changes), made))
