"""Asks the gates of rollouts: addresses over HTTP, and queries of the farm's Prometheus.

Addresses stand in records, so anybody who may write those chooses what the farm asks. So a gate follows no
redirect, reads little, and reaches no address that gives a machine's secrets away, whatever a name resolves
to. An answer says whether a gate passes or fails; all else is no data, as when no server is reached.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

import aiohttp

from farmd.config.sections import RolloutsSection
from farmd.rollout.judgement import GateAnswer, GateJudgement, NoData, Standings, judged, value
from farmd.runtime.wake import Wake
from store import credentials
from store.credentials import refusal
from store.errors import CredentialInvalid
from store.policies import Gate
from store.ports import Clock, Recorder

AT_ONCE, OF_ONE_HOST, OF_PROMETHEUS = 64, 8, 32
MOST_BYTES = 64 * 1024
LONGEST_TEXT = 200
# The status names each gate's last answer; while verdicts stay the same, it need not be the very last one.
TOLD_SECONDS = 60.0

Ask = Callable[[Gate], Awaitable[GateAnswer]]


async def unasked(_: Gate) -> GateAnswer:
    """The answer where a farm has no means to ask."""
    return GateAnswer("none", "this farm evaluates no gates")


class Asker:
    """Asks one gate once. ``prometheus`` is the server's address, ``token`` its bearer token's source."""

    def __init__(
        self, http: aiohttp.ClientSession, prometheus: str = "", token: Callable[[], str] | None = None
    ) -> None:
        self._http = http
        self._prometheus = prometheus.rstrip("/")
        self._token = token
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._hosts: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def __call__(self, gate: Gate) -> GateAnswer:
        """The answer, within the gate's timeout once it is this gate's turn."""
        if not gate.http and not self._prometheus:
            return GateAnswer("none", "this farm has no Prometheus: rollouts.prometheus_url is not set")
        host = urlsplit(gate.http or self._prometheus).netloc
        # A host that hangs keeps no gate of others waiting.
        most = OF_ONE_HOST if gate.http else OF_PROMETHEUS  # which all rollouts share
        slots = self._hosts.setdefault(host, asyncio.Semaphore(most))
        async with slots, self._slots:
            try:
                async with asyncio.timeout(gate.timeout):
                    found = await (self._address(gate) if gate.http else self._query(gate))
            except TimeoutError:
                found = GateAnswer("none", f"no answer within {gate.timeout:g} s")
            except (NoData, CredentialInvalid, aiohttp.ClientError, OSError, ValueError) as error:
                found = GateAnswer("none", _reason(error))
        return GateAnswer(found.result, " ".join(found.text.split())[:LONGEST_TEXT])

    async def _address(self, gate: Gate) -> GateAnswer:
        async with self._http.get(gate.http, allow_redirects=False) as response:
            expected = gate.expect or 200
            if response.status == expected:
                return GateAnswer("pass", f"HTTP {expected}")
            return GateAnswer("fail", f"HTTP {response.status}, expected {expected}")

    async def _query(self, gate: Gate) -> GateAnswer:
        headers = {"Authorization": f"Bearer {self._token()}"} if self._token is not None else {}
        async with self._http.get(
            f"{self._prometheus}/api/v1/query",
            params={"query": gate.prometheus, "timeout": f"{gate.timeout:g}s"},
            headers=headers,
            allow_redirects=False,
        ) as response:
            body = bytearray()
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) > MOST_BYTES:
                    raise NoData(f"Prometheus: an answer of more than {MOST_BYTES // 1024} KB")
            return judged(gate, value(response.status, bytes(body)))


@asynccontextmanager
async def asking() -> AsyncIterator[aiohttp.ClientSession]:
    """A session for gates alone: a new connection for each answer, to no address that is refused."""
    connector = aiohttp.TCPConnector(force_close=True, limit=AT_ONCE, socket_factory=_socket)
    jar, timeout = aiohttp.DummyCookieJar(), aiohttp.ClientTimeout()
    async with aiohttp.ClientSession(connector=connector, cookie_jar=jar, timeout=timeout) as session:
        yield session


def opened(section: RolloutsSection) -> AbstractAsyncContextManager[Asker]:
    """What asks the gates of a farm's rollouts."""
    return _opened(section)


@asynccontextmanager
async def _opened(section: RolloutsSection) -> AsyncIterator[Asker]:
    token = credentials.reread("rollouts.prometheus_token_file", section.prometheus_token_file)
    async with asking() as http:
        yield Asker(http, section.prometheus_url, token)


def _socket(address: tuple[Any, ...]) -> socket.socket:
    """A socket for an address that was resolved, or stood in the URL."""
    family, kind, protocol, _, where = address
    if why := refusal(str(where[0])):
        raise OSError(f"refused: {why}")
    return socket.socket(family, kind, protocol)


def _reason(error: Exception) -> str:
    inner = getattr(error, "os_error", error)
    return getattr(inner, "strerror", None) or str(inner) or type(inner).__name__


class GateWatch:
    """The gates of one rollout, each asked by a task of its own as long as the rollout holds it.

    ``wake`` is set when an answer may change what is decided, and now and then for the status. Answers are
    kept in memory only: after a takeover, the next farm starts without them.
    """

    def __init__(self, ask: Ask, clock: Clock, recorder: Recorder, wake: Wake) -> None:
        self._ask, self._clock, self._recorder, self._wake = ask, clock, recorder, wake
        self._tasks: dict[Gate, asyncio.Task[None]] = {}
        self._standings: dict[str, GateJudgement] = {}
        self._reached: tuple[int, float] = (0, 0.0)

    def hold(self, gates: Sequence[Gate], reached: tuple[int, float]) -> Standings:
        """Ask exactly these gates; all that is known of them and earlier ones.

        ``reached``: the stage and since when its goal is met; passes count from there.
        """
        for gate in self._tasks.keys() - set(gates):
            self._tasks.pop(gate).cancel()
        if reached != self._reached:
            self._reached = reached
            self._standings = {name: replace(each, passes=0) for name, each in self._standings.items()}
        now = self._clock.now()
        for gate in gates:
            task = self._tasks.get(gate)
            if task is None:
                self._standings[gate.name] = GateJudgement(began=now, heard=now)
                task = self._tasks[gate] = asyncio.create_task(self._run(gate), name=f"gate {gate.name}")
                task.add_done_callback(lambda _: self._wake.set())
            elif task.done():
                task.result()  # a bug: the worker crashes of it, and is begun anew
        return dict(self._standings)

    @property
    def asking(self) -> bool:
        """Whether it asks now."""
        return bool(self._tasks)

    def stop(self) -> None:
        """Ask nothing any more."""
        self.hold((), self._reached)

    async def _run(self, gate: Gate) -> None:
        told = self._clock.mono()
        while True:
            begun = self._clock.mono()
            answer = await self._ask(gate)
            now = self._clock.mono()
            self._recorder.count("farmd_rollout_gate_answers_total", type=gate.type, result=answer.result)
            before = self._standings[gate.name]
            after = before.after(gate, answer, self._clock.now())
            self._standings[gate.name] = after
            if _told(before) != _told(after) or now - told >= TOLD_SECONDS:
                told = now
                self._wake.set()
            await self._clock.sleep(max(0.0, begun + gate.every - now))


def _told(standing: GateJudgement) -> tuple[str, str, int, int]:
    """The changes that are reported at once. The number of each good or bad answer is not among them."""
    answer = standing.answer
    silence = answer.text if answer.result == "none" else ""
    return answer.result, silence, standing.passes, standing.failures
