"""J5: a gang of 500 starts together, and an array of 10,000 runs by 200, by a farm as shipped.

The gang: the time from the acknowledged resumption of a job that the farm owns to the last acknowledged pod,
and from the first acknowledged release to the last. Baseline: a bare client replays the bodies of both
phases, with as many in flight. How long agents take until all members are held is no part of either. Agents
see and write the same beside the bare client as beside the farm: they use most of a small machine.

The array: members end at once, so that the farm has the most to do. Measured is the time a slot, from the
first acknowledged pod to the last end that the job takes in. Baseline: the same bodies replayed one after the
other, because each rests on the one before. What a body compared with earlier versions is written without
comparing, because these versions are not there.
"""

from __future__ import annotations

import time
from typing import Any

from bench.farm_process import FarmProcess
from bench.fleet import CHORES, PLAIN, BenchFleet, emptied, fleet, mirrored
from bench.rig import median, note, prepared, replay, report
from farmd.commands.mutation import Call, commit
from farmd.jobs.commands import JOB, resume
from farmd.runtime.clock import SystemIds
from store import codec
from store.jobs import KIND, Run
from store.transaction import IN_FLIGHT
from tests.fleet import CLOCK, KEYS, eventually

MEMBERS, PAIRS, GANG_RATIO = 500, 3, 1.5
SLOTS, AT_ONCE, SLOT_RATIO = 10_000, 200, 3.0
ENDS = ("--ends", "0")
ARRAY_SECONDS = 400.0


async def run() -> bool:
    """Measure, print, and tell whether the targets are met."""
    met = True
    async with fleet(rcs=0, nodes=MEMBERS) as setting, mirrored(setting, MEMBERS):
        farm = await _farm(setting, MEMBERS)
        ours, bare = [], []
        for number in range(PAIRS):
            took, placing, releasing = await _gang(setting, farm, f"gang-{number}")
            ready = await prepared(setting.client, [*placing, *releasing], PLAIN.prefix)
            ours.append(took)
            phases = ready[: len(placing)], ready[len(placing) :]
            bare.append(sum([await replay(setting.server.address, phase, IN_FLIGHT) for phase in phases]))
            await emptied(setting.client)
            note(f"J5 gang {number}: ours {ours[-1]:.3f} s, bare {bare[-1]:.3f} s")
        value, baseline = median(ours), median(bare)
        met &= report(
            f"J5 gang of {MEMBERS}", value, baseline, f"<= {GANG_RATIO:g} x its bare transactions",
            value <= GANG_RATIO * baseline,
        )  # fmt: skip
    async with fleet(rcs=0, nodes=AT_ONCE, agents=ENDS) as setting, mirrored(setting, AT_ONCE, ENDS):
        farm = await _farm(setting, AT_ONCE)
        used = farm.cpu_seconds()
        took, bodies = await _array(setting, farm)
        used = farm.cpu_seconds() - used
        ready = await prepared(setting.client, bodies, PLAIN.prefix)
        alone = await replay(setting.server.address, ready, 1)
        value, baseline = took / SLOTS, alone / SLOTS
        met &= report(
            f"J5 slot of an array of {SLOTS} by {AT_ONCE}", value, baseline,
            f"<= {SLOT_RATIO:g} x its bare transaction", value <= SLOT_RATIO * baseline,
            whole=round(took, 1), transactions=len(bodies), cpu_seconds=round(used, 1),
        )  # fmt: skip
    return met


async def _farm(setting: BenchFleet, nodes: int) -> FarmProcess:
    farm = setting.start_farm("jobs")
    await setting.claimed([farm], nodes + CHORES)
    return farm


async def _start(setting: BenchFleet, name: str, **fields: Any) -> str:
    """Create a job; its id."""
    worker = {"name": "worker", "pod": {"id": name, "command": ["x"], **fields.pop("pod", {})}}
    document = {"name": name, "types": [worker | fields.pop("worker")], **fields}
    call = Call(setting.client, KEYS, CLOCK, SystemIds(), "user/bench@here")
    made = await JOB.create(call, JOB.file.parse(document, name))
    await commit(call, made)
    return made.change.id


async def _gang(setting: BenchFleet, farm: FarmProcess, name: str) -> tuple[float, list[bytes], list[bytes]]:
    """Seconds of both phases, and the bodies of each."""
    fields: dict[str, Any] = {"worker": {"replicas": MEMBERS}, "pod": {"ports": {"job": {}}}}
    ident = await _start(setting, name, **fields, gang=True, peers=True, suspend=True)

    async def owned() -> bool:
        return await setting.client.read(KEYS.status(KIND, ident)) is not None

    await eventually(owned, what="the job is owned")
    call, before = Call(setting.client, KEYS, CLOCK, SystemIds(), "user/bench@here"), time.monotonic()
    await commit(call, await resume(call, name))
    created = time.monotonic()
    placed = await farm.all_placed(MEMBERS, before, 60.0)
    placing = await farm.bodies()
    released = await farm.all_placed(2 * MEMBERS, before, 60.0)
    first = next(at for at, _ in farm.transactions(placed))
    releasing = await farm.bodies()
    await commit(call, await JOB.delete(call, name, cascade=True))

    async def gone() -> bool:
        return await setting.client.read(KEYS.record(KIND, ident)) is None

    await eventually(gone, what="the end of the gang")
    await farm.bodies()
    note(f"J5 {name}: placed in {placed - created:.3f} s, released in {released - first:.3f} s")
    return (placed - created) + (released - first), placing, releasing


async def _array(setting: BenchFleet, farm: FarmProcess) -> tuple[float, list[bytes]]:
    """Seconds from the first pod to the last end, and the bodies."""
    before = time.monotonic()
    ident = await _start(setting, "array", worker={"replicas": SLOTS, "parallelism": AT_ONCE})

    async def over() -> float | None:
        entry = await setting.client.read(KEYS.record("runs", ident))
        ended = entry is not None and codec.decode(Run, entry.value, entry.key).outcome
        return time.monotonic() if ended else None

    finished: float = await eventually(over, what="the end of the array", within=ARRAY_SECONDS)
    return finished - farm.transactions(before)[0][0], await farm.bodies()
