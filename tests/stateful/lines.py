"""What lies between a farm and the store, and everything that may go wrong there: on virtual time.

A ``Line`` is a farm's transport, a ``Hourglass`` its clock. ``frozen`` is a process that was stopped (its
clock goes on, nothing else does), ``cut`` a network that swallows everything, ``dead`` a process that is
no more: what it sent before may still arrive.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import Callable
from typing import Literal

from store.embedded.server import EmbeddedServer, InProcessTransport
from store.errors import OutcomeUnknown, StoreUnavailable
from store.ports import Clock, Request, Response, Rng

Fault = Literal["lost", "unanswered", "late", "error", "applied error", "rejected", "refused"]
FAULTS: tuple[Fault, ...] = (
    "lost",
    "unanswered",
    "late",
    "error",
    "applied error",
    "rejected",
    "refused",
)
Blindness = Literal["", "refused", "silent"]
LATE_SECONDS = 12.0
LATENCY = 0.0005, 0.01


class Door:
    """A server as one caller sees it: tells ``enter`` who comes, right before each request is answered."""

    def __init__(self, server: EmbeddedServer, who: str, enter: Callable[[str], None]) -> None:
        self._server = server
        self._who = who
        self._enter = enter
        self.timer = server.timer

    async def handle(self, request: Request) -> Response:
        # A request changes the store in one step, before it waits for anything.
        self._enter(self._who)
        return await self._server.handle(request)


class Gate:
    """Open or shut; who passes waits while it is shut."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()

    @property
    def shut(self) -> bool:
        return not self._open.is_set()

    def set(self, shut: bool) -> None:
        (self._open.clear if shut else self._open.set)()

    async def passed(self) -> None:
        await self._open.wait()


class Line:
    """A ``store.ports.Transport`` with faults; ``troubled`` tells whether there is one now.

    ``delay`` (seconds) slows each way of a request; ``slow_reads`` makes those of some keys take so long.
    ``last`` is the transaction at which its process died, if it did so in the middle of one.
    """

    def __init__(self, door: Door, clock: Clock, process: Gate, rng: Rng) -> None:
        self._inner = InProcessTransport(door)  # type: ignore[arg-type]
        self._clock = clock
        self._process = process
        self._rng = rng
        self._network = Gate()
        self._faults: deque[tuple[int, Fault]] = deque()
        self._fatal = False
        self._leaderless = False
        self._blind: Blindness = ""
        self._silence = Gate()
        self._under_way: set[asyncio.Task[Response]] = set()
        self.delay = 0.0
        self.slow_reads = "", 0.0
        self.dead = False
        self.last: Request | None = None
        self.faulted_at = float("-inf")

    # -- what may happen to it -----------------------------------------------------------------
    def cut(self, cut: bool) -> None:
        self._trouble()
        self._network.set(cut)

    def leaderless(self, without: bool) -> None:
        """Consul has no leader: nothing is written, and reads are refused."""
        self._trouble()
        self._leaderless = without

    def spoil(self, after: int, fault: Fault) -> None:
        """Something happens to the transaction after so many others."""
        self._faults.append((after, fault))

    def end_at(self, after: int, fault: Fault) -> None:
        """The process dies in the middle of the transaction after so many others, to which this happens."""
        self._fatal = True
        self.spoil(after, fault)

    def blind(self, how: Blindness) -> None:
        """Parked queries are refused, or never answered; everything else goes well."""
        self._trouble()
        self._blind = how
        self._silence.set(how == "silent")

    def heal(self) -> None:
        self._trouble()
        self._faults.clear()
        self.blind("")
        self.delay = 0.0
        self._leaderless = False
        self._network.set(False)

    @property
    def troubled(self) -> bool:
        shut = self._network.shut or self._process.shut
        return shut or self._leaderless or bool(self._blind) or self.delay > 0

    def _trouble(self) -> None:
        self.faulted_at = self._clock.mono()

    # -- the transport -------------------------------------------------------------------------
    async def send(self, request: Request, timeout: float) -> Response:
        sent = self._clock.mono()
        await self._process.passed()
        if self.dead:
            raise StoreUnavailable("the process is dead")
        await self._travel(request, sent + timeout)
        try:
            response = await self._answered(request, timeout)
        finally:
            await self._process.passed()
        if self.dead:
            raise OutcomeUnknown("the process is dead")
        await self._travel(request, sent + timeout)
        await self._process.passed()
        return response

    async def close(self) -> None:
        await self._inner.close()

    async def _travel(self, request: Request, deadline: float) -> None:
        part, seconds = self.slow_reads
        slow = seconds / 2 if part and part in request.path else self.delay
        await asyncio.sleep(slow + self._rng.uniform(*LATENCY))
        if not self._network.shut:
            return
        try:
            await asyncio.wait_for(self._network.passed(), max(0.0, deadline - self._clock.mono()))
        except TimeoutError:
            self._trouble()
            raise OutcomeUnknown(f"{request.method} {request.path}: no answer") from None

    async def _answered(self, request: Request, timeout: float) -> Response:
        if self._leaderless:
            return Response(500, {}, b"No cluster leader")
        if self._blind and "index" in dict(request.params):
            return await self._unseen(request, timeout)
        fault = self._next_fault() if request.path == "/v1/txn" else None
        if fault is None:
            return await self._inner.send(request, timeout)
        self._trouble()
        if self._fatal:
            self.dead, self.last = True, request
        return await self._spoilt(fault, request, timeout)

    async def _unseen(self, request: Request, timeout: float) -> Response:
        self._trouble()
        if self._blind == "refused":
            return Response(500, {}, b"rpc error: No path to datacenter")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._silence.passed(), timeout)
        raise OutcomeUnknown(f"{request.method} {request.path}: no answer")

    def _next_fault(self) -> Fault | None:
        if not self._faults:
            return None
        after, fault = self._faults.popleft()
        if after > 0:
            self._faults.appendleft((after - 1, fault))
            return None
        return fault

    async def _spoilt(self, fault: Fault, request: Request, timeout: float) -> Response:
        if fault == "refused":
            raise StoreUnavailable("connection refused")
        if fault == "rejected":
            last = len(json.loads(request.body)) - 1
            body = {"Results": None, "Errors": [{"OpIndex": last, "What": "failed, index is stale"}]}
            return Response(409, {"content-type": "application/json"}, json.dumps(body).encode())
        if fault == "error":
            return Response(500, {}, b"rpc error: EOF")
        if fault == "late":
            self._under_way.add(task := asyncio.ensure_future(self._later(request, timeout)))
            task.add_done_callback(self._under_way.discard)
        if fault in ("unanswered", "applied error"):
            await self._inner.send(request, timeout)
        if fault == "applied error":
            return Response(500, {}, b"rpc error: EOF")
        raise OutcomeUnknown(f"{request.method} {request.path}: no answer")

    async def _later(self, request: Request, timeout: float) -> Response:
        """A request that lies about in the network: nothing that happens to the farm stops it."""
        await asyncio.sleep(LATE_SECONDS)
        return await self._inner.send(request, timeout)


class Hourglass:
    """A process's clock: its sleeps do not end while the process is stopped."""

    def __init__(self, clock: Clock, process: Gate) -> None:
        self._clock = clock
        self._process = process

    def now(self) -> float:
        return self._clock.now()

    def mono(self) -> float:
        return self._clock.mono()

    async def sleep(self, seconds: float) -> None:
        await self._clock.sleep(seconds)
        if self._process.shut:
            await self._process.passed()
