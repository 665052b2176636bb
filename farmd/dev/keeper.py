"""The process that owns a one-machine cluster: ``python -m farmd.dev.keeper PLAN``.

The keeper starts all processes and inherits every orphan. When it is told to stop, or its standard input
closes because its parent ended, it ends all processes and removes the folder. So even a kill -9 of ``farmd
dev`` leaves no process behind. The keeper reports events as JSON lines on its standard output.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from farmd.dev import plan, tree
from farmd.dev.plan import ClusterLayout, environment
from farmd.runtime.clock import SystemClock

STORE_SECONDS = 15.0
WORKLOADS_SECONDS = 12.0
LOOK_SECONDS = 0.2


class CannotStart(Exception):
    """A process did not start; one line with its name and the reason."""


class Keeper:
    """Starts, watches and ends the processes of a plan."""

    def __init__(self, plan: ClusterLayout) -> None:
        self._plan = plan
        self._clock = SystemClock()
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._guards: list[socket.socket] = []
        self.told_to_stop = False

    def run(self) -> int:
        """Run until told to stop or until standard input closes; returns the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._stop)
        tree.adopt_orphans()
        try:
            with self._folder():
                try:
                    self._start_all()
                    while not self._over():
                        self._look()
                finally:
                    self._end_all()
        except CannotStart as error:
            tell(event="failed", reason=str(error))
            return 1
        except Exception as error:
            tell(event="failed", reason=repr(error))
            raise
        return 0

    def _stop(self, _number: int, _frame: object) -> None:
        self.told_to_stop = True

    def _over(self) -> bool:
        """Whether the keeper shall end; waits a moment for a command."""
        ready, _, _ = select.select([sys.stdin], [], [], LOOK_SECONDS)
        return self.told_to_stop or (bool(ready) and not os.read(sys.stdin.fileno(), 1024))

    @contextlib.contextmanager
    def _folder(self) -> Iterator[None]:
        """Lock the folder, and remove it at the end unless the plan keeps it."""
        plan = self._plan
        try:
            plan.path("logs").mkdir(parents=True, exist_ok=True)
            lock = plan.path("lock").open("w")
        except OSError as error:
            why = f"found {plan.folder!r} ({error.strerror}), expected a folder to keep state in"
            raise CannotStart(f"--data-dir: {why}") from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise CannotStart(f"{plan.folder}: another cluster runs there") from error
            try:
                yield
            finally:
                if not plan.keep:
                    shutil.rmtree(plan.folder, ignore_errors=True)

    def _start_all(self) -> None:
        plan = self._plan
        self._start("store", plan.store_command())
        address = self._store_address()
        for name in plan.farm_names():
            self._start(name, plan.farm_command(name, address))
        for name in plan.node_names():
            self._start(name, plan.agent_command(name, address, self._block()))
        pids = {name: process.pid for name, process in self._running.items()}
        tell(event="started", store=address, pids=pids)

    def _block(self) -> int:
        """A block of ports for one agent, kept for as long as this process lives."""
        try:
            first, guard = plan.take_block()
        except plan.NoPorts as error:
            raise CannotStart(str(error)) from error
        self._guards.append(guard)
        return first

    def _start(self, name: str, command: list[str]) -> None:
        # A port file of an earlier run would name a port that another process may use now.
        self._plan.path(f"{name}.port").unlink(missing_ok=True)
        with self._log(name).open("wb") as log:
            self._running[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment(dict(os.environ)),
                preexec_fn=tree.die_with_parent,  # noqa: PLW1509 - this process has one thread
            )

    def _log(self, name: str) -> Any:
        return self._plan.path("logs", f"{name}.log")

    def _store_address(self) -> str:
        """Read the store's address from the first line of its output."""
        deadline = self._clock.mono() + STORE_SECONDS
        while self._clock.mono() < deadline and self._running["store"].poll() is None:
            line, end, _ = self._log("store").read_text().partition("\n")
            if end and " " not in line:  # or it is why the store ends
                return str(line)
            tree.pause()
        reason = self._log("store").read_text().strip().rpartition("\n")[2]
        raise CannotStart(f"the store did not start: {reason or 'it printed nothing'}")

    def _look(self) -> None:
        """Report processes that ended, and reap orphans that ended."""
        for name, process in list(self._running.items()):
            code = process.poll()
            if code is not None:
                del self._running[name]
                tell(event="ended", name=name, code=code)
        tree.reap(spare=[process.pid for process in self._running.values()])

    def _end_all(self) -> None:
        """End agents (with their workloads), farms (which free their locks), the store, then the rest."""
        store = self._running.pop("store", None)
        working = list(self._running.values())
        tree.send((process.pid for process in working), signal.SIGTERM)
        self._await(working, WORKLOADS_SECONDS)
        if store is not None:
            store.terminate()
            self._await([store], 3.0)
        left = tree.descendants(os.getpid())
        tree.end_all(self._clock, grace=1.0)
        tell(event="stopped", left_over=len(left))

    def _await(self, processes: list[subprocess.Popen[bytes]], seconds: float) -> None:
        deadline = self._clock.mono() + seconds
        while self._clock.mono() < deadline and any(process.poll() is None for process in processes):
            tree.pause()


def tell(**fields: Any) -> None:
    """Write one JSON line for the parent, which may have ended."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.write(json.dumps(fields) + "\n")
        sys.stdout.flush()


def main(arguments: list[str]) -> int:
    """Run the keeper of the plan that is given as the only argument."""
    code = Keeper(ClusterLayout.parse(arguments[0])).run()
    # The interpreter's last flush must not fail because the parent has ended.
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
