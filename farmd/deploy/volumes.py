"""The named volumes that a deployment notes before the first pod comes: their agents make them (R12).

What must never break: no two deployments make one volume, with two different contents, on two machines.
"""

from __future__ import annotations

from collections.abc import Sequence

from farmd.deploy.model import VolumeDriver, VolumeOptions, VolumeSpec
from farmd.deploy.operations import CreateVolumeOperation
from farmd.deploy.sights import Reading
from farmd.farm.writer import Write
from farmd.work.context import Context
from store.nodes import Node, NodeRecords, NodeStore, NodeVolume
from store.operations import Operation
from store.volumes import KIND, claim, with_volume


async def noted(
    context: Context, reading: Reading, made: Sequence[CreateVolumeOperation]
) -> list[Write | Operation]:
    """Note volumes on their machines; no two deployments make one volume on two of them (R12)."""
    standing, claimed = await _nodes(context, made), set[str]()
    writes = list[Write | Operation]()
    changed_nodes = dict[str, Node]()
    for each in made:
        name = each.volume.volume_name
        node = changed_nodes.get(each.machine, standing[each.machine].record)
        volume = _volume(each.volume, _mounting(reading, name))
        changed_nodes[each.machine] = with_volume(node, name, volume)
        if name not in claimed:
            claimed.add(name)
            writes.append(claim(context.keys, name, each.machine, await _known(context, reading, name)))
    for machine, record in sorted(changed_nodes.items()):
        key = context.keys.node(machine)
        writes.append(Write.over(key, record, standing[machine].node, context.caches.nodes))
    return writes


async def _nodes(context: Context, made: Sequence[CreateVolumeOperation]) -> dict[str, NodeRecords]:
    store, names = NodeStore(context.client, context.keys), {each.machine for each in made}
    return {name: await store.get(name) for name in sorted(names)}


async def _known(context: Context, reading: Reading, name: str) -> int:
    """The index of a volume's name where the plan saw the volume on some node; 0: it saw it on none.

    A node that got it since the plan must make the claim fail (``store.volumes``).
    """
    if reading.shot is None or not reading.shot.state.having(name):
        return 0
    entry = await context.client.read(context.keys.name(KIND, name))
    return entry.modify_index if entry is not None else 0


def _mounting(reading: Reading, name: str) -> str:
    """The id of the first service that mounts a volume."""
    specs = ((sight.said.service, sight.goal.spec) for sight in reading.sights.values())
    mounted = (ident for ident, spec in specs if spec and name in {v.volume_name for v in spec.mounted()})
    return next(mounted, "")


def _volume(spec: VolumeSpec, service: str) -> NodeVolume:
    options = spec.volume or VolumeOptions()
    driver = options.driver or VolumeDriver()
    return NodeVolume(driver=driver.name, options=driver.options, labels=options.labels, service=service)
