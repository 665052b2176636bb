"""G3: how fast a farm rolls a Knative Service of ten pods in ten stages; a pod starts in two seconds.

First: from the acknowledged status of the newcomer's autoscaler that tells the goal of a stage to the traffic
of the stage, as a watch of the service sees it. Baseline: a bare watch of a pod wakes on a change of it,
sends a transaction of two keys to Consul, and patches the pod, as a watch sees it.
Second: the time of the whole rollout, over what of it Knative's stand-in takes. The time until a change is
its maker's: until a farm's write (its records, bounds and traffic) the farm's, until any other Knative's.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from bench.knative import NAMESPACE, Rolling, rolling
from bench.kubernetes import MERGE, Call, Setting
from bench.pod_watch import Seen, watched
from bench.rig import median, note, report
from farmd.kubernetes.knative.objects import (
    AUTOSCALERS,
    ORCHESTRATORS,
    REVISIONS,
    SERVICES,
    STAGE_AUTOSCALERS,
)
from farmd.kubernetes.objects import PODS, Resource
from store import operations
from tests.fleet import KEYS
from tests.kubernetes.knative_world import Thing
from tests.kubernetes_server import pod

RUNS, PODS_OF_EACH, RATIO, START_SECONDS = 3, 10, 10, 2.0
BARE_ROUNDS = 30
TIMES, SHARE = 3.0, 1.1
WITHIN = 150.0


@dataclass
class Timeline:
    """When which object changed, and whether a farm did it; a listener of the stores of the stand-in."""

    kind: Resource
    events: list[tuple[float, bool, Resource, Thing]] = field(default_factory=list)

    def added(self, new: Thing) -> None:
        """Enter it."""
        self._enter(new, farm=self.kind in (ORCHESTRATORS, STAGE_AUTOSCALERS))

    def updated(self, old: Thing, new: Thing) -> None:
        """Enter it; a status of a StagePodAutoscaler is a copy that nothing waits for."""
        noted = new.spec != old.spec or new.metadata.annotations != old.metadata.annotations
        if self.kind == STAGE_AUTOSCALERS and not noted:
            return
        farms = self.kind in (ORCHESTRATORS, STAGE_AUTOSCALERS)
        self._enter(new, farm=farms or (noted and self.kind in (SERVICES, REVISIONS)))

    def deleted(self, last: Thing) -> None:
        """Enter it."""
        self._enter(last, farm=False)

    def reset(self) -> None:
        """The server is never restored here."""

    def _enter(self, thing: Thing, *, farm: bool) -> None:
        self.events.append((time.monotonic(), farm, self.kind, thing))


async def run() -> bool:
    """Measure, print, and tell whether the targets are met."""
    shifts, shares, cpu = list[float](), list[float](), list[float]()
    async with rolling() as found:
        found.play.start = START_SECONDS
        events = _listening(found)
        farm = found.world.start_farm("rolling", NAMESPACE)
        await farm.heard("farm.ready", 60.0)
        await found.push("web", 1, PODS_OF_EACH, RATIO)
        await found.rests("web", 1, WITHIN)
        for number in range(2, RUNS + 2):
            await found.quiet(2.0)
            await found.push("web", number, PODS_OF_EACH, RATIO)
            events.clear()
            began, used = time.monotonic(), farm.cpu_seconds()
            await found.rests("web", number, WITHIN)
            cpu.append(farm.cpu_seconds() - used)
            ours, whole = _parts(events, began)
            shifts += _shifts(events, f"web-{number:05}")
            shares.append(whole / (whole - ours))
            note(f"G3 run {number - 1}: {whole:.1f} s, of which the farm {ours:.2f} s")
        bare = await _bare(found.world)
    met = report(
        "G3 a stage's pods are there -> its traffic is written", median(shifts), median(bare),
        f"p50 <= {TIMES:g} x a bare wake, a transaction and a PATCH", median(shifts) <= TIMES * median(bare),
        shifts=len(shifts), cpu_seconds=round(median(cpu), 2),
    )  # fmt: skip
    return report(
        "G3 ten stages, over what Knative takes of them (no unit)", median(shares), 1.0,
        f"<= {SHARE} x", median(shares) <= SHARE,
    ) and met  # fmt: skip


def _listening(found: Rolling) -> list[tuple[float, bool, Resource, Thing]]:
    events: list[tuple[float, bool, Resource, Thing]] = []
    for kind, store in found.play.stores.items():
        store.listen(Timeline(kind, events))
    return events


def _parts(events: list[tuple[float, bool, Resource, Thing]], began: float) -> tuple[float, float]:
    """The farm's seconds, and all, from the push to the last write of the record."""
    last = max(number for number, each in enumerate(events) if each[2] == ORCHESTRATORS)
    ours, before = 0.0, began
    for at, farm, _, _ in events[: last + 1]:
        ours += (at - before) if farm else 0.0
        before = at
    return ours, before - began


def _shifts(events: list[tuple[float, bool, Resource, Thing]], newcomer: str) -> list[float]:
    """Of each stage but the first the seconds from the newcomer's last pod to the traffic."""
    found: list[float] = []
    there, shares = 0.0, ""
    for at, _, kind, thing in events:
        if kind == AUTOSCALERS and thing.name == newcomer:
            there = at
        if kind == SERVICES and str(thing.spec.get("traffic")) != shares:
            known, shares = bool(shares), str(thing.spec.get("traffic"))
            moved = any(
                each.get("revisionName") == newcomer and each.get("percent")
                for each in thing.spec.get("traffic", ())
            )
            if known and moved and there:
                found.append(at - there)
                there = 0.0
    return found


async def _bare(world: Setting) -> list[float]:
    """The same of a bare client, again and again."""
    world.api.namespace("bare")
    path, found = PODS.path("bare", "one"), list[float]()
    await world.call(Call("POST", PODS.path("bare"), pod("one")))
    async with watched(world, "bare") as seen:
        for number in range(BARE_ROUNDS):
            await asyncio.sleep(0.1)
            found.append(await _round(world, seen, path, number))
    return found


async def _round(world: Setting, seen: Seen, path: str, number: int) -> float:
    async def react() -> None:
        await seen.wait("MODIFIED", "one", began)
        writes = [operations.put(f"{KEYS.prefix}bare/{key}", b"x" * 200) for key in ("run", "audit")]
        await world.store.transaction(writes)
        answered = {"metadata": {"annotations": {"example.com/answered": str(number)}}}
        await world.call(Call("PATCH", path, answered, MERGE))

    began = time.monotonic()
    reacting = asyncio.create_task(react())
    await world.call(Call("PATCH", f"{path}/status", {"status": {"message": str(number)}}, MERGE))
    told = time.monotonic()
    await reacting
    woken = await seen.wait("MODIFIED", "one", began)
    return await seen.wait("MODIFIED", "one", woken) - told
