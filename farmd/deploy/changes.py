"""Operations become changes of pods that one transaction can carry out (``ports.Client`` of a farm)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from farmd.deploy.facts import Facts, ServiceFacts, ServiceStep, mark
from farmd.deploy.manifest import of_hook
from farmd.deploy.noun import owner_noun
from farmd.deploy.protocols import Client, VolumeClient
from farmd.deploy.spec import ServiceSpec, VolumeDriver, VolumeOptions, VolumeSpec
from farmd.farm.writer import Write
from farmd.pods.changes import NodeChanges, PodChange, grouped, removal, repair, reservations, wanted
from farmd.work.context import Context
from scheduler.constraints import compile_request, next_instance
from scheduler.model import FleetView, PlacementRequest
from store import manifests
from store.deployments import DEPLOYMENT_LABEL, SERVICE_LABEL
from store.labels import POD_ID_LABEL
from store.manifests import Manifest
from store.nodes import KIND, Node, NodeRecords, NodeStore, NodeVolume, claim, with_volume
from store.operations import Operation
from store.pods import Place, Pod
from store.reality import Intent


class Collector(Client):
    """Makes of each operation on one service the change that carries it out.

    ``view`` is the fleet that places are chosen from; a pod's instance is the first free one of its machine.
    ``bodies`` are the writes of manifests that nothing refers to yet, ``hooked`` the place of the hook.
    """

    def __init__(
        self, context: Context, sight: ServiceFacts, request: PlacementRequest, deployment: str
    ) -> None:
        assert sight.owner is not None
        self.view: FleetView = context.fleet.view()
        self.changes: list[PodChange] = []
        self._sight = sight
        self._owner = sight.owner.record
        self._request = compile_request(request)
        self._next: dict[str, int] = {}
        self.bodies: list[Operation] = []
        self.hooked = ""
        self._keys = context.keys
        self._labels = {DEPLOYMENT_LABEL: mark(deployment, sight.state), SERVICE_LABEL: sight.said.service}
        labels = {**request.labels, **self._labels}
        self._pod = Pod(manifest=self._owner.manifest, labels=labels, at=context.clock.now())
        self._over = rerun_nothing(sight)

    async def run(self, service: str, spec: ServiceSpec, machine: str) -> None:  # noqa: ARG002
        """Place one more pod on a machine, unless that is gone by now."""
        if machine not in self.view:
            return
        start = self._next.get(machine, 0)
        instance, self._next[machine] = next_instance(self._request, self.view[machine], start)
        pod = msgspec.structs.replace(self._pod, done=True) if self._over else self._pod
        intent = None if self._over else wanted(self._owner)
        self.changes.append(PodChange("place", machine, instance, pod, intent, owner=self._owner.id))

    async def replace(self, service: str, spec: ServiceSpec, place: Place) -> None:  # noqa: ARG002
        """Give a pod the new manifest on its node."""
        state, owner = self._sight.pods[place], self._owner
        intent = wanted(owner, state.intent)
        self.changes.append(
            PodChange("replace", *place, self._pod, intent, state.pod, state.intent, owner=owner.id)
        )

    async def stop(self, service: str, place: Place) -> None:
        """Remove a pod, because its machine has not room for both."""
        await self.remove(service, place)

    async def remove(self, service: str, place: Place) -> None:  # noqa: ARG002
        """Remove a pod, or that of a hook."""
        state, owner = self._sight.pods.get(place), self._owner.id
        if state is None:
            state, owner = self._sight.hooks[place], self._sight.said.service
        self.changes.append(removal(place, state, owner))

    async def hook(self, service: str, spec: ServiceSpec, machine: str) -> None:  # noqa: ARG002
        """Place the one pod of the service's hook, whose body is written along."""
        version, manifest = self._sight.version, self._sight.manifest
        assert version is not None
        assert version.pre_deploy is not None
        assert manifest is not None
        made = of_hook(manifest, version.pre_deploy)
        body, owner = manifests.canonical(made), self._sight.said.service
        digest, instance = manifests.digest(body), f"{made.id}~0"
        labels = {**self._labels, POD_ID_LABEL: made.id}
        pod = Pod(manifest=digest, labels=labels, at=self._pod.at)
        self.changes.append(PodChange("place", machine, instance, pod, Intent(digest, owner), owner=owner))
        self.bodies.append(manifests.ensure(self._keys, body))
        self.hooked = f"{machine}/{instance}"

    def repair(self, places: Iterable[Place]) -> None:
        """Write intents again that were lost or altered, but those of pods that change besides."""
        changed = {(change.node, change.instance) for change in self.changes}
        for place in places:
            if place not in changed:
                made = repair(self._owner, place, self._sight.pods[place])
                self.changes.append(msgspec.structs.replace(made, owner=self._owner.id))


