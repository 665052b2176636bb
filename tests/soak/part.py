"""One farm or agent of a soak: a process behind a proxy of its own, and when it was in trouble."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from farmd.dev.plan import environment
from tests import reaper
from tests.fleet import LIMIT
from tests.proxy import Proxy

NO_STATE = '"code":"state_invalid"'
CRASHED = b'"event":"worker.crashed"'


class Part:
    """``farmd run`` or ``farmd agent``; it is started again and again with the same settings.

    ``faults`` counts the faults under which it is at the moment. ``ended`` tells of a process that ended
    without being asked to.
    """

    def __init__(self, command: str, name: str, proxy: Proxy, folder: Path, settings: dict[str, str]) -> None:
        self.name = name
        self.proxy = proxy
        self.log = folder / f"{name}.log"
        self.faults = 0
        self.starts = 0
        self._read = 0
        self._well_since = 0.0
        self._silent_since: float | None = None
        self._command = [sys.executable, "-m", "farmd", command]
        self._settings = {"CONSUL_HTTP_ADDR": proxy.address, "FARMD_LOG__FORMAT": "json", **settings}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, unless it runs already."""
        if self._process is not None:
            return
        self._silent_since = None
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                env={**environment(dict(os.environ)), **self._settings},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        reaper.started(self._process.pid)
        self.starts += 1

    async def end(self, number: int = signal.SIGKILL) -> None:
        """Send a signal that ends it, and wait until it has ended."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        process.send_signal(signal.SIGCONT)
        self._silent_since = time.monotonic()
        await asyncio.to_thread(process.wait, LIMIT)
        reaper.reaped(process.pid)

    @property
    def pid(self) -> int | None:
        """The process; None: it does not run."""
        return None if self._process is None else self._process.pid

    def pause(self) -> None:
        """Stop it with SIGSTOP."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)
            self._silent_since = time.monotonic()

    def resume(self) -> None:
        """Let it run on with SIGCONT."""
        if self._process is not None:
            self._silent_since = None
            self._process.send_signal(signal.SIGCONT)

    def ended(self) -> str:
        """How it ended although nobody asked it to, with the end of its log; empty if it did not."""
        process = self._process
        if process is None or process.poll() is None:
            return ""
        self._process = None
        reaper.reaped(process.pid)
        tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-5:])
        if self.faults and NO_STATE in tail:
            self.start()  # as systemd does: its folder is gone, and the disk takes no new one
            return ""
        return f"{self.name} ended with code {process.returncode}:\n{tail}"

    def crashes(self) -> list[str]:
        """What its log says, since the last call, of workers that ended with an exception."""
        with self.log.open("rb") as log:
            log.seek(self._read)
            fresh = log.read()
        whole = fresh[: fresh.rfind(b"\n") + 1]
        self._read += len(whole)
        found = [json.loads(line) for line in whole.splitlines() if CRASHED in line]
        return [
            f"{self.name}: the worker of {each['kind']}/{each['item']} crashed: {each.get('exception')}"
            for each in found
        ]

    @contextmanager
    def trouble(self) -> Iterator[None]:
        """Count a fault for the length of a ``with`` block."""
        self.faults += 1
        try:
            yield
        finally:
            self.faults -= 1
            self._well_since = time.monotonic()

    def silent_for(self) -> float:
        """Seconds since it was killed or stopped; 0 while it runs."""
        return 0.0 if self._silent_since is None else time.monotonic() - self._silent_since

    def well_for(self) -> float:
        """Seconds since its last fault ended; 0 during a fault."""
        return 0.0 if self.faults else time.monotonic() - self._well_since
