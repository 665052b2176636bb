"""Farms as processes of their own, forked from one that has everything imported already.

A case needs a fresh farm for every k, and starting Python costs more than the rest of the case. The parent
(``Nursery``) reads one JSON line for each farm and answers with its process id. A farm is the same parts as
``farmd run``, without its frame. All of them die with the test process, however that ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import structlog

from store.keys import Keys
from tests import reaper
from tests.fleet import LIMIT, begin_farm, client_of

ROOT = Path(__file__).parents[2]
PR_SET_PDEATHSIG = 1


class FarmProcess:
    """One farm process as a test sees it."""

    def __init__(self, pid: int, log: Path) -> None:
        self.pid = pid
        self.log = log

    def alive(self) -> bool:
        """Whether the process is there (stopped counts)."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def pause(self) -> None:
        """SIGSTOP."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    async def end(self, number: int = signal.SIGKILL) -> None:
        """Signal it and wait until it is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)
            os.kill(self.pid, signal.SIGCONT)
        async with asyncio.timeout(LIMIT):
            while self.alive():
                await asyncio.sleep(0.005)

    def tail(self, lines: int = 15) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


class Nursery:
    """Starts farm processes; a context manager, after which none of them runs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._children: list[FarmProcess] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fault.farm_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            text=True,
            start_new_session=True,
        )
        reaper.started(self._process.pid, folder / "nothing")

    def farm(self, address: str, name: str, keys: Keys, **settings: Any) -> FarmProcess:
        """Start a farm; returns at once."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        log = self._folder / f"{keys.prefix.strip('/')}-{name}.log"
        order = {
            "address": address,
            "prefix": keys.prefix,
            "log": str(log),
            "settings": {"name": name, **settings},
        }
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        farm = FarmProcess(int(self._process.stdout.readline()), log)
        self._children.append(farm)
        return farm

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()  # its children die with it
        self._process.wait()
        reaper.reaped(self._process.pid)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


async def _farm(address: str, prefix: str, settings: dict[str, Any]) -> None:
    client = client_of(address)
    farm = await begin_farm(client, keys=Keys(prefix), **({"kinds": ("rcs",), "thaw_after": 1.0} | settings))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, farm.stop.set)
    await farm.task
    await client.close()


def _child(order: dict[str, Any]) -> None:
    """Never returns."""
    code = 1
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        null = os.open(os.devnull, os.O_RDONLY)
        for target, source in ((0, null), (1, log), (2, log)):
            os.dup2(source, target)
        structlog.configure(logger_factory=structlog.WriteLoggerFactory(sys.stderr))
        asyncio.run(_farm(order["address"], order["prefix"], order["settings"]))
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.freeze()
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _child(json.loads(line))
        print(pid, flush=True)


if __name__ == "__main__":
    _main()
