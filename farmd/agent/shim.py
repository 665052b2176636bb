"""The parent process of one workload: it outlives the agent, so that logs and exits are kept (R26, R27).

The shim runs alone (``python -I -S shim.py <instance directory>``). It imports of the project only
``become.py``, ``group.py`` and ``lease.py`` beside it, and as little of the standard library as possible,
because every workload has a shim; for the same reason it is one long file. It reads its start, marshalled,
from stdin and writes one line with the outcome to stdout. The identity is on disk before the workload's first
instruction, and the shim holds the lock of the instance until both have ended, so there is never a second
process of an instance.
"""

# pathlib would cost more memory than the rest of this file:
# ruff: noqa: PTH100, PTH104, PTH116, PTH108, PTH110, PTH120, PTH123

from __future__ import annotations

import errno
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
    from typing import Any

    from farmd.agent import become, group, lease
else:
    # Last, so that nothing here stands in for a part of the standard library.
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    import become
    import group
    import lease

    sys.path.pop()
    try:
        import _signal as signal  # the same functions without ``enum``: half a megabyte less a workload
    except ImportError:
        import signal

LOCK = "process.lock"
IDENTITY = "process.json"
EXITS = "exits.jsonl"
LOG = "current.log"
MARKS = "current.marks"
MARKS_BYTES = 32768
"""For each so many bytes of marks there is one second more between two of them."""
CHUNK = 65536
BLANK_LINE = b"\n" + b" " * 126 + b"\n"
PR_SET_CHILD_SUBREAPER = 36


