"""P7b: deploy a new version of a service with 500 pods, 50 at a time, by a farm as shipped.

The agents find each new pod healthy 0.5 s after they saw its intent, and by default a service wants a pod
without a check to run for 5 s. Measured is the time from the first acknowledged transaction with pods until
the deployment's record is gone. Baseline: 50 slots, each of which takes the next pod at the very moment when
the one before has proven itself.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from bench.agents import CHECK_SECONDS
from bench.fleet import CHORES, BenchFleet, fleet
from bench.p6_rollout import makespan
from bench.rig import median, note, report
from farmd.commands.mutation import Call
from farmd.deploy.commands import Deployment
from farmd.deploy.gate import MONITOR_SECONDS
from farmd.deploy.project import ResolvedServices
from farmd.deploy.resolver import ServiceSpecResolver
from farmd.deploy.spec import ContainerSpec, ServiceSpec
from farmd.runtime.clock import SystemIds, system_rng
from store.deployments import KIND
from store.services import UpdateConfig
from tests.fleet import CLOCK, KEYS, eventually

PODS, AT_ONCE, RUNS = 500, 50, 2
RATIO, PER_POD = 1.1, 2.0
UPDATE = UpdateConfig(parallelism=AT_ONCE)


async def run() -> bool:
    """Measure, print, and tell whether the targets are met."""
    took, transactions, cpu = [], [], []
    async with fleet(rcs=0, nodes=PODS) as setting:
        farm = setting.start_farm("deploying")
        await setting.claimed([farm], PODS + CHORES)
        await deploy(setting, [_web("0")])
        for number in range(1, RUNS + 1):
            before, used = time.monotonic(), farm.cpu_seconds()
            await deploy(setting, [_web(str(number))])
            moves = farm.transactions(before)
            took.append(time.monotonic() - moves[0][0])
            transactions.append(len(moves))
            cpu.append(farm.cpu_seconds() - used)
            note(f"P7b run {number}: {took[-1]:.2f} s, {transactions[-1]} transactions")
    value, baseline = median(took), makespan([CHECK_SECONDS + MONITOR_SECONDS] * PODS, AT_ONCE)
    each = median(transactions) / PODS
    return report(
        "P7b deploy 500 pods, 50 at a time", value, baseline,
        f"<= {RATIO:g} x the time that proving alone takes, <= {PER_POD:g} transactions a replacement",
        value <= RATIO * baseline and each <= PER_POD,
        transactions_each=round(each, 2), cpu_seconds=round(median(cpu), 2),
    )  # fmt: skip


def _web(version: str) -> ServiceSpec:
    container = ContainerSpec(image=f"web@sha256:{version * 64}")
    return ServiceSpec(name="web", container=container, replicas=PODS, update=UPDATE)


async def deploy(setting: BenchFleet, specs: Sequence[ServiceSpec]) -> None:
    """Deploy services, and return when the deployment is over."""
    resolver = ServiceSpecResolver(system_rng())
    wanted = ResolvedServices(services={spec.name: resolver.resolve(spec) for spec in specs})
    call = Call(setting.client, KEYS, CLOCK, SystemIds(), "user/bench@here")
    deployment = Deployment(call=call, wanted=wanted)
    await deployment.plan()
    ident = (await deployment.submit()).change.id

    async def over() -> bool:
        return await setting.client.read(KEYS.record(KIND, ident)) is None

    await eventually(over, what="the end of the deployment")
