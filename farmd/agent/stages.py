"""What a shim does before its workload begins and after it ended (R43): commands, one after the other.

The commands of ``init`` are children of the process that becomes the workload, so a stop signal to the
workload's group reaches them, and they end with it. A command that takes too long is killed with all that it
started, and what a command left behind is killed when it ended. The shim tells the agent by a file how far it
is. Shims run this file: it imports nothing of the project but what lies beside it.
"""

# pathlib would cost shims more memory than the rest of this file:
# ruff: noqa: PTH104, TID251

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
    from typing import Any, NoReturn

    from farmd.agent import become, group, log_files, shim, sidecars
else:
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
    import become
    import group
    import log_files
    import sidecars

    sys.path.pop()
    try:
        import _signal as signal  # as the shim does
    except ImportError:
        import signal

STAGES = "stages.json"
TAIL = 800
"""Bytes of the end of a failed command's output that people are shown."""
PAUSE, LONGEST_PAUSE = 1.0, 30.0
WORDS = 10
"""Turns at most for the last words of a workload that could not begin."""
AGAIN = 1.0
"""Seconds until a state that could not be written is written again."""


# -- in the process that becomes the workload ---------------------------------------------------


def before(spec: dict[str, Any], notes: int, go: int) -> None:
    """Run the commands of ``init``; return once all have succeeded, else end as the last one did.

    ``notes`` is told each try (``T``), a failure (``F``), and that all have succeeded (``O``). A try begins
    once ``go`` says that the output of the one before it was read.
    """
    asks = {spec["stop_signal"], int(signal.SIGTERM)} - {int(signal.SIGKILL), int(signal.SIGSTOP)}
    signal.pthread_sigmask(signal.SIG_BLOCK, asks | {signal.SIGCHLD})
    group.adopt()
    cores = _no_cores() if spec.get("secret") or spec.get("hide") else None
    for at, step in enumerate(spec["init"]):
        for attempt in range(step["retries"] + 1):
            if attempt:
                _sleep(min(LONGEST_PAUSE, PAUSE * 2.0 ** (attempt - 1)), asks)
            note(notes, f"T {at} {attempt}")
            if os.read(go, 1) != b"g":
                os._exit(125)  # the shim is gone
            code, why = _try(spec, step, asks, cores)
            if not (code or why):
                break
        else:
            note(notes, f"F {at} {code} {why}")
            os._exit(code if code > 0 else 125)
    group.adopt(0)
    _allow_cores(cores)
    _sleep(0.0, asks)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, asks | {signal.SIGCHLD})
    note(notes, "O")


def note(notes: int, text: str) -> None:
    """Write one line; what is longer than a pipe takes at once is cut."""
    os.write(notes, text.replace("\n", " ").encode("utf-8", "replace")[:1000] + b"\n")


