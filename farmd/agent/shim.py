"""The parent process of one workload: it outlives the agent, so that logs and exits are kept (R26, R27).

The shim runs alone (``python -I -S shim.py <instance directory>``). It imports of the project only
what lies beside it (``become.py``, ``group.py``, ``lease.py``, ``log_files.py``, and ``stages.py`` where
something runs before or after the workload), and as little of the standard library as possible, because every
workload has a shim. It reads its start, marshalled, from stdin and writes one line with the outcome to
stdout. The identity is on disk before the workload's first instruction, and the shim holds the lock of the
instance until both have ended, so there is never a second process of an instance.
"""

# pathlib would cost more memory than the rest of this file:
# ruff: noqa: PTH100, PTH104, PTH108, PTH120, PTH123

from __future__ import annotations

import fcntl
import marshal
import os
import select
import sys
import time
from _thread import start_new_thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
    from typing import Any

    from farmd.agent import become, group, lease, log_files
else:
    # Last, so that nothing here stands in for a part of the standard library.
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    import become
    import group
    import lease
    import log_files

    sys.path.pop()
    try:
        import _signal as signal  # the same functions without ``enum``: half a megabyte less a workload
    except ImportError:
        import signal

LOCK = "process.lock"
IDENTITY = "process.json"
EXITS = "exits.jsonl"
CHUNK = 65536
LAST_CHUNKS = 16
"""What is read of an output whose writers may be left: as much as a pipe of an ordinary user holds."""
LEFT = b"farmd: error: processes of this workload are left: they could not be killed\n"
BLANK_LINE = b"\n" + b" " * 190 + b"\n"


def is_over(pid: int) -> bool:
    """Whether a child has ended, and was not reaped yet."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rsplit(b")", 1)[1].split()[0] == b"Z"


def read_all(fd: int) -> bytes:
    """Everything until the other side closes."""
    parts: list[bytes] = []
    while True:
        part = os.read(fd, CHUNK)
        if not part:
            return b"".join(parts)
        parts.append(part)


def tell(status: int, text: str) -> None:
    """Write one line to the agent, if it still reads."""
    try:
        os.write(status, text.encode("utf-8", "replace")[:4000])
    except OSError:
        pass
    os.close(status)


def write_identity(directory: str, spec: dict[str, Any], pid: int) -> None:
    """Write the identity atomically; it is void after a reboot, so it is not synced."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    me = os.getpid()
    ports = ",".join(f'"{name}":{port}' for name, port in spec["ports"].items())
    # An agent that still runs an earlier version does not pass these.
    restarts, runtime, user = spec.get("restart", 0), spec.get("runtime", "process"), spec.get("as", "")
    text = (
        f'{{"boot":"{boot}","shim":{me},"shim_ticks":{group.ticks(me)},"pid":{pid},"ticks":{group.ticks(pid)},'
        f'"instance":"{spec["instance"]}","manifest":"{spec["manifest"]}",'
        f'"start":"{spec["start"]}","started":{spec["started"]!r},"ports":{{{ports}}},'
        f'"restart":{restarts},"runtime":"{runtime}","user":"{user}","group":"{spec.get("group", "")}"}}\n'
    )
    path = directory + "/" + IDENTITY
    fd = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        log_files.write_all(fd, text.encode())
    finally:
        os.close(fd)
    os.rename(path + ".new", path)


def reserve_exit(directory: str) -> int:
    """Open the record of exits at a reserved blank line, so that a full disk cannot prevent the record."""
    fd = os.open(directory + "/" + EXITS, os.O_WRONLY | os.O_CREAT, 0o600)
    end = os.lseek(fd, 0, os.SEEK_END)
    log_files.write_all(fd, BLANK_LINE)
    os.lseek(fd, end + 1, os.SEEK_SET)
    return fd


def record_exit(fd: int, spec: dict[str, Any], code: int, *, cut_off: bool, oom: bool) -> None:
    """Write how the workload ended; synced, because it may be read after the machine failed.

    If the write fails, the shim's exit code still tells an agent that is the shim's parent.
    """
    why = f',"memory":{spec["memory"]}' if code and oom else ""
    why += ',"cut_off":true' if cut_off else ""
    try:
        log_files.write_all(
            fd, f'{{"start":"{spec["start"]}","at":{time.time()!r},"code":{code}{why}}}'.encode()
        )
        os.fsync(fd)
    except OSError:
        pass


