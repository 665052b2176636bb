"""A kubelet for many namespaces at once: each pod ends as a test says, as soon as it is seen."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from farmd.kubernetes.client import MERGE_PATCH
from farmd.kubernetes.errors import NotFound, Unavailable, UnknownOutcome
from farmd.kubernetes.objects import PODS, SERVICES
from farmd.kubernetes.transport import ApiRequest, KubernetesTransport
from tests.fleet import LIMIT
from tests.kubernetes.farmjobs import JOBS

LOOK_SECONDS = 0.2
CHOSEN = (("labelSelector", "farmd.io/kind=farmjob"),)

Objects = dict[str, dict[str, Any]]


@dataclass(eq=False)
class Kubelet:
    """``pods``, ``services`` and ``jobs`` by namespace and name as they were last seen.

    ``started`` is every pod that ever was, as name and attempt. ``tell`` is the status of a pod that was not
    seen before.
    """

    transport: KubernetesTransport
    tell: Callable[[str, int], dict[str, Any]]
    pods: dict[str, Objects] = field(default_factory=dict)
    services: dict[str, Objects] = field(default_factory=dict)
    jobs: dict[str, Objects] = field(default_factory=dict)
    started: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    _known: set[str] = field(default_factory=set)
    _told: set[str] = field(default_factory=set)
    _looked: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def run(self) -> None:
        """Look, tell and wait, for ever."""
        while True:
            with contextlib.suppress(Unavailable, UnknownOutcome):  # it looks again, and tells again
                await self._look()
            await asyncio.sleep(LOOK_SECONDS)

    async def _look(self) -> None:
        found = await self._list(PODS.path(), CHOSEN)
        new = [pod for pod in found if pod["metadata"]["uid"] not in self._told]
        await asyncio.gather(*map(self._end, new))
        self.pods = _sorted(pod for pod in found if "deletionTimestamp" not in pod["metadata"])
        self.services = _sorted(await self._list(SERVICES.path(), CHOSEN))
        self.jobs = _sorted(await self._list(JOBS.path(), ()))
        async with self._looked:
            self._looked.notify_all()

    async def until(self, so: Callable[[], bool], told: Callable[[], object]) -> None:
        """Return when something is so of what was seen; fails with what is ``told`` then."""
        try:
            async with asyncio.timeout(LIMIT), self._looked:
                await self._looked.wait_for(so)
        except TimeoutError:
            raise AssertionError(f"it did not come to that; last: {told()}") from None

    async def _list(self, path: str, params: tuple[tuple[str, str], ...]) -> list[dict[str, Any]]:
        body = await self.transport.send(ApiRequest("GET", path, params), LIMIT)
        items: list[dict[str, Any]] = msgspec.json.decode(body)["items"]
        return items

    async def _end(self, pod: dict[str, Any]) -> None:
        meta = pod["metadata"]
        name, attempt = meta["name"], int(meta["annotations"]["farmd.io/attempt"])
        if meta["uid"] not in self._known:
            self._known.add(meta["uid"])
            self.started.setdefault(meta["namespace"], []).append((name, attempt))
        body = msgspec.json.encode({"status": self.tell(name, attempt)})
        path = PODS.path(meta["namespace"], name, "status")
        with contextlib.suppress(NotFound):  # it may be gone again
            await self.transport.send(ApiRequest("PATCH", path, body=body, content_type=MERGE_PATCH), LIMIT)
        self._told.add(meta["uid"])


@asynccontextmanager
async def kubelet_on(
    transport: KubernetesTransport, tell: Callable[[str, int], dict[str, Any]]
) -> AsyncIterator[Kubelet]:
    """A kubelet for the length of a ``with`` block."""
    kubelet = Kubelet(transport, tell)
    async with asyncio.TaskGroup() as together:
        running = together.create_task(kubelet.run())
        yield kubelet
        running.cancel()


def _sorted(found: Any) -> dict[str, Objects]:
    sorted_: dict[str, Objects] = {}
    for each in found:
        sorted_.setdefault(each["metadata"]["namespace"], {})[each["metadata"]["name"]] = each
    return sorted_