class Log:
    """Appends to ``current.log`` and renames it to ``current.log.1``, ``.2``, … when it is full.

    If the disk fails, lines are lost and a later line says so; the workload is never blocked or ended.
    Beside each file, a file of marks says, once a second at most, at which time and in which start its output
    was written. Without room for marks, only these times are lost. Its first line, ``@N``, says how many
    bytes the files before it had, so that a reader knows how much was rotated away before it came.
    """

    def __init__(self, directory: str, max_bytes: int, keep: int, start: str = "") -> None:
        self.path = directory + "/" + LOG
        self.marks = directory + "/" + MARKS
        self.start = start
        self.marked = 0.0
        self.marks_size = 0
        self.max_bytes = max_bytes
        self.keep = keep
        self.fd = -1
        self.size = 0
        self.before = -1
        self.lost = 0
        self.why = ""

    def write(self, data: bytes) -> None:
        """Append; output that needs several files is split at line ends if possible."""
        if self.fd >= 0 and os.fstat(self.fd).st_nlink == 0:
            self.close()  # somebody removed the file: its output could not be read any more
        while data:
            if self.fd < 0 and not self._open():
                self.lost += len(data)
                return
            room = self.max_bytes - self.size
            if len(data) <= room:
                part = len(data)
            else:
                part = data.rfind(b"\n", 0, max(room, 0)) + 1
                if part == 0 and self.size == 0:
                    part = self.max_bytes
            if part == 0:
                self._rotate()
                continue
            self.mark()
            try:
                written = os.write(self.fd, data[:part])
            except OSError as error:
                self._lose(error)
                self.lost += len(data)
                return
            self.size += written
            data = data[written:]

    def begin(self) -> None:
        """Mark where the start begins, so that it is known even if it writes nothing."""
        if self._open():
            self.mark()

    def mark(self) -> None:
        """Mark that what comes now is written now."""
        now = time.time()
        # The more marks there are, the rarer they are: a log that grows by bytes must not have larger marks.
        if abs(now - self.marked) < max(1.0, self.marks_size / MARKS_BYTES):
            return
        self.marked = now
        try:
            line = f"{self.size} {now:.3f} {self.start}\n".encode()
            fd = os.open(self.marks, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                write_all(fd, line)
                self.marks_size = os.fstat(fd).st_size
            finally:
                os.close(fd)
        except OSError:
            pass

    def _open(self) -> bool:
        try:
            self.fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            former, self.size = self.size, os.fstat(self.fd).st_size
            if self.before < 0:
                self.before = self._written_before(".1" if self.size == 0 else "")
            elif self.size == 0:
                self.before += former
            if self.size == 0:
                self._begin_marks()
            if self.lost:
                note = f"\nfarmd: {self.lost} bytes of output were lost here: {self.why}\n"
                self.size += os.write(self.fd, note.encode())
                self.lost = 0
        except OSError as error:
            self._lose(error)
        return self.fd >= 0

    def _begin_marks(self) -> None:
        self.marked = 0.0
        self.marks_size = 0
        try:
            fd = os.open(self.marks, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                write_all(fd, f"@{self.before}\n".encode())
            finally:
                os.close(fd)
        except OSError:
            pass

    def _written_before(self, number: str) -> int:
        """How many bytes were written before the present file, as its marks say, or those of the last one."""
        try:
            with open(self.marks + number, "rb") as file:
                found = int(file.readline(32).strip(b"@\n"))
            return found + os.stat(self.path + number).st_size if number else found
        except (OSError, ValueError):
            return 0

    def _lose(self, error: OSError) -> None:
        self.why = trouble(error)
        self.close()

    def close(self) -> None:
        """Let go of the file; the next output opens it again."""
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1

    def _rotate(self) -> None:
        self.close()
        try:
            if self.keep == 0:
                os.unlink(self.path)
            for number in range(self.keep, 0, -1):
                for path in (self.marks, self.path):
                    older = path + "." + str(number)
                    newer = path + ("." + str(number - 1) if number > 1 else "")
                    if os.path.exists(newer):
                        os.rename(newer, older)
        except OSError:
            # Without the right to rename, truncating is the only way to stay within the limit.
            try:
                os.truncate(self.path, 0)
            except OSError:
                pass


def trouble(error: OSError) -> str:
    """What is wrong with the disk, in words for people."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "disk full"
    return error.strerror or str(error)


def write_all(fd: int, data: bytes) -> None:
    """Write all data; one write may take only a part of it."""
    while data:
        data = data[os.write(fd, data) :]


def ticks(pid: int) -> int:
    """When a process started, in clock ticks since boot; its name may contain anything."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rsplit(b")", 1)[1].split()[19])


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
        f'{{"boot":"{boot}","shim":{me},"shim_ticks":{ticks(me)},"pid":{pid},"ticks":{ticks(pid)},'
        f'"instance":"{spec["instance"]}","manifest":"{spec["manifest"]}",'
        f'"start":"{spec["start"]}","started":{spec["started"]!r},"ports":{{{ports}}},'
        f'"restart":{restarts},"runtime":"{runtime}","user":"{user}","group":"{spec.get("group", "")}"}}\n'
    )
    path = directory + "/" + IDENTITY
    fd = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        write_all(fd, text.encode())
    finally:
        os.close(fd)
    os.rename(path + ".new", path)


def reserve_exit(directory: str) -> int:
    """Open the record of exits at a reserved blank line, so that a full disk cannot prevent the record."""
    fd = os.open(directory + "/" + EXITS, os.O_WRONLY | os.O_CREAT, 0o600)
    end = os.lseek(fd, 0, os.SEEK_END)
    write_all(fd, BLANK_LINE)
    os.lseek(fd, end + 1, os.SEEK_SET)
    return fd


def record_exit(fd: int, spec: dict[str, Any], code: int, *, cut_off: bool, oom: bool) -> None:
    """Write how the workload ended; synced, because it may be read after the machine failed.

    If the write fails, the shim's exit code still tells an agent that is the shim's parent.
    """
    why = f',"memory":{spec["memory"]}' if code and oom else ""
    why += ',"cut_off":true' if cut_off else ""
    try:
        write_all(fd, f'{{"start":"{spec["start"]}","at":{time.time()!r},"code":{code}{why}}}'.encode())
        os.fsync(fd)
    except OSError:
        pass


def become_subreaper() -> None:
    """Adopt orphans of the workload, so that none of them outlives the start."""
    try:
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        pass


