"""A rollout whose farms fall at one write after the other: it ends as if none had fallen.

A farm's first two writes are its fence on the record and on the service (R16); the next one is what is cut.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from farmd.kubernetes.errors import Unavailable, UnknownOutcome
from farmd.kubernetes.knative.objects import SERVICES
from farmd.kubernetes.transport import ApiRequest, KubernetesTransport
from tests.fault.farm_process import FarmProcess, Nursery
from tests.fleet import in_time
from tests.kubeconfigs import kubeconfig
from tests.kubernetes.knative_world import Thing
from tests.kubernetes.rollouts import Rollouts
from tests.kubernetes.test_rollout_history import NEW, OLD, THIRD, kept, pushed
from tests.kubernetes_server import ApiServer, Etcd
from tests.mortal import bury
from tests.proxy import Proxy
from tests.proxy_holds import Seen

pytestmark = pytest.mark.xdist_group("kubernetes rollouts")


class Cut:
    """Cuts a transport off at its k-th write; ``done``: the server had done it already."""

    def __init__(self, transport: KubernetesTransport, k: int, *, done: bool) -> None:
        self.happened = asyncio.Event()
        self._send, self._left, self._done = transport.send, k, done
        transport.send = self.send  # type: ignore[method-assign]

    async def send(self, request: ApiRequest, timeout: float = 10.0) -> bytes:
        """In place of the transport's."""
        if self.happened.is_set():
            raise Unavailable("fallen")
        if request.write:
            self._left -= 1
            if self._left == 0:
                self.happened.set()
                if self._done:
                    await self._send(request, timeout)
                raise UnknownOutcome("fallen")
        return await self._send(request, timeout)


@dataclass(frozen=True)
class Through:
    """The API server by way of a proxy."""

    proxy: Proxy

    @property
    def port(self) -> int:
        """That of the proxy."""
        return int(self.proxy.address.rpartition(":")[2])

    def kubeconfig(self, user: str) -> str:
        """Whoever asks is the proxy's own user."""
        return kubeconfig({"server": f"http://{self.proxy.address}"})


def shifts(seen: Seen) -> bool:
    """An apply of the service."""
    return seen.method == "PATCH" and seen.path.endswith("/services/web")


async def farm_process(idle: Rollouts, nursery: Nursery, way: Through, folder: Path) -> FarmProcess:
    """A farm as a process, which asks the API server by way of a proxy."""
    path = folder / "kubeconfig"
    path.write_text(way.kubeconfig("admin"))
    section = {"kubeconfig": str(path), "name": idle.namespace, "namespaces": [idle.namespace]}
    start = partial(nursery.farm, kinds=("progressive",), kubernetes=section)
    return await asyncio.to_thread(start, idle.consul, "mortal", idle.cluster.keys)


def asked(thing: Thing) -> int:
    """The newcomer's share as a version of the service has it."""
    return sum(
        each.get("percent", 0) for each in thing.spec.get("traffic", ()) if each["revisionName"] == NEW
    )


async def test_a_farm_that_is_stopped_before_it_shifts_traffic_takes_none_from_its_heir_when_it_wakes(
    idle: Rollouts, api: Any, nursery: Nursery, tmp_path: Path
) -> None:
    async with Proxy(api.url.removeprefix("https://"), tls=api.login()) as proxy:
        farm = await farm_process(idle, nursery, Through(proxy), tmp_path)
        await pushed(idle, 1, 4)
        await idle.until("the first revision", lambda: idle.rests(OLD, 4))
        hold = proxy.hold(lambda seen: shifts(seen) and b'"percent":25' in seen.body)
        await pushed(idle, 2, 4, 25)
        await in_time(hold.reached.wait())
        farm.pause()
        await idle.farm("heir")
        await bury(idle.cluster)
        await idle.until("the heir's second stage", lambda: idle.traffic().get(NEW) == 50)
        farm.resume()
        hold.release()
        await in_time(hold.finished.wait())
        await idle.until("the second revision", lambda: idle.rests(NEW, 4))
        await farm.end()
    found = list(map(asked, idle.recorded.of(SERVICES, "web")))
    assert found == sorted(found)
    kept(idle)


