"""Our programs as processes of a test: started, listened to, and ended with the test.

    with Program("run", FARMD_FARM__NAME="f1") as farm:
        farm.wait_for("process.ready")

Lines of the log are JSON objects; what is waited for has a limit, and its failure shows the log.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from farmd.dev.plan import environment
from tests import reaper
from tests.fleet import LIMIT
from tests.forked import ROOT, Forked, piped_module


class Program:
    """One ``python -m farmd …`` with a clean environment and the given variables.

    ``tree`` is the folder of the code that it runs; None: this very code.
    """

    def __init__(
        self,
        *arguments: str,
        folder: Path,
        module: str = "farmd",
        tree: Path | None = None,
        **variables: str,
    ) -> None:
        # No file of this machine's: the named one is empty unless a test writes into it.
        config = folder / "farmd.toml"
        config.touch()
        extra = {"FARMD_CONFIG": str(config), "PYTHONUNBUFFERED": "1", **variables}
        self.log: list[dict[str, Any]] = []
        self.raw: list[str] = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        env = {**environment(dict(os.environ)), **extra}
        self.process: Forked | subprocess.Popen[str]
        if tree in (None, ROOT):
            self.process, self._output = piped_module(module, *arguments, environ=env)
        else:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                cwd=tree,
                env=env | {"PYTHONPATH": str(tree)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
            assert self.process.stdout is not None
            self._output = self.process.stdout
        reaper.started(self.process.pid, folder / "nothing")
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._output:
            self._lines.put(line)
        self._lines.put(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        reaper.reaped(self.process.pid)
        with contextlib.suppress(OSError):
            self._output.close()

    def next_line(self, deadline: float) -> str | None:
        """The next line of output, None at its end."""
        try:
            line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise AssertionError(f"nothing more was said within {LIMIT} s; so far:\n{self.text}") from None
        if line is not None:
            self.raw.append(line)
            with contextlib.suppress(ValueError):
                self.log.append(json.loads(line))
        return line

    def wait_for(self, event: str, **fields: Any) -> dict[str, Any]:
        """The first line of that event with those fields, from here on."""
        deadline = time.monotonic() + LIMIT
        while (line := self.next_line(deadline)) is not None:
            with contextlib.suppress(ValueError):
                found = json.loads(line)
                if found.get("event") == event and all(
                    found.get(key) == value for key, value in fields.items()
                ):
                    return dict(found)
        raise AssertionError(f"it ended without {event} {fields}:\n{self.text}")

    def wait_text(self, text: str) -> str:
        """The first line that contains a text, from here on."""
        deadline = time.monotonic() + LIMIT
        while (line := self.next_line(deadline)) is not None:
            if text in line:
                return line
        raise AssertionError(f"it ended without {text!r}:\n{self.text}")

    def signal(self, number: int) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def ends(self, number: int = 0) -> int:
        """Its exit code, after a signal if one is given."""
        if number:
            self.signal(number)
        deadline = time.monotonic() + LIMIT
        while self.next_line(deadline) is not None:
            pass
        return self.process.wait(LIMIT)

    def tail(self, lines: int = 25) -> str:
        """The end of what it said until now, without waiting for more."""
        while not self._lines.empty() and self.next_line(time.monotonic() + 1) is not None:
            pass
        return "".join(self.raw[-lines:])

    @property
    def text(self) -> str:
        """All output so far."""
        return "".join(self.raw)


@contextlib.contextmanager
def stopped_at_the_end() -> Iterator[list[Program]]:
    """A list of programs, each of which is stopped cleanly at the end of the block."""
    running: list[Program] = []
    yield running
    for program in running:
        if program.process.poll() is None:
            term(program)
        program.__exit__()


def get(url: str) -> tuple[int, str]:
    """Status and body."""
    try:
        with urllib.request.urlopen(url, timeout=LIMIT) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def eventually(what: str, check: Any) -> Any:
    """The first true answer of ``check``, which is asked again and again within the limit."""
    deadline = time.monotonic() + LIMIT
    while not (found := check()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not so within {LIMIT} s: {what}")
        time.sleep(0.05)
    return found


class NotifySocket:
    """systemd's end of sd_notify: what was sent, message by message."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.settimeout(LIMIT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def next(self) -> dict[str, str]:
        """The next message."""
        text = self._socket.recv(65536).decode()
        return dict(line.partition("=")[::2] for line in text.splitlines())

    def wait_for(self, name: str) -> dict[str, str]:
        """The next message that sets a variable."""
        while name not in (message := self.next()):
            pass
        return message


def term(program: Program) -> int:
    """A clean stop."""
    return program.ends(signal.SIGTERM)
