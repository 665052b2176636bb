"""What people say of rollouts during a soak, and what they ask of them."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from farmd.commands.mutation import Call, Mutation, commit
from farmd.rollout import commands
from farmd.rollout.commands import scale
from farmd.services import commands as services
from store import codec
from store.rcs import ReplicationController
from store.rollouts import KIND, Rollout, RolloutStatus
from store.services import Service
from tests.fault.invariants import Dump
from tests.soak.fleet import Fleet
from tests.soak.rollouts import live

STRATEGIES = ("rolling", "rolling", "availability", "resourceutil", "blue-green", "blue-green")
STAGES: tuple[list[Any], ...] = (
    ["100%"],
    [1, "100%"],
    [{"to": 1, "bake": 5}, "50%", {"to": "100%", "approve": True}],
)
# Before a switch there is but one stage.
SWITCHED: tuple[list[Any], ...] = (["100%"], [{"to": "100%", "bake": 5, "approve": True}])
PORT = "http"
WORDS = ("pause", "resume", "resume", "approve", "approve", "revert", "abort", "scale")


def policy(rc: ReplicationController, dump: Dump, gate: str, rng: random.Random) -> dict[str, Any]:
    """How the pods of a controller are to be rolled; ``gate`` is the address that gates ask."""
    total = rc.replicas_desired
    served = any(f"rcs/{rc.id}" in each.active for each in services_of(dump).values())
    strategy = rng.choice(STRATEGIES if served else STRATEGIES[:4])
    found: dict[str, Any] = {"strategy": strategy, "progress_deadline": 30, "keep_old": 5}
    if strategy in ("rolling", "resourceutil"):
        found["minimum"] = max(0, total - rng.randint(1, max(1, total // 4)))
    if strategy == "blue-green":
        found["stages"] = rng.choice(SWITCHED)
    elif rng.random() < 0.3:
        found["ratio"] = rng.choice((20, 35, 60))
    else:
        found["stages"] = rng.choice(STAGES)
    if rng.random() < 0.4:
        asked = {"every": 1, "timeout": 1, "passes": 2, "failures": 2}
        found["gates"] = [{"name": "smoke", "http": gate, **asked}]
    return found


def services_of(dump: Dump) -> dict[str, Service]:
    """The services, by their names."""
    return {each.name: each for _, each in dump.tree("services", Service).values()}


async def served(call: Call, name: str, dump: Dump) -> Mutation:
    """The service of a controller's name comes, or goes where there is one."""
    if name in services_of(dump):
        return await services.delete(call, name)
    return await services.create(call, name, PORT, [name])


async def said(call: Call, rollout: Rollout, most: int, rng: random.Random, counts: Counter[str]) -> Mutation:
    """One word about a rollout of a controller for which there is room for ``most`` pods."""
    word = rng.choice(WORDS)
    counts[f"say {word}"] += 1
    if word == "scale":
        replicas = max(1, min(most, rollout.replicas + rng.randint(-2, 2)))
        return await scale(call, rollout.name, replicas)
    more = {"everything": True} if word == "approve" else {}
    mutation: Mutation = await getattr(commands, word)(call, rollout.name, **more)
    return mutation


async def tend(fleet: Fleet) -> None:
    """Let those go on that wait for a person: also a rollout that met a fault which is over.

    A service whose last owner was deleted waits for a person, too, who deletes it.
    """
    dump, call = await fleet.dump(), fleet.call
    for rollout in live(dump).values():
        entry = dump.entries.get(dump.keys.status(KIND, rollout.id))
        told = (
            codec.decode(RolloutStatus, entry.value, entry.key)
            if entry is not None
            else RolloutStatus(state="")
        )
        if rollout.paused or told.phase == "halted":
            await commit(call, await commands.resume(call, rollout.name))
        elif told.asks:
            await commit(call, await commands.approve(call, rollout.name, everything=True))
    for name, service in services_of(dump).items():
        owners = [dump.keys.record(*ref.split("/", 1)) for ref in service.active]
        if owners and not dump.entries.keys() & set(owners):
            await commit(call, await services.delete(call, name))
