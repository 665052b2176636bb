"""A rollout whose farms fall at one write after the other: it ends as if none had fallen.

A farm's first two writes are its fence on the record and on the service (R16); the next one is what is cut.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from farmd.kubernetes.errors import Unavailable, UnknownOutcome
from farmd.kubernetes.transport import KubernetesTransport, Request
from tests.fleet import in_time
from tests.kubeconfigs import kubeconfig
from tests.kubernetes.rollouts import Rollouts
from tests.kubernetes.test_rollout_history import NEW, OLD, kept, pushed
from tests.proxy import Proxy
from tests.proxy_holds import Seen

pytestmark = pytest.mark.xdist_group("kubernetes rollouts")


class Cut:
    """Cuts a transport off at its k-th write; ``done``: the server had done it already."""

    def __init__(self, transport: KubernetesTransport, k: int, *, done: bool) -> None:
        self.happened = asyncio.Event()
        self._send, self._left, self._done = transport.send, k, done
        transport.send = self.send  # type: ignore[method-assign]

    async def send(self, request: Request, timeout: float = 10.0) -> bytes:
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
