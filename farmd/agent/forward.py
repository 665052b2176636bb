"""Connections of people to a pod's port: many over one WebSocket, by one one-time key (R42).

A process or a unit shares the node's network, so only the ports that its manifest names are reached: other
ports are other programs'. A container with a network of its own is entered, and all of its ports are its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import socket
import threading
from collections.abc import Mapping

from farmd.agent.errors import StartFailed
from farmd.runtime import tasks
from farmd.runtime.streams import Broken, Streams, relay

CLONE_NEWNET = 0x40000000
CONNECT_SECONDS = 5.0
MOST = 32
"""Connections that one person has to one port at once."""


class Forward:
    """The connections of one WebSocket to a port of a pod. ``network`` is a descriptor of the pod's own
    network namespace, which this object closes; None if the pod shares the node's network: then the port is
    one of ``ports``, at ``host``.
    """

    def __init__(self, network: int | None, ports: Mapping[str, int], host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._network = network
        if network is None and port not in ports.values():
            known = ", ".join(f"{name}: {number}" for name, number in sorted(ports.items()))
            raise StartFailed(
                f"port: found {port}, expected one of the pod's own ({known or 'it has none'})", field="port"
            )
        self._queues: dict[int, asyncio.Queue[bytes]] = {}
        self._running: dict[int, asyncio.Task[None]] = {}
        self.count = 0

    async def serve(self, streams: Streams) -> None:
        """Pass everything on until the connection ends.

        Raises:
            Broken: the person's side does not keep to the protocol.
        """
        try:
            async for message in streams.messages():
                if isinstance(message, tuple):
                    if (queue := self._queues.get(message[0])) is not None:
                        queue.put_nowait(message[1])
                elif type(number := message.get("open")) is int:
                    await self._open(streams, number)
                elif type(number := message.get("close")) is int:
                    if (task := self._running.get(number)) is not None:
                        task.cancel()
                else:
                    raise Broken(f"found {sorted(message)!r:.60}, expected open or close and a number")
        finally:
            await tasks.end(*self._running.values())

    async def _open(self, streams: Streams, number: int) -> None:
        streams.open(number)
        if len(self._running) >= MOST:  # with those whose end the person's side does not read
            streams.close(number)
            await streams.tell(closed=number, why=f"{MOST} connections are already open")
            return
        self.count += 1
        queue = self._queues[number] = asyncio.Queue()
        task = asyncio.create_task(self._connection(streams, number, queue))
        self._running[number] = task
        task.add_done_callback(lambda _: self._running.pop(number, None))

    async def _connection(self, streams: Streams, number: int, queue: asyncio.Queue[bytes]) -> None:
        why = ""
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                reader, writer = await self._connect()
            await relay(streams, number, queue, reader, writer)
        except TimeoutError:
            why = f"port {self._port} does not answer"
        except OSError as error:
            why = f"port {self._port}: {error.strerror or error}"
        finally:
            self._queues.pop(number, None)
            streams.close(number)
        with contextlib.suppress(ConnectionError):
            await streams.tell(closed=number, why=why)

    def close(self) -> None:
        """Let go of the pod's network."""
        if self._network is not None:
            os.close(self._network)
            self._network = None

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._network is None:
            return await asyncio.open_connection(self._host, self._port)
        sock = await _socket_in(self._network)
        try:
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self._port))
            return await asyncio.open_connection(sock=sock)
        except BaseException:
            sock.close()
            raise


async def _socket_in(network: int) -> socket.socket:
    """A socket in a network namespace. A thread of its own makes it, because it stays there."""
    network = os.dup(network)  # the caller may close its own if this is cancelled
    loop = asyncio.get_running_loop()
    found: asyncio.Future[socket.socket] = loop.create_future()

    def told(sock: socket.socket | None, error: OSError | None) -> None:
        if found.done():
            if sock is not None:
                sock.close()
        elif sock is not None:
            found.set_result(sock)
        else:
            found.set_exception(error or OSError("no socket"))

    def make() -> None:
        try:
            try:
                if ctypes.CDLL(None, use_errno=True).setns(network, CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            finally:
                os.close(network)
            sock = socket.socket()
            sock.setblocking(False)
        except OSError as error:
            loop.call_soon_threadsafe(told, None, error)
        else:
            loop.call_soon_threadsafe(told, sock, None)

    threading.Thread(target=make, daemon=True).start()
    return await found
