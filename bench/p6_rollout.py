"""P6: roll 500 pods of one controller to a new version, by a farm as shipped.

450 of the 500 pods stay available, so that 50 may be on their way at once; one stage, no least time. The
agent of each of the 500 nodes finds its new pod healthy 4 to 6 s after it saw the intent, a time of the
node's own that is the same in every run. Measured is the time from the first acknowledged transaction with
moves to the acknowledged end. Baseline: 50 slots, each of which takes the next pod, in the order in which
the farm moved them, at the very moment when the one before is healthy.
"""

from __future__ import annotations

import heapq
import json
import time
from collections.abc import Iterable

from bench.agents import first_check
from bench.farm_process import FarmProcess
from bench.fleet import CHORES, fleet
from bench.rig import median, note, report
from store import codec
from store.consul.client import ConsulClient
from store.keys import Keys, is_sentinel
from store.manifests import Manifest
from store.policies import Policy
from store.reality import Reality
from tests.fleet import KEYS, Cluster, eventually
from tests.rolling import FIRST, Rolling

PODS, MINIMUM = 500, 450
LEAST, MOST = 4.0, 6.0
RUNS = 3
POLICY = Policy(minimum=MINIMUM, stages=["100%"], min_healthy_time=0.0)
WITHIN = 180.0


async def run() -> bool:
    """Measure, print, and tell whether the target is met."""
    took, best, transactions, cpu = [], [], [], []
    async with fleet(rcs=0, nodes=PODS, agents=["--check", str(LEAST), str(MOST)]) as setting:
        farm = setting.start_farm("rolling")
        await setting.claimed([farm], PODS + CHORES)
        rolling = Rolling(Cluster(setting.client), setting.server.address)
        rolling.rc = await rolling.cluster.create_rc("web", PODS, manifest=FIRST)
        await rolling.placed(PODS)
        for number in range(RUNS):
            await _healthy(setting.client)
            await farm.bodies()
            before, used = time.monotonic(), farm.cpu_seconds()
            await rolling.update(Manifest(id="web", command=[f"version {number}"]), POLICY)
            ended = await _ended(farm, before)
            moves = farm.transactions(before)
            took.append(ended - moves[0][0])
            best.append(makespan(_checks(await farm.bodies()), PODS - MINIMUM))
            transactions.append(len(moves))
            cpu.append(farm.cpu_seconds() - used)
            note(f"P6 run {number}: {took[-1]:.2f} s, best {best[-1]:.2f} s, {transactions[-1]} transactions")
    value, baseline = median(took), median(best)
    return report(
        "P6 roll 500 pods, 50 at a time", value, baseline, "<= 1.1 x the time that health alone takes",
        value <= 1.1 * baseline, transactions=median(transactions), cpu_seconds=round(median(cpu), 2),
    )  # fmt: skip


async def _healthy(client: ConsulClient, keys: Keys = KEYS) -> None:
    """Return when each pod is healthy, so that nothing but the rollout is under way."""

    async def all_pass() -> bool:
        page = await client.list(keys.tree("reality"))
        found = [raw for raw in page.items if not is_sentinel(raw.key)]
        realities = [codec.decode(Reality, raw.decoded(), raw.key) for raw in found]
        return sum(each.health.state == "passing" for each in realities) == PODS

    await eventually(all_pass, what="the health of all pods")


async def _ended(farm: FarmProcess, since: float) -> float:
    """When the rollout's end was acknowledged."""

    def ends() -> list[float]:
        return [each["at"] for each in farm.events if each["event"] == "bench.ended" and each["at"] > since]

    await farm.until(lambda: bool(ends()), WITHIN, "the end of the rollout")
    return ends()[0]


def _checks(bodies: Iterable[bytes]) -> list[float]:
    """How long each pod takes to be healthy, in the order of the moves."""
    intents = [
        operation["KV"]["Key"]
        for body in bodies
        for operation in json.loads(body)
        if operation["KV"]["Key"].startswith(KEYS.tree("intent")) and operation["KV"]["Verb"] == "cas"
    ]
    return [first_check(KEYS.intent_parts(key)[0], LEAST, MOST) for key in intents]


def makespan(times: Iterable[float], slots: int) -> float:
    """When the last of these is over if each begins as soon as one of so many slots is free."""
    free = [0.0] * slots
    for each in times:
        heapq.heapreplace(free, free[0] + each)
    return max(free)
