"""A4: an app of 500 objects in Kubernetes: new, in another revision that changes none, and in one of five.

Counted are the mutating calls, by the API server's own count. The bare client sends the same applies to
another namespace, as many at once as a farm: with the app's marks, as the app's user, for new objects alone.
Each goes first in every other round, because a server that has just removed objects is slower.
Also reported is a plain client that sends only the documents, as itself.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

from bench.kubernetes import Call as Request
from bench.kubernetes import Setting, setting
from bench.rig import median, note, report
from farmd import overview
from farmd.apps import commands
from farmd.apps.bundle import AppSpec, parse
from farmd.apps.scene import state_of
from farmd.commands.mutation import Call, commit
from farmd.kubernetes.apps.api import CREATION, user_of
from farmd.kubernetes.apps.marks import OwnerMark, marked
from farmd.kubernetes.objects import Resource
from farmd.runtime.clock import SystemIds
from store.apps import KIND
from tests.fleet import CLOCK, KEYS, eventually

OBJECTS, CHANGED, ROUNDS, RATIO = 500, 5, 9, 1.15
WITHIN = 120.0
RBAC = "rbac.authorization.k8s.io"
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
APPLY = "application/apply-patch+yaml"
CLUSTER = "0" * 32


async def run() -> bool:
    """Measure, print, and tell whether the targets are met."""
    ours, bare, plain, sent = [], [], [], list[list[int]]()
    async with setting() as world:
        call = Call(world.store, KEYS, CLOCK, SystemIds(), "user/bench@here")
        for namespace in ("ours", "bare", "plain"):
            world.api.namespace(namespace)
        for number in range(
            ROUNDS
        ):  # long before they are needed: the server learns of rights a little later
            for namespace in ("ours", "bare"):
                await world.call(_rights(_app(number), namespace))
        farm = world.start_farm("apps", "ours")
        await farm.heard("farm.ready", 60.0)

        async def serves() -> bool:
            found = await overview.farms(call.client, call.keys)
            return any("kubernetes.ours" in each.features for each in found)

        await eventually(serves, what="the farm serves the cluster")
        for number in range(ROUNDS):
            app = _app(number)
            if early := number % 2:
                bare.append(await world.all([each] for each in _same(app)))
            taken, counts = await _applied(world, call, app)
            ours.append(taken)
            sent.append(counts)
            if not early:
                bare.append(await world.all([each] for each in _same(app)))
            plain.append(await world.all([each] for each in _plain(app)))
            note(f"A4 {number}: ours {taken:.2f} s, bare {bare[-1]:.2f} s, plain {plain[-1]:.2f} s, {counts}")
            await _removed(world, call, app)
    value, baseline = median(ours), median(bare)
    met = value <= RATIO * baseline and all(each == [OBJECTS, 0, CHANGED] for each in sent)
    return report(
        f"A4 apply of {OBJECTS} objects in Kubernetes, seconds", value, baseline,
        f"<= {RATIO:g} x a bare client; {OBJECTS}, 0 and {CHANGED} mutating calls", met, calls=sent,
        plain=round(median(plain), 3),
    )  # fmt: skip


def _app(number: int) -> str:
    return f"shop{number}"


async def _applied(world: Setting, call: Call, app: str) -> tuple[float, list[int]]:
    """Seconds until the new objects are reached, and the mutating calls of the three revisions."""
    first, counts = 0.0, list[int]()
    for changed, history in ((0, 10), (0, 9), (CHANGED, 9)):
        before = await world.counts(of=("configmaps",))
        taken = await _reached(call, app, _documents(app, changed), history)
        first = first or taken
        counts.append((await world.counts(of=("configmaps",)) - before).total())
    return first, counts


async def _reached(call: Call, app: str, documents: list[dict[str, Any]], history: int) -> float:
    """Seconds from a revision's record until it is reached."""
    files = [(json.dumps(each), f"{number}.json") for number, each in enumerate(documents)]
    bundle = parse(files, AppSpec(name=app, namespace="ours", history=history))
    found = await commands.apply(call, bundle)
    await commit(call, found.mutation)
    began = time.monotonic()
    key, index = call.keys.work(KIND, app), 0
    async with asyncio.timeout(WITHIN):
        while (await state_of(call, app)).reached != found.app.revision:
            # Parked, because repeated reads would take the cores that the farm and the servers need.
            index, _ = await call.client.get(key, index=index, wait=WITHIN)
    return time.monotonic() - began


async def _removed(world: Setting, call: Call, app: str) -> None:
    """Empty all namespaces, so that each round begins as the first did."""
    deletion, _ = await commands.delete(call, app, keep=False)
    await commit(call, deletion)
    await commands.gone(call, app, WITHIN, lambda _: None)
    for namespace in ("bare", "plain"):
        await world.call(Request("DELETE", CONFIG_MAPS.path(namespace)))


def _documents(app: str, changed: int) -> list[dict[str, Any]]:
    """The objects of an app, of which the first so many differ from those of its first revision."""
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": f"{app}-{number:03}"},
            "data": {"mode": "other" if number < changed else "production"},
        }
        for number in range(OBJECTS)
    ]


def _rights(app: str, namespace: str) -> Request:
    """What makes an app's user an administrator of a namespace."""
    reference = {"kind": "ClusterRole", "name": "cluster-admin", "apiGroup": RBAC}
    subject = {"kind": "User", "name": user_of(app), "apiGroup": RBAC}
    binding = {"metadata": {"name": app}, "subjects": [subject], "roleRef": reference}
    return Request("POST", f"/apis/{RBAC}/v1/namespaces/{namespace}/rolebindings", binding)


def _same(app: str) -> Iterator[Request]:
    """The applies that a farm sends for a new app."""
    for document in _documents(app, 0):
        body = marked(document, OwnerMark(CLUSTER, app, 1))
        body["metadata"]["resourceVersion"] = CREATION
        yield _apply("bare", body, user_of(app))


def _plain(app: str) -> Iterator[Request]:
    """The same objects without marks, by the client's own rights."""
    return (_apply("plain", document) for document in _documents(app, 0))


def _apply(namespace: str, body: dict[str, Any], user: str = "") -> Request:
    said = urlencode({"fieldManager": "bare", "force": "false"})
    path = CONFIG_MAPS.path(namespace, body["metadata"]["name"])
    return Request("PATCH", f"{path}?{said}", body, APPLY, user)