def workload(spec: dict[str, Any], output: int, go: int, failed: int) -> None:
    """In the child: wait for the parent's byte, then become the workload. Never returns."""
    try:
        if os.read(go, 1) == b"g" and group.take_place(spec, output, failed):
            if staged(spec):
                load_stages().before(spec, failed, go)
            if not staged(spec) or os.read(go, 1) == b"g":
                become.become(spec, failed)
    finally:
        os._exit(125)


def staged(spec: dict[str, Any]) -> bool:
    """Whether anything runs before the workload."""
    return bool(spec.get("init") or spec.get("sidecars"))


def forget_environment(spec: dict[str, Any], *, kept: bool) -> None:
    """Let go of the workload's secrets unless they are needed later, and leave no core dump: its memory may
    still have them.
    """
    import resource

    if not kept:
        del spec["env"]
    try:
        # 1 also keeps a program that core_pattern names from getting one; 0 does not.
        resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    except (OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


class Watch:
    """Passes the output of processes on and reaps what ended, by turns; ``wake`` is readable at each end."""

    def __init__(self, wake: int) -> None:
        self._wake = wake
        os.set_blocking(wake, False)
        self._poll = select.poll()
        self._poll.register(wake, select.POLLIN)
        self._sinks: dict[int, Callable[[bytes], None]] = {}
        self._pids: set[int] = set()
        self._owned: set[int] = set()
        self._outputs: dict[int, int] = {}
        self.codes: dict[int, int] = {}
        """How those that were added ended: the exit codes, or minus the signals."""

    def add(self, pid: int, source: int, sink: Callable[[bytes], None], *, own: bool = False) -> None:
        """Watch a child, and pass its output on."""
        self._pids.add(pid)
        self._outputs[source] = pid
        self.follow(source, sink, own=own)

    def follow(self, source: int, sink: Callable[[bytes], None], *, own: bool = False) -> None:
        """Pass on what comes from ``source``; an empty part is its end, at which an ``own`` one is closed."""
        os.set_blocking(source, False)
        if own:
            self._owned.add(source)
        self._sinks[source] = sink
        self._poll.register(source, select.POLLIN)

    def wait(self, pid: int) -> int:
        """Wait until a child ended; how it did."""
        self.reap()
        while pid not in self.codes:
            self.turn()
        return self.codes[pid]

    def turn(self, seconds: float = -1) -> bool:
        """Wait until something is due, at most for so many seconds, and do it; whether there was any."""
        due = self._poll.poll(seconds * 1000)
        for fd, _ in due:
            if fd != self._wake and fd not in self._sinks:
                continue  # it came to its end in a turn that a sink took
            try:
                part = os.read(fd, CHUNK)
            except BlockingIOError:
                continue  # a sink took a turn of its own
            if fd == self._wake:
                self.reap()
                continue
            sink = self._sinks[fd]
            if not part:
                self._drop(fd)
            sink(part)
        return bool(due)

    def _drop(self, fd: int) -> None:
        self._poll.unregister(fd)
        del self._sinks[fd]
        self._outputs.pop(fd, None)
        if fd in self._owned:
            self._owned.remove(fd)
            os.close(fd)

    def let_go(self, pid: int) -> None:
        """Pass on what is there of the output of a child that ended, and close it: what the child left behind
        may hold it open, and may go on writing.
        """
        for fd in [fd for fd, owner in self._outputs.items() if owner == pid]:
            pass_on_rest(fd, self._sinks[fd])
            self._drop(fd)

    def reap(self) -> None:
        """Reap all ended children, adopted ones too."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self._pids:
                self._pids.remove(pid)
                self.codes[pid] = group.exit_code(status)


def pass_on_rest(source: int, sink: Callable[[bytes], None]) -> None:
    """Pass on what is there of an output that does not block; what could not be killed may write for ever."""
    try:
        for _ in range(LAST_CHUNKS):
            if not (part := os.read(source, CHUNK)):
                break
            sink(part)
    except BlockingIOError:
        pass


def sweep(main: int, source: int, log: log_files.Log, own: str) -> None:
    """Kill the workload's remaining processes (its group, its control group, adopted orphans), and log their
    last output.
    """
    forward(main, signal.SIGKILL)
    if own:
        group.kill(own)
    ended = group.end_children()
    os.set_blocking(source, False)
    pass_on_rest(source, log.write)
    if not ended:
        log.write(LEFT)


def hold_lease(spec: dict[str, Any], main: int, ended: list[str]) -> None:
    """End the workload when its lease is over (R27), whatever hangs; ``ended`` says how it ended.

    In a thread of its own, because this process may hang on the disk of the log.
    """
    stop_after, grace = spec["lease"]

    def stop() -> None:
        if not ended:
            ended.append("by itself" if is_over(main) else "cut off")
            forward(main, spec["stop_signal"])

    def kill() -> None:
        stop()
        if "reaped" not in ended:
            forward(main, signal.SIGKILL)
        group.kill_children()

    start_new_thread(lease.hold, (stop_after, grace, stop, kill))


def forward(main: int, number: int) -> None:
    """Pass a signal on to the workload, if it still lives."""
    try:
        os.killpg(main, number)
    except OSError:
        pass


def main(directory: str) -> int:
    """Start the workload, wait until it ends, record the exit; return its exit code as a shell would."""
    become.close_others({0, 1, 2})
    spec = marshal.loads(read_all(0))
    if spec.get("lease"):
        lease.keep_memory()
    status = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 10)
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    if os.getsid(0) != os.getpid():  # what systemd starts leads its session already
        os.setsid()
    try:
        lock = os.open(directory + "/" + LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        exits = reserve_exit(directory)
    except BlockingIOError:
        tell(status, "busy")
        return 1
    except OSError as error:
        tell(status, f"failed {log_files.trouble(error)}: the process cannot be recorded in {directory}")
        return 1
    own = spec.get("group", "")
    if own and (refused := group.create(own, spec["values"])):
        if spec["limited"]:
            tell(status, "failed " + refused)
            return 1
        own = spec["group"] = ""
    group.adopt()
    wake, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    source, output = os.pipe()
    go, go_write = os.pipe()
    failed, failed_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(go_write)
        workload(spec, output, go, failed_write)
    for fd in (output, go, failed_write):
        os.close(fd)
    if spec.get("secret") or spec.get("hide"):
        forget_environment(spec, kept=bool(spec.get("after_stop") or spec.get("sidecars")))
    # A signal to the shim is meant for the workload.
    signal.signal(signal.SIGTERM, lambda *_: forward(pid, spec["stop_signal"]))
    try:
        write_identity(directory, spec, pid)
    except OSError as error:
        tell(status, f"failed {log_files.trouble(error)}: the process cannot be recorded in {directory}")
        os.close(go_write)  # without the byte the workload never begins
        os.waitpid(pid, 0)
        return 1
    ended: list[str] = []
    if spec.get("lease"):
        hold_lease(spec, pid, ended)
    send(go_write)
    problem = b"" if staged(spec) else read_all(failed)
    if problem:
        os.waitpid(pid, 0)
        if own:
            group.end(own)
        os.unlink(directory + "/" + IDENTITY)
        tell(status, "failed " + problem.decode("utf-8", "replace"))
        return 1
    os.dup2(null, 2)
    os.close(null)
    log = log_files.Log(spec["logs"], spec["max_bytes"], spec["keep"], spec["start"])
    log.begin()
    watch = Watch(wake)
    told = None
    if staged(spec) or spec.get("after_stop"):
        told = load_stages().Stages(directory, spec, watch, log)
    tell(status, "ok")
    if told is None:
        watch.add(pid, source, log.write)
        code = watch.wait(pid)
    else:
        code = told.run(pid, source, failed, lambda: send(go_write))
    ended.append("reaped")
    oom = bool(spec.get("memory")) and group.oom_kills(own) > (told.oom_kills if told is not None else 0)
    record_exit(exits, spec, code, cut_off=ended[0] == "cut off", oom=oom)
    forward(pid, signal.SIGKILL)
    if told is not None:
        told.end_sidecars()
    sweep(pid, source, log, own)
    if told is not None and ended[0] != "cut off":
        told.after(own)
    if own:
        group.end(own)
    return code if code >= 0 else 128 - code


def load_stages() -> Any:
    """What only starts need that have more than their workload."""
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    found = __import__("stages")
    sys.path.pop()
    return found


def send(go: int) -> None:
    """Let the child go on. One that was killed before that, as by its lease, tells by its exit."""
    try:
        os.write(go, b"g")
    except BrokenPipeError:
        pass


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
