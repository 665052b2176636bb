"""A server as a process with a folder of its own, ended with the test run however that ends."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import tempfile
import time
import weakref
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, Self

from tests import reaper


class NotStarted(Exception):
    """A server did not become ready, or does not run; the message tells which."""


class ServerProcess(ABC):
    """A process with a folder of its own, as a context manager; ``restart`` keeps its data and ports."""

    name: ClassVar[str]
    start_seconds: ClassVar[float] = 90.0
    stop_seconds: ClassVar[float] = 15.0

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"farmd-{self.name}-"))
        self.log = self.folder / f"{self.name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.awaited = "it does not answer"  # what it lacked when it was asked last
        _live.add(self)

    @abstractmethod
    def command(self) -> list[str]:
        """The words that start it."""

    @abstractmethod
    def ready(self) -> bool:
        """Whether it answers."""

    @property
    def pid(self) -> int:
        """The running process."""
        if self._process is None:
            raise NotStarted(f"{self.name} does not run")
        return self._process.pid

    def start(self) -> None:
        """Start it; returns when it answers.

        Raises:
            NotStarted: with the end of the log.
        """
        self.launch()
        self.await_ready()

    def launch(self) -> None:
        """Start the process alone."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        reaper.started(self._process.pid, self.folder)

    def await_ready(self) -> None:
        """Return when it answers.

        Raises:
            NotStarted: with the end of the log.
        """
        assert self._process is not None
        deadline = time.monotonic() + self.start_seconds
        while not self.ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise NotStarted(f"{self.name} did not become ready ({self.awaited}):\n{self._tail()}")
            time.sleep(0.02)

    def restart(self) -> None:
        """Stop and start again on the same ports."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """SIGSTOP: it answers nothing, its connections stay open."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def stop(self) -> None:
        """Terminate cleanly; data stay until ``close``."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL; data stay until ``close``."""
        self._end(signal.SIGKILL)

    def close(self) -> None:
        """Kill what runs and remove the folder; may be called twice."""
        self.kill()
        _live.discard(self)
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])

    def _end(self, number: int) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        process.send_signal(signal.SIGCONT)
        try:
            process.wait(self.stop_seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reaper.reaped(process.pid)


_live: weakref.WeakSet[ServerProcess] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for server in list(_live):
        server.close()