@pytest.mark.parametrize("done", [False, True])
async def test_a_server_that_restarts_in_the_middle_of_a_shift_delays_the_rollout_alone(
    idle: Rollouts, api: Any, *, done: bool
) -> None:
    """``done``: it did the shift, and the answer is lost."""
    async with Proxy(api.url.removeprefix("https://"), tls=api.login()) as proxy:
        idle.way = Through(proxy)
        await idle.farm("first")
        await pushed(idle, 1, 3)
        await idle.until("the first revision", lambda: idle.rests(OLD, 3))
        hold = proxy.hold(shifts, 3, answer=done)
        await pushed(idle, 2, 3)
        await in_time(hold.reached.wait())
        proxy.refuse()
        hold.drop()
        await idle.play.evict(OLD)  # no watch tells the farm of it
        refused = proxy.refused
        await idle.until("attempts in vain", lambda: proxy.refused > refused + 3)
        proxy.accept()
        await idle.until("the second revision", lambda: idle.rests(NEW, 3))
        await idle.until("no pods of the first", lambda: not idle.play.pods(OLD))
        kept(idle)
        await idle.close()


async def test_a_push_while_the_api_server_is_away_is_the_target_once_it_is_back_and_its_past_forgotten(
    idle: Rollouts, etcd: Etcd
) -> None:
    with ApiServer(etcd, "--watch-cache=false") as server:
        async with Proxy(server.url.removeprefix("https://"), tls=server.login()) as proxy:
            idle.way = Through(proxy)
            await idle.farm("first")
            await pushed(idle, 1, 4)
            await idle.until("the first revision", lambda: idle.rests(OLD, 4))
            await pushed(idle, 2, 4, 25)
            await idle.until("a stage", lambda: idle.traffic().get(NEW) == 25)
            watched = server.ask("GET", SERVICES.path(idle.namespace))["metadata"]["resourceVersion"]
            proxy.freeze()  # watches hang until they break, and go on where they were, or list again
            await asyncio.to_thread(server.stop)
            await pushed(idle, 3, 4, 25)
            await idle.until("pods of the third", lambda: idle.pods(THIRD) == 4)
            await asyncio.to_thread(etcd.compact)
            await asyncio.to_thread(server.start)
            forgotten = f"{SERVICES.path(idle.namespace)}?watch=1&timeoutSeconds=5&resourceVersion={watched}"
            assert server.ask("GET", forgotten)["object"]["code"] == 410
            proxy.thaw()
            await idle.until("the third revision", lambda: idle.rests(THIRD, 4))
            await idle.until("no others", lambda: not idle.play.pods(OLD) and not idle.play.pods(NEW))
            kept(idle)
            await idle.close()


async def inherited(rollouts: Rollouts, k: int, *, done: bool, ended: Callable[[], bool]) -> int:
    """Let one farm after the other fall at its k-th write until the rollout is over; how many fell."""

    def cut(transport: KubernetesTransport) -> Cut:
        return Cut(transport, k, done=done)

    for number in itertools.count():
        name = f"mortal-{number}"
        fallen = await rollouts.changed(name, cut)
        await rollouts.until("an end or a fall", lambda fallen=fallen: fallen.happened.is_set() or ended())
        await rollouts.stop(name)
        if not fallen.happened.is_set():
            break
    return number


@pytest.mark.parametrize(("k", "done"), [(3, True), (4, False)])
@pytest.mark.parametrize("back", [False, True])
async def test_the_rollout_ends_alike_whichever_write_its_farms_fall_at(
    idle: Rollouts, k: int, done: bool, back: bool
) -> None:
    await idle.farm("first")
    await pushed(idle, 1, 3)
    await idle.until("the first revision", lambda: idle.rests(OLD, 3))
    await pushed(idle, 2, 3)
    end = NEW
    if back:
        await idle.until("a stage", lambda: idle.traffic().get(NEW) == 34)
        idle.say("revert")
        end = OLD
    await idle.stop("first")
    fallen = await inherited(idle, k, done=done, ended=lambda: idle.rests(end, 3))
    await idle.farm("last")
    await idle.until("the end", lambda: idle.rests(end, 3))
    await idle.until("no other pods", lambda: not idle.play.pods(OLD if end == NEW else NEW))
    assert fallen > 2
    kept(idle)
