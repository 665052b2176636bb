"""``farmctl pod exec``: a command in a pod, through the agent of its node."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import termios
import tty as terminals
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import aiohttp
import click

from farmd.cli.invocation import Invocation
from farmd.cli.logs import remedy
from farmd.cli.names import pods
from farmd.cli.options import command
from farmd.cli.pod import locate
from farmd.commands import one_time
from farmd.runtime.errors import AgentUnavailable
from farmd.runtime.streams import LARGEST, PIECE, PING_SECONDS, STDIN, STDOUT, Broken, Streams
from farmd.runtime.tasks import end
from farmd.tables.model import clean
from farmd.web.hosts import loopback
from store import access, features, presence
from store.access import Exec
from store.errors import AccessDenied, Conflict, InputInvalid, NotFound, StoreError
from store.http import reason
from store.nodes import NodeStore


@command("exec", reasons=True)
@click.argument("pod", metavar="NODE/INSTANCE", shell_complete=pods)
@click.argument("words", metavar="-- COMMAND...", nargs=-1, required=True)
@click.option("-i", "--stdin", is_flag=True, help="Pass this command's input on.")
@click.option("-t", "--tty", is_flag=True, help="Give the command a terminal.")
@click.option("-p", "--process", default="", metavar="NAME", help="Run it beside this running sidecar.")
async def exec_(
    invocation: Invocation, pod: str, words: tuple[str, ...], stdin: bool, tty: bool, process: str
) -> None:
    """Run a command in a pod: as its user, with its environment, in its limits and what it sees.

    The node may be left out where only one node has that instance. The exit code is the command's, or 128
    and its signal. ^C goes to the command; without -t a second ^C ends it. The command ends with this one,
    and with the pod. It is in the audit log: pass secrets by its input.
    """
    if tty and not (stdin and os.isatty(0)):
        raise InputInvalid("--tty: found no terminal, expected one, and --stdin (-it)", field="tty")
    node, instance = await locate(invocation, pod)
    term = os.environ.get("TERM", "") if tty else ""
    wanted = Exec(command=words, tty=tty, term=term, process=process)
    async with entered(invocation, node, instance, "pod.exec", wanted) as (socket, granted):
        with _raw() if tty else contextlib.nullcontext():
            session = ExecSession(socket, tty=tty, takes_input=stdin)
            code = await session.run()
    if not session.audited:
        await note_end(invocation, granted, code=code, bytes=session.bytes)
    if code:
        raise click.exceptions.Exit(code if code > 0 else 128 - code)


async def note_end(invocation: Invocation, granted: one_time.Granted, **how: int) -> None:
    """Audit how it ended, as older agents do not; where that fails, a remark."""
    try:
        await one_time.ended(invocation.call, granted.change, **how)
    except StoreError as error:
        invocation.say(f"farmctl: its end is not in the audit log: {error.message}")


@contextlib.asynccontextmanager
async def entered(
    invocation: Invocation, node: str, instance: str, action: str, wanted: Exec
) -> AsyncIterator[tuple[aiohttp.ClientWebSocketResponse, one_time.Granted]]:
    """A connection to a pod through its node's agent, with an audit record of the ``action``.

    Raises:
        AgentUnavailable: the agent is not connected, does not answer, or refuses. NotFound: it has no such
            pod. Conflict: the pod does not run, or cannot do that.
    """
    base = await _agent(invocation, node)
    path = f"/v1/exec/{instance}"
    try:
        granted = await one_time.grant(invocation.call, node, instance, path, action, wanted)
    except AccessDenied as error:
        raise AccessDenied(
            error.message, hint="acl/exec.hcl has the rules: farmctl token consul exec"
        ) from error
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None, sock_connect=5)) as http,
            http.ws_connect(
                f"{base}{path}",
                headers=granted.headers,
                ssl=invocation.tls(),
                heartbeat=PING_SECONDS,
                max_msg_size=LARGEST,
            ) as socket,
        ):
            yield socket, granted
    except BrokenPipeError:
        raise  # of this command's own output
    except aiohttp.WSServerHandshakeError as error:
        raise _refusal(node, error) from error
    except Broken as error:
        raise AgentUnavailable(f"node {node!r}: its agent does not keep to the protocol: {error}") from error
    except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
        raise AgentUnavailable(
            f"node {node!r}: its agent does not answer at {base}: {reason(error)}",
            hint=remedy(invocation, base, error),
        ) from error


async def _agent(invocation: Invocation, node: str) -> str:
    """The URL of a node's agent that runs commands of people.

    Raises:
        AgentUnavailable: it does not, is not connected, or could be overheard.
    """
    view = await NodeStore(invocation.client, invocation.keys).get(node)
    if view.agent is None or not view.agent.address:
        why = view.unreadable or "its agent is not connected"
        raise AgentUnavailable(f"node {node!r}: {why}", hint=f"farmctl node describe {node} tells more")
    if features.EXEC not in view.agent.features:
        raise AgentUnavailable(
            f"node {node!r}: its agent runs no commands of people",
            hint="set agent.exec = true in the configuration of that agent (docs/workloads.md)",
        )
    base = presence.at_host(view.agent.address, view.record.address)
    if not base.startswith("https://") and not loopback(presence.parts(base).hostname or ""):
        raise AgentUnavailable(
            f"node {node!r}: its agent has no TLS at {base}, expected https:// off loopback",
            hint="set web.tls_cert and web.tls_key of that agent (docs/operations.md)",
        )
    return base


def _refusal(node: str, error: aiohttp.WSServerHandshakeError) -> Exception:
    told = error.headers.get(access.REFUSED, "") if error.headers is not None else ""
    text = f"node {node!r}: its agent refused: {told or error.status}"
    if error.status == 404:
        return NotFound(text, kind="pods", id=node)
    if error.status == 409:
        return Conflict(text, id=node)
    return AgentUnavailable(text)


class ExecSession:
    """A command's input and output on this side, by the descriptors ``source`` and ``output``. ``bytes`` is
    how much output came. ``audited``: the agent notes the end for the audit log.
    """

    def __init__(
        self,
        socket: aiohttp.ClientWebSocketResponse,
        *,
        tty: bool = False,
        takes_input: bool = True,
        source: int = 0,
        output: int = 1,
    ) -> None:
        self._source, self._to = source, {STDOUT: output}
        self._socket = socket
        self._streams = Streams(socket)
        self._tty = tty
        self._takes_input = takes_input
        self._output: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()
        self._interrupted = False
        self.bytes = 0
        self.audited = False

    async def run(self) -> int:
        """Pass everything on until the command ends; its exit code, or minus its signal.

        Raises:
            AgentUnavailable: the connection ended first.
        """
        writing = asyncio.create_task(self._write())
        feeding = asyncio.create_task(self._feed())
        try:
            with self._signals():
                hearing = asyncio.create_task(self._hear())
                await asyncio.wait({hearing, writing}, return_when=asyncio.FIRST_COMPLETED)
                if writing.done() and not hearing.done():
                    await end(hearing)
                    await writing  # nobody reads the output any more
                code = await hearing
                self._output.put_nowait((0, b""))
                await writing
                return code
        finally:
            await end(writing, feeding)

    async def _hear(self) -> int:
        async for message in self._streams.messages():
            if isinstance(message, tuple):
                self.bytes += len(message[1])
                self._output.put_nowait(message)
            elif message.get("audited") is True:
                self.audited = True
            elif isinstance(how := message.get("end"), dict) and isinstance(how.get("code"), int):
                return int(how["code"])
            elif "failed" in message:
                raise AgentUnavailable(f"the agent ended the command: {clean(str(message['failed']))}")
        if self._interrupted:
            raise click.exceptions.Exit(130)
        raise AgentUnavailable("the connection ended before the command did, so the agent ends the command")

    async def _write(self) -> None:
        """Write output in a thread: a reader that waits must not stop the answers to pings."""
        while (piece := await self._output.get())[1]:
            stream, data = piece
            await asyncio.to_thread(_write_all, self._to.get(stream, 2), data)
            await self._streams.took(stream, len(data))

    async def _feed(self) -> None:
        if self._tty:
            await self._tell_size()
        if self._takes_input:
            async for data in _input(self._source):
                await self._streams.send(STDIN, data)
        await self._streams.finish(STDIN)

    async def _tell_size(self) -> None:
        with contextlib.suppress(OSError):
            rows, columns = termios.tcgetwinsize(0)
            await self._streams.tell(resize=[rows, columns])

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Pass ^C on to the command, and the terminal's size."""
        loop = asyncio.get_running_loop()
        tasks = set[asyncio.Task[None]]()

        def begin(what: Callable[[], Awaitable[Any]]) -> None:
            async def run() -> None:
                with contextlib.suppress(ConnectionError):
                    await what()

            task = asyncio.create_task(run())
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        def interrupt() -> None:
            if self._interrupted:
                begin(self._socket.close)
            else:
                begin(lambda: self._streams.tell(signal="INT"))
            self._interrupted = True

        def leave() -> None:
            begin(self._socket.close)

        own = {signal.SIGTERM: leave, signal.SIGHUP: leave}
        own |= {signal.SIGWINCH: lambda: begin(self._tell_size)} if self._tty else {signal.SIGINT: interrupt}
        for number, handle in own.items():
            loop.add_signal_handler(number, handle)
        try:
            yield
        finally:
            for number in own:
                loop.remove_signal_handler(number)


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


async def _input(fd: int) -> AsyncIterator[bytes]:
    """What comes from a descriptor; a file is always ready, and epoll takes none."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()

    def found() -> None:
        loop.remove_reader(fd)  # else it would be told again until it is read, and the next read would block
        ready.set()

    try:
        while True:
            with contextlib.suppress(PermissionError):
                loop.add_reader(fd, found)
                await ready.wait()
            ready.clear()
            if not (data := os.read(fd, PIECE)):
                return
            yield data
    finally:
        loop.remove_reader(fd)


@contextlib.contextmanager
def _raw() -> Iterator[None]:
    """Let the command's terminal see each key."""
    before = termios.tcgetattr(0)
    terminals.setraw(0)
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
