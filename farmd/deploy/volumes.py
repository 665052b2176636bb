"""The named volumes that a deployment notes before the first pod comes: their agents make them (R12).

What must never break: no two deployments make one volume, with two different contents, on two machines.
"""

from __future__ import annotations

from farmd.deploy.model import VolumeDriver, VolumeOptions, VolumeSpec
from farmd.deploy.ports import VolumeClient
from farmd.deploy.sights import Facts
from farmd.farm.writer import Write
from farmd.work.context import Context
from store.nodes import KIND, Node, NodeRecords, NodeStore, NodeVolume, claim, with_volume
from store.operations import Operation


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
