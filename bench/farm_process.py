"""One farm as a process of its own, for rows that need several.

``python -m bench.farm_process ADDRESS NAME``
It prints one JSON line when it starts, when it is ready, and for each batch of locks that it takes, with the
machine's monotonic time; SIGTERM stops it cleanly. The same parts as ``farmd run``, without its frame.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry

from farmd.clock import SystemIds
from farmd.farm.model import FarmSettings
from farmd.memory import return_large_blocks
from farmd.metrics import Metrics
from farmd.progress import Progress
from farmd.wiring import build_farm
from tests.fleet import CLOCK, KEYS, Inbox, client_of

ROOT = Path(__file__).parent.parent


class _Telling(Metrics):
    """Metrics that also tell about locks as they are taken, and how many requests were made."""

    requests = 0

    def count(self, name: str, value: float = 1, /, **labels: str) -> None:
        super().count(name, value, **labels)
        if name == "farmd_store_requests_total":
            self.requests += 1
        if name == "farmd_lock_events_total" and labels["event"] in ("claimed", "adopted") and value:
            tell("claimed", count=value)


def tell(event: str, **fields: object) -> None:
    """One line for the parent."""
    print(json.dumps({"event": event, "at": time.monotonic(), **fields}), flush=True)


async def main(address: str, name: str) -> None:
    """Run until SIGTERM."""
    return_large_blocks()
    tell("started")
    client, stop = client_of(address), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    metrics = _Telling(CollectorRegistry())
    asyncio.get_running_loop().add_signal_handler(
        signal.SIGUSR1, lambda: tell("requests", count=metrics.requests)
    )
    farm = await build_farm(
        settings=FarmSettings(name=name),
        client=client,
        keys=KEYS,
        clock=CLOCK,
        rng=random.Random(name),
        ids=SystemIds(),
        recorder=metrics,
        progress=Progress(CLOCK, metrics),
        alerter=Inbox(),
    )
    running = asyncio.create_task(farm.run(stop))
    ready = asyncio.create_task(farm.ready.wait())
    await asyncio.wait([running, ready], return_when=asyncio.FIRST_COMPLETED)
    tell("ready")
    await running
    await client.close()


class FarmProcess:
    """A farm process as its parent sees it; ``events`` grow as lines arrive."""

    def __init__(self, address: str, name: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bench.farm_process", address, name], stdout=subprocess.PIPE, cwd=ROOT
        )
        self.events: list[dict[str, float]] = []
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        reader = asyncio.StreamReader(limit=1 << 20)
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: protocol, self.process.stdout
        )
        try:
            async for line in reader:
                self.events.append(json.loads(line))
        finally:
            transport.close()

    def at(self, event: str) -> float | None:
        """When an event was first told."""
        return next((each["at"] for each in self.events if each["event"] == event), None)

    def claims(self, since: float = 0.0) -> list[tuple[float, int]]:
        """(when, how many) of each batch of locks after a moment."""
        return [
            (e["at"], int(e["count"])) for e in self.events if e["event"] == "claimed" and e["at"] > since
        ]

    async def requests(self) -> int:
        """How many requests it has made to Consul so far."""
        known = len(self.events)
        self.process.send_signal(signal.SIGUSR1)
        await wait_for(lambda: any(e["event"] == "requests" for e in self.events[known:]), 10, "an answer")
        return int(self.events[-1]["count"])

    async def end(self, kill: bool = False) -> None:
        """Stop it, cleanly or not, and reap it."""
        (self.process.kill if kill else self.process.terminate)()
        await asyncio.to_thread(self.process.wait)
        await self._task


async def wait_for(condition: Callable[[], bool], within: float, what: str) -> None:
    """Return when the condition holds."""
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what} did not happen within {within} s")
        await asyncio.sleep(0.02)


if __name__ == "__main__":
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(30),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    asyncio.run(main(sys.argv[1], sys.argv[2]))
