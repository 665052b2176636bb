"""One farm in a process of its own: ``farmd run``, which also reports the events that rows measure.

``python -m bench.farm_process CONFIG``
Configuration, kinds, HTTP, logs and watchdog are those of production. Its metrics also tell an event for
each batch of locks that the farm takes, and for each transaction that places or removes pods, makes a
job or ends a rollout when it was acknowledged, with the machine's monotonic time. The line ``requests`` on
stdin is answered with the number of requests to Consul so far, by their kind; ``bodies`` with the
transactions that placed or removed pods or made jobs since the last such line; ``profile`` starts a profile,
and the next ``profile`` writes it to ``farm.profile``; the end of stdin stops the farm cleanly, as SIGTERM
does.
"""

from __future__ import annotations

import asyncio
import base64
import cProfile
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from bench.processes import Child, tell
from farmd.config.sources import load
from farmd.observe.metrics import Role
from farmd.observe.recorder import Metrics
from farmd.process import daemon
from store.consul import transport
from store.consul.transport import HttpTransport
from store.ports import Request, Response

TELLING_SECONDS = 0.1
REST_SECONDS, REST_SHARE = 4.0, 0.1
OF_EVERY_FARM = {"watch", "session_renew", "status"}
"""Requests that a farm makes whatever it owns: parked queries, renewals, looks at who leads Consul."""

CONFIG = """
[farm]
name = "{name}"
selector = "{selector}"
{kinds}
[store]
address = "{address}"
[web]
farm_port = 0
port_file = "{folder}/port"
[log]
level = "info"
format = "json"
"""


class _Telling(Metrics):
    """Metrics that also report each batch of locks that is taken, and count the requests."""

    def __init__(self, registry: CollectorRegistry, role: Role = "both") -> None:
        super().__init__(registry, role)
        threading.Thread(target=_obey_stdin, daemon=True).start()

    def count(self, name: str, value: float = 1, /, **labels: str) -> None:
        super().count(name, value, **labels)
        if name == "farmd_store_requests_total":
            _requests[labels["op"]] += 1
        if name == "farmd_lock_events_total" and labels["event"] == "claimed" and value:
            tell("claimed", count=value)


class _TellingTransport(HttpTransport):
    """A transport that also reports each acknowledged transaction with an intent, and the end of rollouts."""

    async def send(self, request: Request, timeout: float) -> Response:
        """Send a request."""
        response = await super().send(request, timeout)
        if request.path == "/v1/txn" and response.status == 200 and _is_told(request.body):
            if not _acknowledged:
                asyncio.get_running_loop().call_later(TELLING_SECONDS, _tell_placed)
            _acknowledged.append((time.monotonic(), request.body))
        if request.path == "/v1/txn" and response.status == 200 and b"/history/" in request.body:
            tell("ended")
        return response


def _is_told(body: bytes) -> bool:
    """Whether a transaction changes where pods are, or makes a job."""
    return b"/intent/" in body or b"/names/jobs/" in body


_requests = Counter[str]()
_placed: list[bytes] = []
"""Bodies with intents that nobody has asked for yet; to print each at once would delay what is measured."""


_acknowledged: list[tuple[float, bytes]] = []
"""(when, body) of transactions with intents; each told at once would cost the farm time that is measured."""


def _tell_placed() -> None:
    _placed.extend(body for _, body in _acknowledged)  # first: who hears of one asks for its body
    for at, body in _acknowledged:
        tell("placed", at=at, pods=body.count(b'"Key":"farmd/intent/'))
    _acknowledged.clear()


def _obey_stdin() -> None:
    for line in sys.stdin:
        if line.strip() == "profile":
            signal.raise_signal(signal.SIGUSR2)
        elif line.strip() == "bodies":
            count = len(_placed)
            for _ in range(count):
                tell("body", body=base64.b64encode(_placed.pop(0)).decode())
            tell("bodies", count=count)
        else:
            tell("requests", counts=_requests)
    signal.raise_signal(signal.SIGTERM)


def _profile_on_demand() -> None:
    """Profile the CPU time of the main thread between two SIGUSR2; other programs do not count."""
    profile, running = cProfile.Profile(time.thread_time), False

    def toggle(*_: object) -> None:
        nonlocal running
        running = not running
        if running:
            profile.enable()
        else:
            profile.disable()
            profile.dump_stats(os.environ.get("FARM_PROFILE", "farm.profile"))

    signal.signal(signal.SIGUSR2, toggle)


