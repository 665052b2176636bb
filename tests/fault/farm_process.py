"""Farms as processes of their own, for tests that kill and stop them at a chosen point.

A farm is the same parts as ``farmd run``, without its frame.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

import structlog

from farmd.config.kubernetes import KubernetesSection
from farmd.kubernetes.apps import writes
from farmd.kubernetes.contact import opened
from store.keys import Keys
from tests import logs
from tests.fleet import CLOCK, LIMIT, begin_farm, client_of
from tests.forked import NOTHING, Forked
from tests.recorders import CountingRecorder


class FarmProcess:
    """One farm process as a test sees it."""

    def __init__(self, pid: int, log: Path) -> None:
        self.pid = pid
        self.log = log

    def alive(self) -> bool:
        """Whether the process is there (stopped counts)."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def pause(self) -> None:
        """SIGSTOP."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    async def end(self, number: int = signal.SIGKILL) -> None:
        """Signal it and wait until it is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)
            os.kill(self.pid, signal.SIGCONT)
        async with asyncio.timeout(LIMIT):
            while self.alive():
                await asyncio.sleep(0.005)

    def tail(self, lines: int = 15) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


class Nursery:
    """Starts farm processes; a context manager, after which none of them runs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._children: list[Forked] = []

    def farm(self, address: str, name: str, keys: Keys, **settings: Any) -> FarmProcess:
        """Start a farm; returns at once. ``kubernetes``: the fields of its section of that name."""
        path = self._folder / f"{keys.prefix.strip('/')}-{name}.log"
        with NOTHING.open() as null, path.open("a") as log:
            streams = (null.fileno(), log.fileno(), log.fileno())
            child = Forked(_run, address, keys.prefix, {"name": name, **settings}, streams=streams)
        self._children.append(child)
        return FarmProcess(child.pid, path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children:
            child.kill()


def _run(address: str, prefix: str, settings: dict[str, Any]) -> None:
    logs.configure(logger_factory=structlog.WriteLoggerFactory(sys.stderr))
    asyncio.run(_farm(address, prefix, settings))


async def _farm(address: str, prefix: str, settings: dict[str, Any]) -> None:
    async with AsyncExitStack() as stack:
        client = client_of(address)
        stack.push_async_callback(client.close)
        if section := settings.pop("kubernetes", None):
            where = opened(KubernetesSection(**section), {}, CLOCK, random.Random(), CountingRecorder())
            cluster = await stack.enter_async_context(where)
            apps = await stack.enter_async_context(writes.opened(cluster, CLOCK, random.Random()))
            settings["sections"] = {"kubernetes": cluster, "apps": apps}
        chosen = {"kinds": ("rcs",), "thaw_after": 1.0} | settings
        farm = await begin_farm(client, keys=Keys(prefix), **chosen)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, farm.stop.set)
        await farm.task
