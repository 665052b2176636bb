"""A command of a person beside a workload, as the agent holds it: its input and output, its size, its end.

``attendant.py`` is its parent, and ends it with all that it started when this side closes or dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import marshal
import os
import signal
import sys
import termios
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farmd.agent.environment import limits
from farmd.agent.errors import StartFailed
from farmd.agent.model import Identity
from farmd.agent.runtimes import shims
from farmd.agent.runtimes.runtime import Execution
from farmd.agent.runtimes.shims import Shims
from farmd.runtime.streams import PIECE, STDERR, STDIN, STDOUT
from farmd.runtime.tasks import until_one_fails
from store.access import Exec
from store.containers import Limits
from store.manifests import Manifest

ATTENDANT = Path(__file__).parents[1] / "attendant.py"
END_SECONDS = 5.0
"""For how long an attendant may take to end its command, beyond the hangup."""
SIGNALS = {"INT": signal.SIGINT, "TERM": signal.SIGTERM, "HUP": signal.SIGHUP, "QUIT": signal.SIGQUIT}


@dataclass(slots=True)
class Pipe:
    """The agent's end of an input or output: nothing is read or written before there is room."""

    fd: int = -1

    async def read(self) -> bytes:
        """What is there, at most one piece; empty at the end."""
        while self.fd >= 0:
            try:
                return os.read(self.fd, PIECE)
            except BlockingIOError:
                await self._ready(reads=True)
            except OSError as error:
                if error.errno != errno.EIO:  # how a terminal ends
                    raise
                return b""
        return b""

    async def write(self, data: bytes) -> None:
        """Write all of it; nothing where nobody reads any more."""
        while data and self.fd >= 0:
            try:
                data = data[os.write(self.fd, data) :]
            except BlockingIOError:
                await self._ready(reads=False)
            except OSError:
                self.close()

    async def _ready(self, *, reads: bool) -> None:
        loop, found = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()
        add, remove = (
            (loop.add_reader, loop.remove_reader) if reads else (loop.add_writer, loop.remove_writer)
        )
        add(self.fd, _set, found)
        try:
            await found
        finally:
            if self.fd >= 0:
                remove(self.fd)

    def close(self) -> None:
        """Let go of it."""
        if self.fd >= 0:
            loop = asyncio.get_running_loop()
            loop.remove_reader(self.fd)
            loop.remove_writer(self.fd)
            os.close(self.fd)
            self.fd = -1


def _set(found: asyncio.Future[None]) -> None:
    if not found.done():
        found.set_result(None)


@dataclass(slots=True)
class Stdio:
    """The input and output of a command: pipes, or a terminal of its own; ``theirs`` are the command's."""

    theirs: list[int] = field(default_factory=list)
    ours: dict[int, Pipe] = field(default_factory=dict)
    tty: bool = False

    @classmethod
    def made(cls, tty: bool, user: tuple[int, int] | None) -> Stdio:
        """A new one; a terminal belongs to the command's user."""
        made = cls(tty=tty)
        if tty:
            master, slave = os.openpty()
            if user is not None:
                os.fchown(slave, user[0], -1)
            os.fchmod(slave, 0o620)
            made.theirs = [slave] * 3
            made.ours = {STDIN: Pipe(os.dup(master)), STDOUT: Pipe(master), STDERR: Pipe()}
        else:
            pipes = [os.pipe() for _ in range(3)]
            made.theirs = [pipes[0][0], pipes[1][1], pipes[2][1]]
            made.ours = {STDIN: Pipe(pipes[0][1]), STDOUT: Pipe(pipes[1][0]), STDERR: Pipe(pipes[2][0])}
        for pipe in made.ours.values():
            if pipe.fd >= 0:
                os.set_blocking(pipe.fd, False)
        return made

    def release(self) -> None:
        """Close the command's ends on this side."""
        for fd in set(self.theirs):
            os.close(fd)
        self.theirs = []

    def close(self) -> None:
        """Close this side's ends."""
        for pipe in self.ours.values():
            pipe.close()


