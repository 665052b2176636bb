"""One embedded server: the state behind both faces, and the waits of blocking queries.

A request is answered in one step without an await, so it sees and leaves a consistent state. Only a
blocking query waits: for a wake-up from a commit, or for the end of its wait by the injected clock.
While a query waits, one task ends sessions in time; otherwise the next request ends them first, and
no client sees a difference.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping
from typing import Any

from store.embedded import answers, api
from store.embedded.answers import HttpError, Query
from store.embedded.calls import Blocking, Call, Identity, Policy
from store.embedded.dialects import dialect
from store.embedded.state import Limits, State, Timer
from store.errors import OutcomeUnknown, StoreUnavailable
from store.ports import Ids, Request, Response, Rng

VERSION = "1.8.7"
JITTER = 1 / 16


class EmbeddedServer:
    """Answers Consul's HTTP API from memory.

    Args:
        timer: the clock; ``store.ports.Clock`` fits.
        rng: jitter of waits.
        ids: a session id is made of two of them.
        limits: those of the version by default.
        policies: access rights by token, ``""`` for requests without one; None: no access control.
        state: the state to continue from, as ``persistence.load`` returns it.
        version: the Consul whose answers are given, and which is told.
    """

    def __init__(
        self,
        timer: Timer,
        *,
        rng: Rng,
        ids: Ids,
        limits: Limits | None = None,
        policies: Mapping[str, Policy] | None = None,
        state: State | None = None,
        node: str = "embedded",
        version: str = VERSION,
    ) -> None:
        spoken = dialect(version)
        self.state = state or State(timer, limits or Limits(operations=spoken.operations))
        self.state.speak(spoken)
        self.timer = timer
        self._rng = rng
        self._ids = ids
        self._policies = None if policies is None else dict(policies)
        self.identity = Identity(node, _uuid(self._ids), version, "127.0.0.1:8300")
        self.state.catalog.host(node, self.identity.node_id, self.identity.address.rpartition(":")[0])
        self._waiting = 0
        self._expiry: asyncio.Task[None] | None = None
        self._armed: float | None = None
        self._earlier = asyncio.Event()

    async def handle(self, request: Request) -> Response:
        """Answer one request; only a blocking query waits.

        The header ``content-length`` tells the size of a body that was not read.
        """
        self.state.expire()
        found = api.find(request)
        if isinstance(found, Response):
            return found
        route, rest = found
        try:
            call = self._call(request, rest)
        except HttpError as error:
            return error.response()
        answer = api.answer(route, call)
        self._rearm()
        if isinstance(answer, Query):
            answer = await self._wait(answer, call.options())
        return answers.pretty(answer) if "pretty" in call.params else answer

    def _call(self, request: Request, rest: str) -> Call:
        return Call(
            state=self.state,
            identity=self.identity,
            request=request,
            policy=api.policy(request, self._policies),
            rest=rest,
            params=dict(reversed(request.params)),  # the first of equal names counts
            length=int(request.headers.get("content-length", len(request.body))),
            new_session_id=_uuid(self._ids),
        )

    async def _wait(self, query: Query, blocking: Blocking) -> Response:
        """Read until the index is above the caller's, or the wait is over."""
        reading = query.read()
        if blocking.index == 0 or reading.index > blocking.index:
            return reading.render()
        wait = blocking.wait + self._rng.uniform(0, blocking.wait * JITTER)
        over = asyncio.ensure_future(self.timer.sleep(wait))
        self._enter()
        try:
            while reading.index <= blocking.index and not over.done():
                woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                forget = query.watch(functools.partial(_resolve, woken))
                try:
                    await asyncio.wait({woken, over}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    forget()
                reading = query.read()
        finally:
            over.cancel()
            self._leave()
        return reading.render()

    def _enter(self) -> None:
        self._waiting += 1
        if self._expiry is None:
            self._expiry = asyncio.ensure_future(self._expire())

    def _leave(self) -> None:
        self._waiting -= 1
        if self._waiting == 0 and self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

    def _rearm(self) -> None:
        """Wake the expiry task if a request set an earlier deadline than the one it sleeps for."""
        deadline = self.state.next_deadline()
        if deadline is not None and (self._armed is None or deadline < self._armed):
            self._earlier.set()

    async def _expire(self) -> None:
        """End each session at its deadline."""
        while True:
            self._earlier.clear()
            deadline = self._armed = self.state.next_deadline()
            waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(self._earlier.wait())]
            if deadline is not None:
                seconds = max(0.0, deadline - self.timer.mono())
                waits.append(asyncio.ensure_future(self.timer.sleep(seconds)))
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each in waits:
                    each.cancel()
            self.state.expire()


def _resolve(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)


def _uuid(ids: Ids) -> str:
    digits = ids.new() + ids.new()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


# The embedded server without a network: a ``store.ports.Transport`` for tests in virtual time.
#
# It takes no real time: a request is answered within one turn of the loop, and the wait of a blocking
# query is measured by the server's clock.


class InProcessTransport:
    """Passes requests to a server in this process; several transports may share one server."""

    def __init__(self, server: EmbeddedServer) -> None:
        self._server = server
        self._closed = False

    async def send(self, request: Request, timeout: float) -> Response:
        """See ``store.ports.Transport``; ``timeout`` counts on the server's clock.

        Raises:
            StoreUnavailable: the transport is closed.
            OutcomeUnknown: no answer within ``timeout``.
        """
        if self._closed:
            raise StoreUnavailable("the transport is closed")
        await _turn()
        if all(name != "index" for name, _ in request.params):
            return await self._server.handle(request)
        answer = asyncio.ensure_future(self._server.handle(request))
        over = asyncio.ensure_future(self._server.timer.sleep(timeout))
        try:
            await asyncio.wait({answer, over}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise OutcomeUnknown(f"{request.method} {request.path}: no answer within {timeout:g} s")
            return answer.result()
        finally:
            answer.cancel()
            over.cancel()

    async def close(self) -> None:
        """Refuse all further requests; the server keeps running."""
        self._closed = True


async def _turn() -> None:
    """Let all other tasks run once, as they would during a network request."""
    loop = asyncio.get_running_loop()
    passed: asyncio.Future[None] = loop.create_future()
    loop.call_soon(_pass, passed)
    await passed


def _pass(turn: asyncio.Future[None]) -> None:
    """End the turn, unless the caller was cancelled during it."""
    if not turn.done():
        turn.set_result(None)
