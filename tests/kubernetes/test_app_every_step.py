"""A farm that falls away at each packet of an app with objects in Kubernetes, and another that goes on.

The app makes three config maps; then it changes one, makes another in a second wave, and collects a third. CI
lets farms fall at the first, the last and a tenth of these steps, ``FARMD_EVERY_STEP=1`` at each of them.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from farmd.kubernetes.apps.marks import APPLIED, LABEL, mark_in
from farmd.kubernetes.objects import Resource
from store.apps import KIND
from store.errors import Conflict
from tests.fault.falling import FATES
from tests.fault.farm_process import Nursery
from tests.fault.rig import NEVER
from tests.fleet import eventually
from tests.kubernetes.apps import Apps
from tests.kubernetes.falling import Fall, Fate, Front, Point, proxies, sampled, tried
from tests.kubernetes.knative_world import Thing
from tests.kubernetes.recording import Recording, Version, recording
from tests.kubernetes.test_apps import config
from tests.kubernetes_server import ApiServer
from tests.proxy import Hold
from tests.proxy_holds import Match

WHOLE = os.environ.get("FARMD_EVERY_STEP") == "1"
pytestmark = [
    pytest.mark.xdist_group("kubernetes"),
    pytest.mark.slow,
    pytest.mark.timeout(3600 if WHOLE else 480),
]

CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
SEED = 1
AT_ONCE = 6
FIRST = (config("a", x="1"), config("b", x="1"), config("old", x="1"))
SECOND = (config("a", x="2"), config("b", x="1"), config("c", 1, x="1"))
THEIRS = ("theirs", "others")
# The data and the number of the target in each version of each object; None: it is gone.
STORY: dict[str, list[tuple[str, int] | None]] = {
    "a": [("1", 1), ("2", 2)],
    "b": [("1", 1)],
    "old": [("1", 1), None],
    "c": [("1", 2)],
}
GHOST = [*STORY["old"], *STORY["old"]]


@dataclass(kw_only=True)
class Case(Front):
    """The app ``shop``, and two config maps beside it that are not its own."""

    apps: Apps
    recorded: Recording
    people: asyncio.Task[None] | None = None

    kinds = (KIND, "kubejobs")

    async def begin(self) -> None:
        """People go on as far as the app does."""
        self.people = asyncio.create_task(self._story())

    async def _story(self) -> None:
        await asyncio.to_thread(self.apps.allow, "shop")
        for name, labels in zip(THEIRS, ({}, {LABEL: "other"}), strict=True):
            body = {"metadata": {"name": name, "labels": labels}, "data": {"x": "theirs"}}
            await self._asked("POST", CONFIG_MAPS.path(self.namespace), body)

        async def applied() -> bool:
            try:
                await self.apps.apply("shop", *FIRST)
            except Conflict:  # no farm serves the cluster before the first is there, and after it fell
                return False
            return True

        await eventually(applied, what="the first revision")
        await self.apps.reached("shop", 1)
        await self.apps.apply("shop", *SECOND, prune=True)

    async def ended(self) -> None:
        """Return when the second revision is reached, nothing else bears the mark, and all is recorded."""
        assert self.people is not None
        await asyncio.shield(self.people)
        await self.apps.reached("shop", 2)
        wanted = {name for name, told in STORY.items() if told[-1] is not None}

        async def alone() -> bool:
            return await self._standing() == wanted

        await eventually(alone, what="the objects of the second revision, and no others")
        made = await self._asked(
            "POST", CONFIG_MAPS.path(self.namespace), {"metadata": {"generateName": "end-"}}
        )
        last = made["metadata"]["name"]

        async def told() -> bool:
            return any(each.name == last for each in self.recorded.versions)

        await eventually(told, what="the last version")

    async def _standing(self) -> set[str]:
        path = f"{CONFIG_MAPS.path(self.namespace)}?labelSelector={LABEL}%3Dshop"
        return {each["metadata"]["name"] for each in (await self._asked("GET", path))["items"]}

    async def _asked(self, *request: Any) -> Any:
        """The administrator's answer."""
        return await asyncio.to_thread(self.apps.api.ask, *request)

    def judge(self, hold: Hold, fate: Fate) -> None:
        """Each object went through its versions and no others, in the order of the steps."""
        history = list(self.recorded.history())
        story = {name: [_told(each) for each in history if each.name == name] for name in STORY}
        late = fate == "stopped, sent late" and hold.seen is not None and hold.seen.method == "PATCH"
        if late and story["old"] == GHOST:  # it was made after the sweep, and collected again
            story["old"] = STORY["old"]
        assert story == STORY  # A5, A9: nothing is written twice, and a later target never becomes an earlier
        for each in history:
            _rules(each)


