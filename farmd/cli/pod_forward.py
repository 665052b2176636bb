"""``farmctl pod port-forward``: a port here that leads to a port of a pod."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
from collections.abc import Iterator

import aiohttp
import click

from farmd.cli.invocation import Invocation
from farmd.cli.names import pods
from farmd.cli.options import command
from farmd.cli.pod import locate
from farmd.cli.pod_exec import entered, note_end
from farmd.runtime import tasks
from farmd.runtime.errors import AgentUnavailable
from farmd.runtime.streams import Streams, relay
from farmd.tables.model import clean
from store.access import Exec
from store.errors import InputInvalid


@command("port-forward", reasons=True)
@click.argument("pod", metavar="NODE/INSTANCE", shell_complete=pods)
@click.argument("ports", metavar="[LOCAL:]REMOTE")
async def port_forward(invocation: Invocation, pod: str, ports: str) -> None:
    """Listen on a port of 127.0.0.1 and pass connections on to a port of a pod, until ^C.

    LOCAL is the remote port by default; 0 takes a free one. Of a process or a unit only the ports that its
    manifest names are reached, of a container with a network of its own all.
    """
    local, remote = _ports(ports)
    node, instance = await locate(invocation, pod)
    wanted = Exec(port=remote)
    async with entered(invocation, node, instance, "pod.port-forward", wanted) as (socket, granted):
        forward = _Forward(invocation, socket)
        try:
            listening = await asyncio.start_server(forward.accept, "127.0.0.1", local)
        except OSError as error:
            raise InputInvalid(
                f"127.0.0.1:{local}: cannot listen: {error.strerror}", field="ports"
            ) from error
        async with listening:
            port = listening.sockets[0].getsockname()[1]
            click.echo(f"127.0.0.1:{port} leads to port {remote} of {node}/{instance}, until ^C", err=True)
            await forward.run()
    if not forward.audited:
        await note_end(invocation, granted, connections=forward.count)


def _ports(text: str) -> tuple[int, int]:
    local, colon, remote = text.rpartition(":")
    numbers = [local if colon else remote, remote]
    for each, least in zip(numbers, (0, 1), strict=True):
        if not (each.isascii() and each.isdigit() and len(each) <= 5 and least <= int(each) <= 65535):
            raise InputInvalid(
                f"ports: found {text!r}, expected [LOCAL:]REMOTE, such as 8080:80", field="ports"
            )
    return int(numbers[0]), int(numbers[1])


class _Forward:
    """The connections of this command. ``audited``: as ``ExecSession.audited``."""

    def __init__(self, invocation: Invocation, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._invocation = invocation
        self._socket = socket
        self._streams = Streams(socket)
        self._numbers = itertools.count(3)
        self._queues: dict[int, asyncio.Queue[bytes]] = {}
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._running = set[asyncio.Task[None]]()
        self.count = 0
        self.audited = False

    async def run(self) -> None:
        """Pass everything on until ^C.

        Raises:
            AgentUnavailable: the agent ended it.
        """
        asked = asyncio.Event()
        with _interrupted(asked):
            hearing, waiting = asyncio.create_task(self._hear()), asyncio.create_task(asked.wait())
            try:
                await asyncio.wait({hearing, waiting}, return_when=asyncio.FIRST_COMPLETED)
                if hearing.done():
                    hearing.result()
                    raise AgentUnavailable("the connection to the agent ended")
            finally:
                await tasks.end(hearing, waiting, *self._running)

    async def _hear(self) -> None:
        async for message in self._streams.messages():
            if isinstance(message, tuple):
                if (queue := self._queues.get(message[0])) is not None:
                    queue.put_nowait(message[1])
            elif message.get("audited") is True:
                self.audited = True
            elif isinstance(number := message.get("closed"), int):
                if why := message.get("why"):
                    self._invocation.say(f"farmctl: {clean(str(why))}")
                if (writer := self._writers.get(number)) is not None and why:
                    writer.transport.abort()
            elif "failed" in message:
                raise AgentUnavailable(f"the agent ended it: {clean(str(message['failed']))}")

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass one connection on."""
        number = next(self._numbers)
        self.count += 1
        queue = self._queues[number] = asyncio.Queue()
        self._writers[number] = writer
        self._streams.open(number)
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            with contextlib.suppress(ConnectionError):
                await self._streams.tell(open=number)
                await relay(self._streams, number, queue, reader, writer)
        finally:
            self._running.discard(task)
            with contextlib.suppress(ConnectionError):
                await self._streams.tell(close=number)
            self._streams.close(number)
            del self._queues[number], self._writers[number]
            writer.close()


@contextlib.contextmanager
def _interrupted(asked: asyncio.Event) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, asked.set)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
