"""What a shim runs beside its workload (R43): programs that are started again, and that end after it.

Shims run this file: it imports nothing of the project but what lies beside it.
"""

# pathlib would cost shims more memory than the rest of this file:
# ruff: noqa: PTH103, TID251

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
    from typing import Any, Protocol

    from farmd.agent import group, log_files, shim

    class Teller(Protocol):
        """What starts a program once it is recorded, and tells the agent: the stages of the start."""

        def spawn(
            self,
            argv: list[str],
            output: Callable[[bytes], None],
            failed: Callable[[bytes], None],
            record: Callable[[int], bool],
        ) -> int: ...

        def tell(self, **fields: Any) -> bool: ...

else:
    import group
    import log_files

    try:
        import _signal as signal  # as the shim does
    except ImportError:
        import signal

LEAST_SECONDS = 0.2
"""Before each start again, also where the manifest asks for none: the shim has to tell of each."""
BEGIN_SECONDS = 5.0
"""So long the start of one waits for that of the one before it, which may hang on a disk."""


class Child:
    """One of them; ``pid`` is 0 while it does not run. ``due`` and ``began`` are monotonic."""

    def __init__(self, spec: dict[str, Any], name: str, argv: list[str]) -> None:
        folder = spec["logs"] + "/" + name
        try:
            os.makedirs(folder, 0o700, exist_ok=True)
        except OSError:
            pass  # its output is lost, and it is not
        self.name = name
        self.argv = argv
        self.log = log_files.Log(folder, spec["max_bytes"], spec["keep"], spec["start"])
        self.pid = 0
        self.due = 0.0
        self.began = 0.0
        self.failures = 0
        self.problem = b""
        self.waits = False

    def failed(self, part: bytes) -> None:
        """Learn why it cannot begin; with an empty part, that there is no more to learn."""
        self.problem += part
        self.waits = bool(part)


class Sidecars:
    """All of one start."""

    def __init__(self, spec: dict[str, Any], watch: shim.Watch, told: Teller) -> None:
        self._spec = spec
        self._watch = watch
        self._told = told
        self._all: list[Child] = []
        self._state: dict[str, dict[str, Any]] = {}
        self.oom_kills = 0
        for name, argv in spec["sidecars"]:
            self._state[name] = {"pid": 0, "ticks": 0, "since": 0.0, "restarts": 0}
            self._all.append(Child(spec, name, argv))
        for each in self._all:
            self._start(each)
            give_up = time.monotonic() + BEGIN_SECONDS
            while each.waits and (left := give_up - time.monotonic()) > 0:
                watch.turn(left)

    def tend(self) -> float:
        """Start again those that are due; seconds until the next one is, below 0 if none waits."""
        now = time.monotonic()
        for each in self._all:
            if each.pid in self._watch.codes:
                self._ended(each, now)
            if each.pid == 0 and now >= each.due:
                self._state[each.name]["restarts"] += 1
                self._start(each)
        waiting = [each.due - now for each in self._all if each.pid == 0]
        return max(0.0, min(waiting)) if waiting else -1

    def end(self) -> None:
        """Stop all of them as their workload was; return once they have ended."""
        give_up = time.monotonic() + self._spec["grace"]
        self._signal(self._spec["stop_signal"])
        self._watch.reap()
        while self._running() and (left := give_up - time.monotonic()) > 0:
            self._watch.turn(left)
        self._signal(signal.SIGKILL)
        now = time.monotonic()
        for each in self._all:
            if each.pid:
                self._ended(each, now)

    def _running(self) -> bool:
        return any(each.pid and each.pid not in self._watch.codes for each in self._all)

    def _signal(self, number: int) -> None:
        for each in self._all:
            if each.pid:
                try:
                    os.killpg(each.pid, number)
                except OSError:
                    pass

    def _start(self, each: Child) -> None:
        each.began, each.problem, each.waits = time.monotonic(), b"", True
        # A start of its own, so that the output of the one before can be told from it.
        each.log.start = f"{self._spec['start']}.{self._state[each.name]['restarts']}"
        each.log.begin()
        each.pid = self._told.spawn(
            each.argv, each.log.write, each.failed, lambda pid: self._recorded(each.name, pid)
        )

    def _recorded(self, name: str, pid: int) -> bool:
        state = self._state[name]
        state.update(pid=pid, ticks=group.ticks(pid), since=time.time())
        return self._told.tell(sidecars=self._state)

    def _ended(self, each: Child, now: float) -> None:
        """Note how one ended, kill what is left of its session, and say when it starts again."""
        code, before = self._watch.codes.pop(each.pid, -int(signal.SIGKILL)), self.oom_kills
        try:
            os.killpg(each.pid, signal.SIGKILL)
        except OSError:
            pass
        self._watch.let_go(each.pid)
        initial, maximum, reset = self._spec["restart_times"]
        each.failures = 1 if now - each.began >= reset else each.failures + 1
        each.due = now + max(LEAST_SECONDS, min(maximum, initial * 2.0 ** min(each.failures - 1, 60)))
        each.pid = 0
        self.oom_kills = group.oom_kills(self._spec.get("group", "")) if self._spec["memory"] else 0
        self._state[each.name].update(
            pid=0,
            ticks=0,
            since=time.time(),
            code=code,
            why=each.problem.decode("utf-8", "replace"),
            oom=bool(code) and self.oom_kills > before,
        )
        self._told.tell(sidecars=self._state)