def _no_cores() -> tuple[int, int]:
    """Leave no core dump, because this process has secrets; the limits before that."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0 if before[1] == 0 else 1, before[1]))
    return before


def _allow_cores(limits: tuple[int, int] | None) -> None:
    """What becomes a program has the limits that it had without a shim."""
    if limits is not None:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, limits)


def _try(
    spec: dict[str, Any], step: dict[str, Any], asks: set[int], cores: tuple[int, int] | None
) -> tuple[int, str]:
    """Run a command once: its exit code, or minus the signal, and what else there is to say."""
    failed, failed_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, asks | {signal.SIGCHLD})
        _allow_cores(cores)
        become.become({**spec, "argv": step["argv"]}, failed_write)
    os.close(failed_write)
    give_up = time.monotonic() + step["timeout"]
    code, asked = None, 0
    while code is None and (left := give_up - time.monotonic()) > 0:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            code = group.exit_code(status)
        else:
            found = signal.sigtimedwait(asks | {signal.SIGCHLD}, left)
            asked = found.si_signo if found is not None and found.si_signo in asks else asked
    group.end_children()
    if asked:
        _end(asked)
    os.set_blocking(failed, False)
    try:
        problem = os.read(failed, 1000).decode("utf-8", "replace")
    except BlockingIOError:
        problem = ""  # SIGKILL has not ended it yet, as on a disk that does not answer
    os.close(failed)
    if code is None:
        return -int(signal.SIGKILL), f"it did not finish within {step['timeout']:g} s"
    return code, problem


def _sleep(seconds: float, asks: set[int]) -> None:
    """Wait, and end at once if the workload is asked to stop."""
    if (found := signal.sigtimedwait(asks, seconds)) is not None:
        _end(found.si_signo)


def _end(number: int) -> NoReturn:
    """End as a workload does that does not know the signal."""
    signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    os._exit(128 + number)


# -- in the shim --------------------------------------------------------------------------------


class Tail:
    """Passes output on to a log, and keeps its end, in which people may not read what is to ``hide``."""

    def __init__(self, log: Callable[[bytes], None], hide: list[bytes]) -> None:
        self._log = log
        self._hide = sorted((each for each in hide if each), key=len, reverse=True)
        self._room = TAIL + max(map(len, self._hide), default=0)
        self.kept = b""
        self.keeps = True

    def write(self, part: bytes) -> None:
        """Pass a part on."""
        self._log(part)
        if self.keeps:
            self.kept = (self.kept + part)[-self._room :]

    def take(self) -> str:
        """The last lines since the last time."""
        text, self.kept = self.kept, b""
        cut = len(text) == self._room
        for each in self._hide:
            text = text.replace(each, b"\0" * len(each))
        if cut:
            text = text[self._room - TAIL :]  # it may begin with the rest of one
        while b"\0\0" in text:
            text = text.replace(b"\0\0", b"\0")
        text = text.replace(b"\0", b"***")
        return text[-TAIL:].decode("utf-8", "replace").strip()


class Stages:
    """The stages of one start, as its shim goes through them and tells the agent."""

    def __init__(self, directory: str, spec: dict[str, Any], watch: shim.Watch, log: log_files.Log) -> None:
        self._path = directory + "/" + STAGES
        self._spec = spec
        self._watch = watch
        self._tail = Tail(log.write, spec.get("hide", []))
        self._saved = True
        self._go: Callable[[], None] = lambda: None
        self._lines = b""
        self._problem: tuple[str, int, int, str] | None = None
        self._began = self._heard = False
        self._staged = bool(spec.get("init") or spec.get("sidecars"))
        self._sidecars: sidecars.Sidecars | None = None
        self.state: dict[str, Any] = {"start": spec["start"], "failures": []}
        if self._staged:
            self.tell(stage="init", at=0, attempt=0)
        else:
            self.tell(stage="running", begun=spec["started"])

    def run(self, pid: int, source: int, notes: int, go: Callable[[], None]) -> int:
        """Pass output on until the workload ended, or what had to come before it; the exit code.

        ``notes`` is what ``before`` and ``become`` write to; ``go`` lets the workload begin.
        """
        self._go = go
        watch = self._watch
        watch.add(pid, source, self._tail.write)
        if self._staged:
            watch.follow(notes, self._noted)
        watch.reap()
        while pid not in watch.codes:
            due = self._sidecars.tend() if self._sidecars is not None else -1
            watch.turn(due if self._saved else min(AGAIN, due) if due >= 0 else AGAIN)
            self._save()
        if self._staged and not self._began:
            self._drain()
        for _ in range(WORDS):
            if self._staged and not self._heard:
                watch.turn(AGAIN)  # the workload has ended, so these are there
        if self._problem is None:
            return watch.codes[pid]
        self._failed(*self._problem)
        return self._problem[2]

    def _noted(self, part: bytes) -> None:
        """Take notes; after the last one comes why the workload could not begin, or nothing."""
        self._lines += part
        while not self._began and b"\n" in self._lines:
            line, self._lines = self._lines.split(b"\n", 1)
            kind, *words = line.decode("utf-8", "replace").split(" ", 3)
            if kind == "T":
                self.tell(at=int(words[0]), attempt=int(words[1]))
                self._drain()
                self._tail.take()
                self._go()
            elif kind == "F":
                self._problem = ("init", int(words[0]), int(words[1]), words[2])
            else:
                self._begin()
        self._heard = not part
        if self._began and not part:
            # Also if it was killed right before it began: its exit tells.
            if self._lines:
                self._problem = ("command", 0, 127, self._lines.decode("utf-8", "replace"))
            else:
                self.tell(stage="running", begun=time.time())

    def _begin(self) -> None:
        self._began = True
        self._tail.take()
        self._tail.keeps = False
        if self._spec.get("sidecars"):
            self._sidecars = sidecars.Sidecars(self._spec, self._watch, self)
        self._go()

    @property
    def oom_kills(self) -> int:
        """How many processes the kernel has killed for lack of memory before the workload ended."""
        return self._sidecars.oom_kills if self._sidecars is not None else 0

    def end_sidecars(self) -> None:
        """End what runs beside the workload, because that has ended."""
        if self._sidecars is not None:
            self.tell(stage="sidecars")
            self._sidecars.end()

    def after(self, own: str) -> None:
        """Run the commands that follow the workload's end, each once and for a bounded time."""
        self._tail.keeps = True
        for at, step in enumerate(self._spec.get("after_stop", ())):
            self.tell(stage="after_stop", at=at, attempt=0)
            self._tail.take()
            code, why = self._follow(step, own)
            if code or why:
                self._failed("after_stop", at, code, why)
        self.tell(stage="over", process=[])

    def _follow(self, step: dict[str, Any], own: str) -> tuple[int, str]:
        """Run one command, which begins once it is recorded; its exit code, and what else there is to say."""
        problem: list[bytes] = []
        pid = self.spawn(
            step["argv"],
            self._tail.write,
            problem.append,
            lambda pid: self.tell(process=[pid, group.ticks(pid)]),
        )
        watch, give_up = self._watch, time.monotonic() + step["timeout"]
        while pid not in watch.codes and (left := give_up - time.monotonic()) > 0:
            watch.turn(left)
        code = watch.codes.get(pid)
        if own:
            group.kill(own)
        group.end_children()
        self._drain()
        if code is None:
            return -int(signal.SIGKILL), f"it did not finish within {step['timeout']:g} s"
        return code, b"".join(problem).decode("utf-8", "replace")

    def spawn(
        self,
        argv: list[str],
        output: Callable[[bytes], None],
        failed: Callable[[bytes], None],
        record: Callable[[int], bool],
    ) -> int:
        """Begin a program in a session of its own once it is recorded; its id. ``failed`` gets why it cannot
        begin, and an empty part once that is known.
        """
        source, source_write = os.pipe()
        go, go_write = os.pipe()
        problem, problem_write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(go_write)
            _become({**self._spec, "argv": argv}, source_write, go, problem_write)
        for fd in (source_write, go, problem_write):
            os.close(fd)
        self._watch.add(pid, source, output, own=True)
        self._watch.follow(problem, failed, own=True)
        if record(pid):
            os.write(go_write, b"g")
        else:
            failed(b"it cannot be recorded on the node's disk")
        os.close(go_write)  # without the byte it never begins
        return pid

    def _drain(self) -> None:
        """Pass on what is still to be read of those that ended."""
        for _ in range(1000):
            if not self._watch.turn(0):
                return

    def _failed(self, stage: str, at: int, code: int, why: str) -> None:
        failure = {"stage": stage, "at": at, "code": code, "why": why, "output": self._tail.take()}
        self.tell(failures=[*self.state["failures"], failure])

    def tell(self, **fields: Any) -> bool:
        """Tell the agent, now or as soon as the disk takes it; whether it did."""
        self.state.update(fields)
        self._saved = False
        self._save()
        return self._saved

    def _save(self) -> None:
        """Write the state; where that fails, later again."""
        if self._saved:
            return
        import json

        try:
            fd = os.open(self._path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                log_files.write_all(fd, json.dumps(self.state).encode())
            finally:
                os.close(fd)
            os.rename(self._path + ".new", self._path)
            self._saved = True
        except OSError:
            pass


def _become(spec: dict[str, Any], output: int, go: int, failed: int) -> NoReturn:
    """In a child: wait for the parent's byte, then become a program."""
    try:
        if os.read(go, 1) == b"g" and group.take_place(spec, output, failed):
            become.become(spec, failed)
    finally:
        os._exit(125)
