"""A command of a person in a container, run by the engine: as its user, in its namespaces and its limits.

An engine goes on with a command whose caller is gone, and its API ends none. So an attendant
(``attendant.py``) knows the command's processes by a variable that only they have, and ends them.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from farmd.agent.errors import StartFailed
from farmd.agent.model import Identity
from farmd.agent.runtimes.attended import Attendant
from farmd.agent.runtimes.engine import Engine, EngineRefused
from farmd.runtime.wake import within
from store.access import Exec
from store.ports import Clock

MARK = "FARMD_EXEC"
LOOK_SECONDS, SOON_SECONDS = 1.0, 0.02
"""How often the engine is asked whether the command still runs: while it writes, and once it does not."""


class Contained:
    """A command in a container."""

    def __init__(
        self, engine: Engine, attendant: Attendant, execution: Any, clock: Clock, *, tty: bool
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._attendant = attendant
        self._execution = execution
        self._stream: Any = execution.start(detach=False)
        self._tty = tty
        self._over = asyncio.Event()

    @classmethod
    async def begin(
        cls, engine: Engine, identity: Identity, wanted: Exec, environ: Mapping[str, str], clock: Clock
    ) -> Contained:
        """Start a command.

        Raises:
            StartFailed: the engine did not, or the agent could not end it.
        """
        mark = secrets.token_hex(16)
        attendant = await Attendant.begin({"inside": identity.pid, "mark": f"{MARK}={mark}"}, environ)
        variables = {MARK: mark} | ({"TERM": wanted.term or "dumb"} if wanted.tty else {})
        try:
            container = engine.docker.containers.container(identity.handle)
            execution = await engine.ask(
                container.exec(list(wanted.command), stdin=True, tty=wanted.tty, environment=variables)
            )
            made = cls(engine, attendant, execution, clock, tty=wanted.tty)
            await engine.ask(made._stream.__aenter__())
        except BaseException:
            await attendant.end()
            raise
        return made

    async def write(self, data: bytes) -> None:
        """As ``Execution.write``."""
        with contextlib.suppress(OSError, RuntimeError):
            await self._stream.write_in(data)

    async def close_input(self) -> None:
        """As ``Execution.close_input``; a terminal reads ^D."""
        if self._tty:
            await self.write(b"\x04")
            return
        connection = self._stream._resp.connection
        if connection is not None and connection.transport.can_write_eof():
            connection.transport.write_eof()

    async def pump(self, send: Callable[[int, bytes], Awaitable[None]]) -> None:
        """As ``Execution.pump``."""
        with self._engine.translated():
            while (message := await self._stream.read_out()) is not None:
                if message.data:
                    await send(message.stream, message.data)
        self._over.set()

    async def resize(self, rows: int, columns: int) -> None:
        """As ``Execution.resize``."""
        if self._tty:
            with contextlib.suppress(EngineRefused):  # it has ended
                await self._engine.ask(self._execution.resize(h=rows, w=columns))

    async def signal(self, name: str) -> None:
        """As ``Execution.signal``."""
        self._attendant.signal(name)

    async def wait(self) -> int:
        """As ``Execution.wait``."""
        while (found := await self._engine.ask(self._execution.inspect())).get("Running"):
            if self._over.is_set():
                await self._clock.sleep(SOON_SECONDS)
            await within(self._over.wait(), self._clock, LOOK_SECONDS)
        await self._attendant.end()
        return int(found["ExitCode"])

    async def end(self) -> None:
        """As ``Execution.end``."""
        await self._attendant.end()
        with contextlib.suppress(OSError, StartFailed):
            await self._stream.close()
