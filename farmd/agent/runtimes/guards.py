"""The guards of containers with ``stop_after``: processes that outlive the agent and end them in time (R27).

A guard is found by its command line, as a shim is. It begins before its container, so that no container with
``stop_after`` is ever without one, and an agent that finds a container without its guard begins another one.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import signal
import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import structlog

from farmd.agent.errors import StartFailed
from farmd.agent.lease import Leases
from farmd.agent.runtimes import process, shims
from farmd.agent.state import StateDirectory
from store.presence import start_ticks

log = structlog.get_logger()

SCRIPT = "farmd/agent/guard.py"


@dataclass(frozen=True, slots=True)
class Guarded:
    """A container that a guard is for; ``lease`` is what its label says: the seconds of its ``stop_after``
    and of its grace, and its stop signal."""

    container: str
    instance: str
    start: str
    lease: str


class Guards:
    """The guards of one agent's containers, on the engine at a URL."""

    def __init__(
        self, engine: str, state: StateDirectory, leases: Leases, environ: Mapping[str, str]
    ) -> None:
        self._engine = engine
        self._state = state
        self._leases = leases
        self._environ = environ
        self._pids: dict[str, tuple[int, int | None]] | None = None
        self._changing = threading.Lock()

    def settle(self, live: Iterable[Guarded], there: Collection[str]) -> None:
        """Begin the guards that live containers lack; end those of containers that are not ``there``."""
        with self._changing:
            known = self._known()
            for container in known.keys() - set(there):
                self._end(container)
            for each in live:
                if each.container not in known:
                    try:
                        self._begin(each)
                    except (StartFailed, OSError, ValueError) as error:  # its label may be anybody's
                        log.warning("guard.not_begun", instance=each.instance, reason=str(error))

    def begin(self, guarded: Guarded) -> None:
        """Begin the guard of a container that is about to start.

        Raises:
            StartFailed: it cannot run, so its container must not.
        """
        with self._changing:
            if guarded.container not in self._known():
                self._begin(guarded)

    def _begin(self, guarded: Guarded) -> None:
        stop_after, grace, number = guarded.lease.split()
        spec = {
            "engine": self._engine,
            "start": guarded.start,
            "stop_after": float(stop_after),
            "grace": float(grace),
            "signal": number,
        }
        directory = self._state.directory(guarded.instance)
        words = shims.guard_command(directory, guarded.container)
        fd = self._leases.reader()
        try:
            pid, answer = shims.run(words, self._environ, marshal.dumps(spec), fd)
        finally:
            os.close(fd)
        if answer != "ok":
            os.waitpid(pid, 0)
            raise StartFailed(f"the guard of its lease cannot run: {answer}")
        assert self._pids is not None
        self._pids[guarded.container] = (pid, start_ticks(pid))

    def _known(self) -> dict[str, tuple[int, int | None]]:
        """The guards that run, by container; those of earlier agents are found once."""
        if self._pids is None:
            self._pids = {}
            for pid, _, [container] in process.processes(SCRIPT, self._state.instances, 1):
                self._pids[container] = (pid, start_ticks(pid))
                try:
                    self._leases.join(pid)
                except OSError as error:
                    log.warning("lease.not_renewed", container=container[:12], error=error.strerror)
        for container, (pid, ticks) in list(self._pids.items()):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
            if ticks is None or start_ticks(pid) != ticks:
                del self._pids[container]
        return self._pids

    def _end(self, container: str) -> None:
        assert self._pids is not None
        pid, ticks = self._pids.pop(container)
        if start_ticks(pid) == ticks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