def rerun_nothing(sight: ServiceFacts) -> bool:
    """Whether the pods of this turn ended well before, so that they are restored as done: a command of an
    earlier version must not run over what came after it.
    """
    state, manifest = sight.state, sight.manifest
    if state is None or manifest is None or manifest.restart.policy == "always":
        return False
    return state.completed if state.back else sight.said.restored


def request_of(sight: ServiceFacts, manifest: Manifest) -> PlacementRequest:
    """What the scheduler is asked for pods of a service's owner."""
    assert sight.owner is not None
    noun = owner_noun(sight.family)
    assert noun.pods is not None
    return msgspec.structs.replace(noun.pods.request(sight.owner.record, manifest), numbered=True)


async def collected(
    context: Context, sight: ServiceFacts, manifest: Manifest, deployment: str, step: ServiceStep
) -> tuple[list[NodeChanges], Collector]:
    """The changes of one step, each of which happens as a whole, and their collector."""
    request = request_of(sight, manifest)
    client = Collector(context, sight, request, deployment)
    for operation in step.operations:
        await operation.execute(client)
    client.repair(step.repairs)
    made = reservations(request, client.changes, client.view)
    return list(grouped(([change] for change in client.changes), made)), client


def counted(units: Iterable[NodeChanges], hooked: str) -> Counter[str]:
    """How many steps of each sort some changes are; ``hooked`` is the place of a hook that comes."""
    names = {"place": "run"}
    changes = [change for unit in units for change in unit.changes]
    return Counter(
        "hook" if f"{each.node}/{each.instance}" == hooked else names.get(each.action, each.action)
        for each in changes
    )


# The named volumes that a deployment notes before the first pod comes: their agents make them (R12).
#
# What must never break: no two deployments make one volume, with two different contents, on two machines.


class VolumeNotes(VolumeClient):
    """Collects the writes that note volumes on their machines; no two deployments make one volume on two of
    them (R12).
    """

    def __init__(self, context: Context, reading: Facts) -> None:
        self._context, self._reading = context, reading
        self._standing: dict[str, NodeRecords] = {}
        self._nodes: dict[str, Node] = {}
        self._claims: dict[str, Operation] = {}

    async def create_volume(self, volume: VolumeSpec, machine: str) -> None:
        """Add a volume to its machine's record, and claim its name for the machine."""
        context, name = self._context, volume.volume_name
        if machine not in self._nodes:
            self._standing[machine] = await NodeStore(context.client, context.keys).get(machine)
            self._nodes[machine] = self._standing[machine].record
        made = _volume(volume, _mounting(self._reading, name))
        self._nodes[machine] = with_volume(self._nodes[machine], name, made)
        if name not in self._claims:
            known = await _known(context, self._reading, name)
            self._claims[name] = claim(context.keys, name, machine, known)

    def writes(self) -> list[Write | Operation]:
        """The claims of names, and the records of the machines."""
        keys, tree = self._context.keys, self._context.caches.nodes
        return [
            *self._claims.values(),
            *(
                Write.over(keys.node(machine), record, self._standing[machine].node, tree)
                for machine, record in sorted(self._nodes.items())
            ),
        ]


async def _known(context: Context, reading: Facts, name: str) -> int:
    """The index of a volume's name where the plan saw the volume on some node; 0: it saw it on none.

    A node that got it since the plan must make the claim fail (``store.nodes``).
    """
    if reading.shot is None or not reading.shot.state.having(name):
        return 0
    entry = await context.client.read(context.keys.name(KIND, name))
    return entry.modify_index if entry is not None else 0


def _mounting(reading: Facts, name: str) -> str:
    """The id of the first service that mounts a volume."""
    specs = ((sight.said.service, sight.goal.spec) for sight in reading.sights.values())
    mounted = (ident for ident, spec in specs if spec and name in {v.volume_name for v in spec.mounted()})
    return next(mounted, "")


def _volume(spec: VolumeSpec, service: str) -> NodeVolume:
    options = spec.volume or VolumeOptions()
    driver = options.driver or VolumeDriver()
    return NodeVolume(driver=driver.name, options=driver.options, labels=options.labels, service=service)