def workload(spec: dict[str, Any], output: int, go: int, failed: int) -> None:
    """In the child: wait for the parent's byte, then become the workload. Never returns."""
    try:
        if os.read(go, 1) == b"g":
            os.setsid()
            os.dup2(output, 1)
            os.dup2(output, 2)
            if spec.get("group"):
                try:
                    group.join(spec)
                except OSError as error:
                    os.write(failed, f"limits: {spec['group']} cannot be entered: {trouble(error)}".encode())
                    return
            become.become(spec, failed)
    finally:
        os._exit(125)


def forget_environment(spec: dict[str, Any]) -> None:
    """Let go of the workload's secrets, and leave no core dump: its memory may still have them."""
    import resource

    del spec["env"]
    try:
        # 1 also keeps a program that core_pattern names from getting one; 0 does not.
        resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    except (OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def exit_code(status: int) -> int:
    """Exit code, or minus the signal."""
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def reap(main: int) -> int | None:
    """Reap all ended children; the workload's exit code if it is among them, else None."""
    code = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if pid == 0:
            return code
        if pid == main:
            code = exit_code(status)


def serve(main: int, source: int, wake: int, log: Log) -> int:
    """Copy output to the log until the workload ends; its exit code."""
    poll = select.poll()
    poll.register(source, select.POLLIN)
    poll.register(wake, select.POLLIN)
    code = reap(main)
    while code is None:
        for fd, _ in poll.poll():
            if fd == wake:
                os.read(wake, CHUNK)
                code = reap(main)
            else:
                data = os.read(source, CHUNK)
                if data:
                    log.write(data)
                else:
                    poll.unregister(source)
    return code


def sweep(main: int, source: int, log: Log, own: str) -> None:
    """Kill the workload's remaining processes (its group, its control group, adopted orphans), and log their
    last output.
    """
    forward(main, signal.SIGKILL)
    if own:
        group.kill(own)
    for _ in range(100):
        try:
            if os.waitpid(-1, os.WNOHANG)[0]:
                continue
        except ChildProcessError:
            break
        kill_children()
        time.sleep(0.01)
    os.set_blocking(source, False)
    try:
        data = os.read(source, CHUNK)
        while data:
            log.write(data)
            data = os.read(source, CHUNK)
    except BlockingIOError:
        pass


def kill_children() -> None:
    """Kill the workload, and the orphans that this shim adopted."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            for pid in file.read().split():
                os.kill(int(pid), signal.SIGKILL)
    except OSError:
        pass


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
            kill_children()

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
        tell(status, f"failed {trouble(error)}: the process cannot be recorded in {directory}")
        return 1
    own = spec.get("group", "")
    if own and (refused := group.create(own, spec["values"])):
        if spec["limited"]:
            tell(status, "failed " + refused)
            return 1
        own = spec["group"] = ""
    become_subreaper()
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
    if spec.get("secret"):
        forget_environment(spec)
    # A signal to the shim is meant for the workload.
    signal.signal(signal.SIGTERM, lambda *_: forward(pid, spec["stop_signal"]))
    try:
        write_identity(directory, spec, pid)
    except OSError as error:
        tell(status, f"failed {trouble(error)}: the process cannot be recorded in {directory}")
        os.close(go_write)  # without the byte the workload never begins
        os.waitpid(pid, 0)
        return 1
    ended: list[str] = []
    if spec.get("lease"):
        hold_lease(spec, pid, ended)
    try:
        os.write(go_write, b"g")
    except BrokenPipeError:
        pass  # it was killed before it began, as by its lease; its exit tells
    os.close(go_write)
    problem = read_all(failed)
    os.close(failed)
    if problem:
        os.waitpid(pid, 0)
        if own:
            group.end(own)
        os.unlink(directory + "/" + IDENTITY)
        tell(status, "failed " + problem.decode("utf-8", "replace"))
        return 1
    os.dup2(null, 2)
    os.close(null)
    log = Log(spec["logs"], spec["max_bytes"], spec["keep"], spec["start"])
    log.begin()
    tell(status, "ok")
    code = serve(pid, source, wake, log)
    ended.append("reaped")
    sweep(pid, source, log, own)
    oom = bool(spec.get("memory")) and group.out_of_memory(own)
    record_exit(exits, spec, code, cut_off=ended[0] == "cut off", oom=oom)
    if own:
        group.end(own)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