def _told(version: Version) -> tuple[str, int] | None:
    if version.after is None:
        return None
    mark = mark_in(version.after.metadata.annotations)
    assert mark is not None
    return version.after.data["x"], mark.seq


def _rules(version: Version) -> None:
    """What must hold of each version, by what stood just before it."""
    stood = {name: each for (_, name), each in version.world.items()}
    if version.name in THEIRS:
        assert version.before is None, f"A1: {version}"
    elif version.after is None:
        assert version.name == "old", f"A2: {version}"
        assert _value(stood, "a") == "2", f"A2: {version}"
        assert "c" in stood, f"A2: {version}"
    elif version.after.metadata.annotations.get(APPLIED, "").split("/")[1:2] == ["shop"]:
        assert version.name in STORY, f"A4: {version}"
        assert version.name != "c" or _value(stood, "a") == "2", f"A3: {version}"


def _value(stood: dict[str, Thing], name: str) -> str:
    return stood[name].data["x"] if name in stood else ""


Try = Callable[[Fall], Any]


@pytest.fixture
async def one(
    api: ApiServer, consul_dev: str, nursery: Nursery, tmp_path: Path, namespace: str, connect: Any
) -> AsyncIterator[Try]:
    """Lets a farm fall in a namespace and a cluster of its own; how many packets of each sort there were."""
    numbers, gate = itertools.count(), asyncio.Semaphore(AT_ONCE)

    async def tried_alone(fall: Fall) -> dict[Point, int]:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(gate)
            own = await asyncio.to_thread(api.namespace, f"{namespace}-{next(numbers)}")
            recorded = await stack.enter_async_context(recording(admin, own, (CONFIG_MAPS,)))
            cluster, consul, front = await stack.enter_async_context(proxies(api, consul_dev))
            apps = Apps(api, own, cluster, consul_dev, connect)
            case = Case(own, tmp_path, nursery, cluster, consul, front, apps=apps, recorded=recorded)
            try:
                return await tried(case, fall)
            finally:
                if case.people is not None:
                    case.people.cancel()

    # One connection for all: a dozen logins at once would hold the loop longer than their limits allow.
    async with connect(api) as admin:
        yield tried_alone


@pytest.mark.parametrize("way", ["killed", "stopped"])
async def test_r16_whoever_takes_an_app_over_at_any_request_comes_to_the_same_end(one: Try, way: str) -> None:
    calm = await one(Fall("writes", NEVER, "killed, never sent"))
    assert calm["writes"] >= 6, "four objects are made, one of them is changed and one is collected"
    every = ((point, k) for point, count in calm.items() for k in range(1, count + 1))
    async with asyncio.TaskGroup() as together:
        for at, (point, k) in enumerate(every if WHOLE else sampled(calm, SEED)):
            fates = (FATES[(at + turn) % len(FATES)] for turn in (0, 2))  # one kills, the other stops
            fate = next(fate for fate in fates if fate.startswith(way))
            together.create_task(one(Fall(point, k, fate)))


async def test_r16_what_a_former_owner_creates_after_its_heir_came_to_the_end_does_not_stay(one: Try) -> None:
    """The heir has changed ``a`` since, and collected ``old``."""

    def creation(name: str) -> Match:
        return lambda seen: seen.method == "PATCH" and seen.path.endswith(f"/configmaps/{name}")

    late = (Fall("writes", 1, "stopped, sent late", creation(name)) for name in ("a", "old"))
    await asyncio.gather(*map(one, late))