class Attendant:
    """The process that ends a command with all that it started, when this side closes or dies."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        assert process.stdin is not None
        assert process.stdout is not None
        self._to, self._from = process.stdin, process.stdout

    @classmethod
    async def begin(
        cls, spec: Mapping[str, Any], environ: Mapping[str, str], fds: Collection[int] = ()
    ) -> Attendant:
        """Start one, and wait until its command runs.

        Raises:
            StartFailed: it cannot run.
        """
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", str(ATTENDANT)),
            env=shims.variables(environ),
            cwd="/",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            pass_fds=sorted(set(fds)),
            start_new_session=True,
        )
        begun = cls(process)
        try:
            text = marshal.dumps(dict(spec))
            begun._to.write(len(text).to_bytes(4, "big") + text)
            answer = (await begun._from.readline()).decode("utf-8", "replace").strip()
            if answer != "ok":
                raise StartFailed(answer.removeprefix("failed ") or "the command's parent process ended")
        except BaseException:
            await begun.end()
            raise
        return begun

    def signal(self, name: str) -> None:
        """Send the command a signal, such as ``INT``; none more than its parent process takes."""
        if self._to.transport.get_write_buffer_size():
            return  # tens of thousands wait already
        with contextlib.suppress(OSError):
            self._to.write(bytes([SIGNALS[name]]))

    async def wait(self) -> int:
        """How the command ended."""
        told = (await self._from.readline()).strip()
        await self._process.wait()
        return int(told) if told else -signal.SIGKILL

    async def end(self) -> None:
        """End the command, and wait for that."""
        self._to.close()
        try:
            async with asyncio.timeout(END_SECONDS):
                await self._process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()


class Attended:
    """A command whose parent is an attendant."""

    def __init__(self, attendant: Attendant, stdio: Stdio) -> None:
        self._attendant = attendant
        self._stdio = stdio

    @classmethod
    async def begin(cls, spec: Mapping[str, Any], environ: Mapping[str, str], *, tty: bool) -> Attended:
        """Start a command.

        Raises:
            StartFailed: it cannot run.
        """
        stdio = Stdio.made(tty, spec["user"][:2] if spec["user"] else None)
        try:
            whole = {**spec, "stdio": stdio.theirs, "tty": tty}
            return cls(await Attendant.begin(whole, environ, stdio.theirs), stdio)
        except BaseException:
            stdio.close()
            raise
        finally:
            stdio.release()

    async def write(self, data: bytes) -> None:
        """As ``Execution.write``."""
        await self._stdio.ours[STDIN].write(data)

    async def close_input(self) -> None:
        """As ``Execution.close_input``; a terminal reads ^D."""
        if self._stdio.tty:
            await self.write(b"\x04")
        else:
            self._stdio.ours[STDIN].close()

    async def pump(self, send: Callable[[int, bytes], Awaitable[None]]) -> None:
        """As ``Execution.pump``."""

        async def one(stream: int) -> None:
            while data := await self._stdio.ours[stream].read():
                await send(stream, data)

        await until_one_fails([one(STDOUT), one(STDERR)])

    async def resize(self, rows: int, columns: int) -> None:
        """As ``Execution.resize``."""
        if self._stdio.tty and self._stdio.ours[STDOUT].fd >= 0:
            termios.tcsetwinsize(self._stdio.ours[STDOUT].fd, (rows, columns))

    async def signal(self, name: str) -> None:
        """As ``Execution.signal``."""
        self._attendant.signal(name)

    async def wait(self) -> int:
        """As ``Execution.wait``."""
        return await self._attendant.wait()

    async def end(self) -> None:
        """As ``Execution.end``."""
        self._stdio.close()
        await self._attendant.end()


class Attending(Shims):
    """A runtime of shims that also runs commands of people beside its workloads."""

    async def execute(
        self, identity: Identity, manifest: Manifest, wanted: Exec, given: Mapping[str, str]
    ) -> Execution:
        """Begin a person's command, as ``Runtime.execute``.

        Raises:
            StartFailed: it cannot run.
        """
        if not self.lives(identity):
            raise StartFailed("the pod does not run now")
        inside, sees = await asyncio.to_thread(self._inside, identity, manifest)
        common = await asyncio.to_thread(self._check_spec, identity, manifest, wanted.command, sees)
        spec = {
            **common,
            "env": {**common["env"], **given, **({"TERM": wanted.term or "dumb"} if wanted.tty else {})},  # type: ignore[dict-item]
            "limits": limits(manifest),
            "default_signals": [int(each) for each in (signal.SIGPIPE, signal.SIGXFSZ, *SIGNALS.values())],
            "inside": inside,
            "limited": manifest.limits != Limits(),
            "shim": identity.shim,
            "shim_ticks": identity.shim_ticks,
        }
        return await Attended.begin(spec, self._environ, tty=wanted.tty)

    async def network(self, identity: Identity) -> int | None:
        """None: it has the node's, as ``Runtime.network``."""
        del identity
        return None

    def _inside(self, identity: Identity, manifest: Manifest) -> tuple[str, int]:
        """The workload's control group, and the process whose mounts it sees; empty and 0: the node's."""
        del manifest
        return identity.group, 0
