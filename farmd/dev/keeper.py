"""The process that owns a one-machine cluster: ``python -m farmd.dev.keeper PLAN``.

It starts everything, inherits every orphan, and when its standard input closes (its own parent ended,
however) or it is told to stop, it ends all and removes the folder. So a kill -9 of ``farmd dev`` leaves
nothing behind. It tells what happens as JSON lines on its standard output.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from farmd.dev import tree
from farmd.dev.plan import Plan, environment
from farmd.runtime.clock import SystemClock

STORE_SECONDS = 15.0
WORKLOADS_SECONDS = 12.0
LOOK_SECONDS = 0.2


class CannotStart(Exception):
    """One line: what did not start, and why."""


class Keeper:
    """Starts, watches and ends the processes of a plan."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._clock = SystemClock()
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.told_to_stop = False

    def run(self) -> int:
        """Until told to stop, or until standard input closes; returns the exit code."""
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
        return 0

    def _stop(self, _number: int, _frame: object) -> None:
        self.told_to_stop = True

    def _over(self) -> bool:
        """Whether it is time to end; waits a moment for that."""
        ready, _, _ = select.select([sys.stdin], [], [], LOOK_SECONDS)
        return self.told_to_stop or (bool(ready) and not os.read(sys.stdin.fileno(), 1024))

    @contextlib.contextmanager
    def _folder(self) -> Iterator[None]:
        """The folder, ours alone; removed at the end unless it shall be kept."""
        plan = self._plan
        plan.path("logs").mkdir(parents=True, exist_ok=True)
        with plan.path("lock").open("w") as lock:
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
            self._start(name, plan.agent_command(name, address))
        pids = {name: process.pid for name, process in self._running.items()}
        tell(event="started", store=address, pids=pids)

    def _start(self, name: str, command: list[str]) -> None:
        # A port file of an earlier life would send people to somebody else's port.
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
        """The store's first line says where it listens."""
        deadline = self._clock.mono() + STORE_SECONDS
        while self._clock.mono() < deadline and self._running["store"].poll() is None:
            line, end, _ = self._log("store").read_text().partition("\n")
            if end:
                return str(line)
            tree.pause()
        reason = self._log("store").read_text().strip().rpartition("\n")[2]
        raise CannotStart(f"the store did not start: {reason or 'it said nothing'}")

    def _look(self) -> None:
        """Tell of processes that ended, and let go of orphans that did."""
        for name, process in list(self._running.items()):
            code = process.poll()
            if code is not None:
                del self._running[name]
                tell(event="ended", name=name, code=code)
        tree.reap(spare=[process.pid for process in self._running.values()])

    def _end_all(self) -> None:
        """Agents stop their workloads; farms free their locks; the store goes last; then what is left."""
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
    """One JSON line for the parent; it may be gone."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.write(json.dumps(fields) + "\n")
        sys.stdout.flush()


def main(arguments: list[str]) -> int:
    """Run the keeper of the plan that is given as the only argument."""
    code = Keeper(Plan.parse(arguments[0])).run()
    # A parent that is gone must not turn the interpreter's last flush into an error.
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
