"""People's commands in pods: ``GET /v1/exec/{instance}``, a WebSocket, by a one-time key alone (R42).

The command is not in the request but in the key's record, which the agent reads in the store: so nothing runs
that Consul did not permit and that has no audit record. No token of this process's and no certificate opens
this route.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager

import structlog
from aiohttp import WSCloseCode, web

from farmd.agent.access import OneTimeKeys
from farmd.agent.access_records import LEFT
from farmd.agent.agent import Agent
from farmd.agent.errors import AgentError
from farmd.agent.forward import Forward
from farmd.agent.model import Identity
from farmd.agent.runtimes.attended import SIGNALS
from farmd.agent.runtimes.runtime import Execution
from farmd.runtime import tasks
from farmd.runtime.streams import LARGEST, PING_SECONDS, STDERR, STDIN, STDOUT, Broken, Streams
from store import access
from store.access import Exec, OneTime
from store.manifests import MAIN, Manifest
from store.ports import Clock

log = structlog.get_logger()

MOST = 32
"""Commands of people that run at once on a node."""
DRAIN_SECONDS, LOOK_SECONDS = 5.0, 0.5
LARGEST_SIDE = 10_000
"""Rows and columns of a terminal."""
LARGEST_PORT = 65535
CUT = "the connection was cut"
PATH = "/v1/exec/{instance}"

Parked = Callable[[web.Request], AbstractContextManager[None]]


def add_routes(
    app: web.Application,
    agent: Agent,
    keys: OneTimeKeys,
    clock: Clock,
    *,
    safe: Callable[[web.Request], bool],
    parked: Parked,
) -> None:
    """Mount the route. ``safe`` tells whether nobody overhears a request; ``parked`` gives it a place, or
    refuses it.
    """
    door = _Door(agent, keys, safe)
    running: set[asyncio.Task[None]] = set()
    closing = asyncio.Event()

    async def execute(request: web.Request) -> web.StreamResponse:
        door.require_safe(request)
        if len(running) >= MOST:
            raise web.HTTPTooManyRequests(text=f"{MOST} commands already run here")
        with parked(request):
            key, record = await door.admitted(request)
            ident = access.ident(key)
            session = _Session(agent, request, record, clock, noted=agent.access_records.noted(ident))
            task = asyncio.current_task()
            assert task is not None
            try:
                if len(running) >= MOST:  # others were admitted meanwhile
                    raise web.HTTPTooManyRequests(text=f"{MOST} commands already run here")
                running.add(task)
                return await session.serve()
            except web.HTTPException as error:
                session.how["error"] = f"refused: {error.text}"
                raise
            finally:
                running.discard(task)
                agent.access_records.end(ident, {"error": LEFT} if closing.is_set() else session.how)

    async def close(_: web.Application) -> None:
        closing.set()
        for task in list(running):
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    app.router.add_get(PATH, execute)
    app.on_shutdown.append(close)


class _Door:
    """What a request must fulfil."""

    def __init__(self, agent: Agent, keys: OneTimeKeys, safe: Callable[[web.Request], bool]) -> None:
        self._safe = safe
        self._agent = agent
        self._keys = keys

    def require_safe(self, request: web.Request) -> None:
        """Refuse what the node's administrator did not allow, and what others could overhear.

        Raises:
            HTTPForbidden: with the reason.
        """
        config = self._agent.config
        if not config.exec:
            raise _refused("agent.exec: found false, expected true: this node runs no commands of people")
        if not self._safe(request):
            raise _refused("the connection has no TLS: set web.tls_cert and web.tls_key of this agent")

    async def admitted(self, request: web.Request) -> tuple[str, OneTime]:
        """The key of a request, and what it permits, once.

        Raises:
            HTTPForbidden, HTTPUnauthorized: it has none, or none for this.
        """
        key = request.headers.get(access.HEADER)
        if key is None:
            raise web.HTTPUnauthorized(text="a one-time key is needed: farmctl pod exec brings one")
        if request.headers.get("Upgrade", "").lower() != "websocket":
            raise web.HTTPUpgradeRequired(text="Upgrade: expected websocket")
        return key, await self._keys.use(key, request)


def _refused(why: str) -> web.HTTPForbidden:
    return web.HTTPForbidden(text=why)


class _Session:
    """One person's command, from the admission to its end. ``how`` tells how it ended; ``noted``: the audit
    log will have that.
    """

    def __init__(
        self, agent: Agent, request: web.Request, record: OneTime, clock: Clock, *, noted: bool
    ) -> None:
        self._noted = noted
        self.how: dict[str, int | str] = {"error": CUT}
        self._agent = agent
        self._request = request
        self._record = record
        self._clock = clock
        self._bytes = {STDIN: 0, STDOUT: 0, STDERR: 0}
        self._sending = 0

    async def serve(self) -> web.StreamResponse:
        """Run the command, and answer how it ended."""
        wanted = self._wanted()
        began = self._clock.mono()
        if wanted.port:
            return await self._forward(wanted.port, began)
        if self._agent.config.exec_signed:
            raise _refused(
                'agent.signatures: found "enforce": this node runs no commands that nobody signed, unless'
                " agent.exec_unsigned is true"
            )
        try:
            execution = await self._begun(wanted)
        except AgentError as error:
            raise web.HTTPConflict(text=error.message) from error
        told = {"by": self._record.by, "instance": self._record.instance, "command": list(wanted.command)}
        log.info("exec.began", reason=self._record.reason, **told)
        code: int | None = None
        try:
            socket = await self._accepted()
            code = await self._converse(socket, execution)
            await self._finish(socket, code, began)
            return socket
        finally:
            await execution.end()
            amounts = {"bytes_in": self._bytes[STDIN], "bytes_out": self._bytes[STDOUT] + self._bytes[STDERR]}
            self._note(began, **({} if code is None else {"code": code}), **amounts)
            log.info(
                "exec.ended",
                code=code,
                cut_off=code is None,
                seconds=round(self._clock.mono() - began, 3),
                **amounts,
                **told,
            )

    async def _accepted(self) -> web.WebSocketResponse:
        """The connection, whose other side knows who audits the end."""
        socket = _socket()
        await socket.prepare(self._request)
        if self._noted:
            with contextlib.suppress(ConnectionError):
                await Streams(socket).tell(audited=True)
        return socket

    def _note(self, began: float, **amounts: int) -> None:
        if "code" in amounts:
            self.how.pop("error", None)
        self.how |= {**amounts, "seconds": round(self._clock.mono() - began)}

    def _wanted(self) -> Exec:
        wanted = self._record.exec
        if wanted is None or not (wanted.port or (wanted.command and wanted.command[0])):
            raise web.HTTPBadRequest(text="command: found none, expected one")
        if not 0 <= wanted.port <= LARGEST_PORT:
            raise web.HTTPBadRequest(text=f"port: found {wanted.port}, expected one of 1 to {LARGEST_PORT}")
        if any("\0" in each for each in (*wanted.command, wanted.term)):
            raise web.HTTPBadRequest(text="command: found a NUL in it or in the terminal's name")
        return wanted

    async def _begun(self, wanted: Exec) -> Execution:
        """The command.

        Raises:
            HTTPNotFound, HTTPConflict: there is no such pod here, or it does not run. AgentError: as told.
        """
        identity, manifest = self._pod()
        self._require_process(wanted.process, manifest)
        instance = self._record.instance
        runtimes = self._agent.runtimes
        opened = await asyncio.to_thread(runtimes.secrets.open, manifest, instance, identity.start)
        return await runtimes.of(identity.runtime).execute(identity, manifest, wanted, opened.variables)

    def _require_process(self, name: str, manifest: Manifest) -> None:
        """Refuse a sidecar that does not run; one that does shares with the workload all that a command gets.

        Raises:
            HTTPConflict: it does not run, or the pod has none of that name.
        """
        if name in {"", MAIN}:
            return
        if name not in (known := [each.name for each in manifest.sidecars]):
            expected = ", ".join((MAIN, *known))
            raise web.HTTPConflict(text=f"process: found {name[:80]!r}, expected one of {expected}")
        pod = self._agent.pods.get(self._record.instance)
        found = pod.report(self._clock.mono()).sidecars.get(name) if pod is not None else None
        if found is None or not found.runs:
            why = f": {found.reason}" if found is not None and found.reason else ""
            raise web.HTTPConflict(text=f"sidecar {name!r} does not run now{why}")

    def _pod(self) -> tuple[Identity, Manifest]:
        """What runs.

        Raises:
            HTTPNotFound, HTTPConflict: there is no such pod here, or it does not run.
        """
        instance = self._record.instance
        pod = self._agent.pods.get(instance)
        if pod is None:
            raise web.HTTPNotFound(text=f"instance: found {instance!r}, expected a pod of this node")
        if pod.identity is None or pod.manifest is None:
            raise web.HTTPConflict(text=f"pod {instance!r} does not run now")
        return pod.identity, pod.manifest

    async def _forward(self, port: int, began: float) -> web.StreamResponse:
        """Pass connections on to a port of the pod, as long as this start of it lives."""
        identity, _ = self._pod()
        try:
            network = await self._agent.runtimes.of(identity.runtime).network(identity)
            forward = Forward(network, identity.ports, self._agent.config.check_host, port)
        except AgentError as error:
            raise web.HTTPConflict(text=error.message) from error
        told = {"by": self._record.by, "instance": self._record.instance, "port": port}
        log.info("forward.began", reason=self._record.reason, **told)
        try:
            socket = await self._accepted()
            self.how = {}  # people end this by leaving
            streams = Streams(socket)
            serving = asyncio.create_task(forward.serve(streams))
            living = asyncio.create_task(self._lives(identity))
            try:
                await asyncio.wait({serving, living}, return_when=asyncio.FIRST_COMPLETED)
                failed = "" if serving.done() else "the pod ended"
                if serving.done():
                    serving.result()
            except Broken as error:
                failed = str(error)
            except ConnectionError:
                failed = ""  # the person is gone
            finally:
                await tasks.end(serving, living)
            self.how |= {"error": failed} if failed else {}
            with contextlib.suppress(ConnectionError):
                if failed:
                    await streams.tell(failed=failed)
                await socket.close()
            return socket
        finally:
            forward.close()
            self._note(began, connections=forward.count)
            seconds = round(self._clock.mono() - began, 3)
            log.info("forward.ended", connections=forward.count, seconds=seconds, **told)

    async def _lives(self, identity: Identity) -> None:
        """Return when a start is over: its ports may be another pod's then."""
        runtime = self._agent.runtimes.of(identity.runtime)
        while runtime.lives(identity):
            await self._clock.sleep(LOOK_SECONDS)

    async def _converse(self, socket: web.WebSocketResponse, execution: Execution) -> int | None:
        """Pass everything on, both ways; the exit code, None if the connection ended first."""
        streams = Streams(socket)
        listening = asyncio.create_task(self._listen(streams, execution))
        running = asyncio.create_task(self._run(streams, execution))
        try:
            await asyncio.wait({listening, running}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                return running.result()
            listening.result()
        except (Broken, AgentError) as error:
            self.how["error"] = str(error)
            with contextlib.suppress(ConnectionError):
                await streams.tell(failed=str(error))
                await socket.close(code=WSCloseCode.POLICY_VIOLATION)
        except ConnectionError:
            pass  # the person is gone
        finally:
            await tasks.end(listening, running)
        return None

    async def _run(self, streams: Streams, execution: Execution) -> int:
        async def send(stream: int, data: bytes) -> None:
            self._bytes[stream] += len(data)
            self._sending += 1
            await streams.send(stream, data)
            self._sending -= 1

        output = asyncio.create_task(execution.pump(send))
        try:
            code = await execution.wait()
            # Something else than the command may hold its output open, as what it passed its descriptor to.
            idle = False
            while not (output.done() or idle):
                before = dict(self._bytes)
                await asyncio.wait({output}, timeout=DRAIN_SECONDS)
                idle = before == self._bytes and not self._sending
            if output.done():
                output.result()
            return code
        finally:
            await tasks.end(output)

    async def _listen(self, streams: Streams, execution: Execution) -> None:
        """Obey what the person sends, until the connection ends."""
        queue: asyncio.Queue[bytes] = asyncio.Queue()

        async def feed() -> None:
            while data := await queue.get():
                await execution.write(data)
                await streams.took(STDIN, len(data))
            await execution.close_input()

        async def hear() -> None:
            async for message in streams.messages():
                if isinstance(message, dict):
                    await _obey(message, execution)
                elif message[0] == STDIN:
                    self._bytes[STDIN] += len(message[1])
                    queue.put_nowait(message[1])

        feeding = asyncio.create_task(feed())
        try:
            await hear()
        finally:
            await tasks.end(feeding)

    async def _finish(self, socket: web.WebSocketResponse, code: int | None, began: float) -> None:
        if code is None or socket.closed:
            return
        with contextlib.suppress(ConnectionError):
            await Streams(socket).tell(end={"code": code, "seconds": self._clock.mono() - began})
            await socket.close()


def _socket() -> web.WebSocketResponse:
    return web.WebSocketResponse(heartbeat=PING_SECONDS, max_msg_size=LARGEST, compress=False, timeout=1.0)


async def _obey(words: dict[str, object], execution: Execution) -> None:
    """Do what a message says that is no data.

    Raises:
        Broken: it says nothing that is known.
    """
    size, name = words.get("resize"), words.get("signal")
    if isinstance(size, list) and [type(each) for each in size] == [int, int]:
        rows, columns = (min(max(each, 1), LARGEST_SIDE) for each in size)
        await execution.resize(rows, columns)
    elif isinstance(name, str) and name in SIGNALS:
        await execution.signal(name)
    else:
        raise Broken(f"found {sorted(words)!r:.60}, expected resize or signal")
