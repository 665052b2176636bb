"""G1: calls of a farm that change something in Kubernetes, for rollouts of ten stages, as the server counts.

A stage needs three writes of the record, four of StagePodAutoscalers and bounds, one of traffic and four of
StagePodAutoscalers' statuses; a rollout six besides: its begin, its end, and what is drained.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

from bench.knative import NAMESPACE, Rolling, rolling
from bench.rig import note, report

SERVICES, PODS, RATIO = 3, 10, 10
A_STAGE, A_ROLLOUT = 12, 6
MOST = 1.05
WITHIN = 400.0


async def run() -> bool:
    """Measure, print, and tell whether the target is met."""
    names = [f"web{number}" for number in range(SERVICES)]
    async with rolling() as found:
        farm = found.world.start_farm("rolling", NAMESPACE)
        await farm.heard("farm.ready", 60.0)
        before = await _rolled(found, names, 1)
        begun, used = await _stages(found), farm.cpu_seconds()
        sent = await _rolled(found, names, 2) - before
        stages, cpu = await _stages(found) - begun, farm.cpu_seconds() - used
    note(f"G1: {stages} stages of {SERVICES} rollouts")
    value = sent.total() / SERVICES
    baseline = A_STAGE * stages / SERVICES + A_ROLLOUT
    return report(
        f"G1 mutating calls a rollout of {stages / SERVICES:g} stages, {SERVICES} at once", value, baseline,
        f"<= {MOST} x ({A_STAGE} a stage + {A_ROLLOUT})", value <= MOST * baseline,
        cpu_seconds=round(cpu / SERVICES, 2), **dict(sorted(sent.items())),
    )  # fmt: skip


async def _rolled(found: Rolling, names: Sequence[str], number: int) -> Counter[str]:
    """Roll all services to that revision at once; the calls until then."""
    for name in names:
        await found.push(name, number, PODS, RATIO)
    await asyncio.gather(*(found.rests(name, number, WITHIN) for name in names))
    await found.quiet(12.0)  # statuses follow within ten seconds
    return await found.calls()


async def _stages(found: Rolling) -> int:
    """How many stages have begun so far, but for the first of a service."""
    return await found.turns("stage") + await found.turns("retarget")
