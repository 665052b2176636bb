"""The parts that rows of progressive rollouts share: a real API server with Knative's kinds, which the tests'
stand-in for Knative plays (``tests/kubernetes/knative.py``), and a farm as shipped.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from bench.kubernetes import READS, WRITES, Setting, setting
from farmd.kubernetes.access import access
from farmd.kubernetes.install import install
from farmd.kubernetes.knative.objects import (
    AUTOSCALERS,
    CONFIGURATIONS,
    ORCHESTRATORS,
    REVISIONS,
    ROUTES,
    SERVICES,
    STAGE_AUTOSCALERS,
)
from farmd.kubernetes.transport import KubernetesTransport
from farmd.runtime.clock import SystemClock
from store.keys import is_sentinel
from tests.fleet import KEYS, eventually
from tests.kubernetes.knative import Knative, playing

NAMESPACE, KIND = "rolling", "progressive"
RATIO = "rollout.knative.dev/over-consumption-ratio"
OURS = (ORCHESTRATORS, STAGE_AUTOSCALERS)
# What farms and Knative write both: farms by server-side apply, the stand-in for Knative by patches.
BOTH = (SERVICES, REVISIONS, AUTOSCALERS)
READ = (*OURS, *BOTH, CONFIGURATIONS, ROUTES)


@dataclass
class Rolling:
    """Servers, and Knative at work in one namespace."""

    world: Setting
    play: Knative

    async def calls(self, *, reads: bool = False) -> Counter[str]:
        """Calls of farms so far that change something in Kubernetes, by the server's own count; ``reads``:
        all that read what rollouts are made of. Deletions of pods are not among them: Knative deletes them.
        """
        found = Counter[str]()
        for (verb, group, resource, what), count in (await self.world.requests()).items():
            one = (group, resource)
            ours = one in {(each.group, each.plural) for each in OURS} and verb in WRITES
            both = one in {(each.group, each.plural) for each in BOTH} and verb == "APPLY"
            read = one in {(each.group, each.plural) for each in READ} and verb in READS
            if read if reads else ours or both:
                found[f"{verb} {what}"] += count
        return found

    async def push(self, name: str, number: int, pods: int, ratio: int) -> None:
        """A revision of so many pods, of a service that is there or not."""
        await self.play.push(name, f"{name}:{number}", least=pods, most=pods, annotations={RATIO: str(ratio)})

    async def rests(self, name: str, number: int, within: float) -> None:
        """Wait until that revision serves alone and its rollout is over."""
        revision = f"{name}-{number:05}"

        async def so() -> bool:
            record = self.play.stores[ORCHESTRATORS].get(NAMESPACE, name)
            route = self.play.stores[ROUTES].get(NAMESPACE, name)
            if record is None or route is None or record.metadata.finalizers:
                return False
            status = record.status
            said = {each["type"]: each["status"] for each in status.get("conditions", ())}
            shares = {each["revisionName"]: each.get("percent") for each in route.status.get("traffic", ())}
            observed = status.get("observedGeneration") == record.metadata.generation
            return observed and said.get("Ready") == "True" and shares == {revision: 100}

        await eventually(so, what=f"{revision} serves alone", within=within)

    async def quiet(self, seconds: float) -> None:
        """Wait until no farm has written anything for so long."""
        before, since = await self.calls(), time.monotonic()
        while time.monotonic() - since < seconds:
            await asyncio.sleep(0.5)
            if (now := await self.calls()) != before:
                before, since = now, time.monotonic()

    async def turns(self, action: str) -> int:
        """How many audit records of an action there are."""
        page = await self.world.store.list(KEYS.tree("audit"))
        actions = [json.loads(raw.decoded()).get("action") for raw in page.items if not is_sentinel(raw.key)]
        return sum(each == f"{KIND}.{action}" for each in actions)


@asynccontextmanager
async def rolling() -> AsyncIterator[Rolling]:
    """Servers with Knative at work, for the length of a ``with`` block."""
    async with setting() as world, played(world) as found:
        yield found


@asynccontextmanager
async def played(world: Setting) -> AsyncIterator[Rolling]:
    """Knative in a namespace, for the length of a ``with`` block; its objects stay."""
    world.api.namespace(NAMESPACE)
    clock, rng = SystemClock(), random.Random(1)
    where = access({}, clock, kubeconfig=world.kubeconfig())
    async with KubernetesTransport(where, clock=clock, rng=rng) as transport:
        await install(transport, (), clock, progressive=True)
        async with playing(transport, NAMESPACE) as play:
            yield Rolling(world, play)
