"""P3: the share of a core, memory and requests a second of a farm with 10,000 RCs, 50,000 pods, 2,000 nodes.

Idle: every agent is present, renews its session and writes nothing. The kernel's accounting of the farm
process is read for longer than one blocking query waits, because Consul sends every tree again at the end
of a wait. A second line, without a target: one pod a second dies and comes back.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from bench.farm_process import FarmProcess
from bench.fleet import TIMES, BenchFleet, fleet
from bench.processes import cpu_seconds, resident_megabytes
from bench.rig import note, report

SETTLE_SECONDS, IDLE_SECONDS, CHURN_SECONDS = 70, 75, 40
RESTARTS = 1.0
CORE_SHARE, MEGABYTES, REQUESTS = (0.02, 200, 2.0) if TIMES == 1 else (0.03, 1000, 2.0)


@dataclass
class Usage:
    """The use of a farm over some time: share of a core, highest megabytes, requests a second.

    Of Consul, which also serves the agents, the share and the megabytes.
    """

    share: float
    megabytes: float
    requests: float
    consul_share: float
    consul_megabytes: float

    def within_budget(self) -> bool:
        """Whether all three are below their targets."""
        return self.share < CORE_SHARE and self.megabytes < MEGABYTES and self.requests < REQUESTS


async def run() -> bool:
    """Measure, print, and tell whether the targets are met."""
    async with fleet() as setting:
        farm = setting.start_farm("idle")
        await setting.claimed([farm])
        note(f"P3 settles for {SETTLE_SECONDS} s")
        await asyncio.sleep(SETTLE_SECONDS)
        idle = await _usage(setting, farm, IDLE_SECONDS)
        await setting.agents.ask(f"restarts {RESTARTS}", "bench.restarts")
        busy = await _usage(setting, farm, CHURN_SECONDS)
    ok = idle.within_budget()
    report(
        "P3 idle farm, share of a core", idle.share, CORE_SHARE,
        f"< {CORE_SHARE:.0%} of a core, < {MEGABYTES} MB, < {REQUESTS:.0f} requests/s", ok, **_more(idle),
    )  # fmt: skip
    what = f"P3 farm while {RESTARTS:.0f} pod a second restarts, share of a core"
    report(what, busy.share, idle.share, "none; beside the idle farm", True, **_more(busy))
    return ok


async def _usage(setting: BenchFleet, farm: FarmProcess, seconds: float) -> Usage:
    consul = setting.server.pid
    consul_cpu = cpu_seconds(consul)
    cpu, sent, started = farm.cpu_seconds(), (await farm.requests()).total(), time.monotonic()
    most = 0.0
    while time.monotonic() < started + seconds:
        await asyncio.sleep(0.5)
        most = max(most, farm.resident_megabytes())
    took = time.monotonic() - started
    sent = (await farm.requests()).total() - sent
    return Usage(
        (farm.cpu_seconds() - cpu) / took,
        most,
        sent / took,
        (cpu_seconds(consul) - consul_cpu) / took,
        resident_megabytes(consul),
    )


def _more(usage: Usage) -> dict[str, object]:
    return {
        "megabytes": round(usage.megabytes),
        "requests_per_second": round(usage.requests, 2),
        "consul_share": round(usage.consul_share, 3),
        "consul_megabytes": round(usage.consul_megabytes),
    }