def main(path: Path) -> int:
    """Run as ``farmd run --config PATH`` would."""
    tell("started")
    _profile_on_demand()
    daemon.Metrics = _Telling  # type: ignore[attr-defined]
    transport.HttpTransport = _TellingTransport  # type: ignore[misc]

    return daemon.run_farm(load(path, {}), lambda: load(path, {}), {})


class FarmProcess(Child):
    """A farm process as its parent sees it; ``more`` are further sections of its configuration."""

    def __init__(
        self, address: str, name: str, selector: str = "", more: str = "", kinds: tuple[str, ...] = ()
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="farmd-bench-farm-")
        path = Path(self._folder.name) / "farmd.toml"
        chosen = f"kinds = {json.dumps(kinds)}" if kinds else ""
        folder = self._folder.name
        config = CONFIG.format(name=name, selector=selector, address=address, kinds=chosen, folder=folder)
        path.write_text(config + more)
        self.name = name
        super().__init__("bench.farm_process", [str(path)])

    def port(self) -> int:
        """The port of its page and metrics, once it is ready."""
        return int(Path(self._folder.name, "port").read_text())

    def claims(self, since: float = 0.0) -> list[tuple[float, int]]:
        """(when, how many) of each batch of locks after a moment."""
        told = [each for each in self.events if each["event"] == "bench.claimed" and each["at"] > since]
        return [(each["at"], int(each["count"])) for each in told]

    def taken(self, kind: str, since: float = 0.0) -> list[tuple[float, int]]:
        """(when, how many) items of a kind that got their workers after a moment."""
        told = [each for each in self.events if each["event"] == "claims.taken" and each["at"] > since]
        return [(each["at"], int(each["count"])) for each in told if each["kind"] == kind]

    def claimed(self) -> int:
        """How many locks the farm has taken so far."""
        return sum(count for _, count in self.claims())

    async def at_rest(self, within: float) -> None:
        """Return once the farm has looked at all that it owns, and computes next to nothing."""
        deadline = time.monotonic() + within
        while time.monotonic() < deadline:
            before = self.cpu_seconds()
            await asyncio.sleep(REST_SECONDS)
            if self.cpu_seconds() - before < REST_SHARE * REST_SECONDS:
                return
        raise RuntimeError(f"{self.name} is not at rest after {within:.0f} s")

    async def placed(self, since: float, within: float = 10.0) -> tuple[float, bytes]:
        """(when, body) of the first acknowledged transaction with an intent after a moment."""

        def found() -> list[dict[str, Any]]:
            return [each for each in self.events if each["event"] == "bench.placed" and each["at"] > since]

        await self.until(lambda: bool(found()), within, "pods are placed")
        return found()[0]["at"], (await self.bodies())[0]

    async def all_placed(self, pods: int, since: float, within: float = 60.0) -> float:
        """When so many pods had been placed after a moment."""

        def found() -> list[dict[str, Any]]:
            return [each for each in self.events if each["event"] == "bench.placed" and each["at"] > since]

        what = f"{pods} pods are placed"
        await self.until(lambda: sum(each["pods"] for each in found()) >= pods, within, what)
        return float(found()[-1]["at"])

    def transactions(self, since: float) -> list[tuple[float, int]]:
        """(when, how many intents) of each transaction that placed or removed pods after a moment."""
        told = [each for each in self.events if each["event"] == "bench.placed" and each["at"] > since]
        return [(each["at"], int(each["pods"])) for each in told]

    async def bodies(self) -> list[bytes]:
        """The bodies of the acknowledged transactions with intents since the last call."""
        known = len(self.events)
        await self.ask("bodies", "bench.bodies", 60.0)
        told = [each["body"] for each in self.events[known:] if each["event"] == "bench.body"]
        return [base64.b64decode(body) for body in told]

    async def requests(self) -> Counter[str]:
        """How many requests the farm has made to Consul so far, by their kind."""
        return Counter((await self.ask("requests", "bench.requests"))["counts"])

    async def end(self, kill: bool = False) -> None:
        """Stop the process, with SIGKILL if ``kill``, and reap it."""
        await super().end(kill)
        self._folder.cleanup()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
