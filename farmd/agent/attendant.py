"""The parent process of one command that a person runs beside a workload: nothing of the command outlives it.

In a container the engine is the parent. There the attendant ends what has the command's mark in its
environment, and what descends from that.

The agent runs it alone (``python -I -S attendant.py``). It reads on stdin what it becomes, with the
descriptors of the command's input and output, and writes to stdout ``ok`` or a reason, then how the command
ended. It ends the command, its group, its control group and its orphans when stdin closes, because the
connection was cut or the agent is gone, and when the workload's shim has ended. Each further byte on stdin is
a signal for the command.
"""

# pathlib would cost more than the rest of this file:
# ruff: noqa: PTH100, PTH102, PTH115, PTH120, PTH123, PTH208

from __future__ import annotations

import marshal
import os
import select
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from typing import Any, NoReturn

    from farmd.agent import become, group, shim
else:
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    import become
    import group
    import shim

    sys.path.pop()
    try:
        import _signal as signal
    except ImportError:
        import signal

HANGUP_SECONDS = 2.0
"""From the hangup that a cut connection is for its command to the end of everything."""
LOOK_MILLISECONDS = 500
PAUSE = 0.01


def read_spec() -> dict[str, Any]:
    """What stdin says first: four bytes of length, and the marshalled spec."""
    found: dict[str, Any] = marshal.loads(_exactly(int.from_bytes(_exactly(4), "big")))
    return found


def _exactly(size: int) -> bytes:
    parts = b""
    while len(parts) < size:
        part = os.read(0, size - len(parts))
        if not part:
            os._exit(1)  # the agent is gone
        parts += part
    return parts


def enter(spec: dict[str, Any]) -> str:
    """Make the command's own control group inside the workload's, whose limits so count for both; its path,
    empty: there is none.

    Raises:
        OSError: it cannot be made, although the workload has limits.
    """
    if not spec["inside"]:
        return ""
    path = f"{spec['inside']}/exec-{os.getpid()}"
    try:
        os.mkdir(path)
    except OSError:
        if spec["limited"]:
            raise
        return ""
    return path


def command(spec: dict[str, Any], failed: int) -> NoReturn:
    """In the child: take the input and output, and become the command."""
    try:
        os.setsid()
        for number, fd in enumerate(spec["stdio"]):
            os.dup2(fd, number)
        if spec["tty"]:
            import fcntl
            import termios

            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        become.become(spec, failed)
    except OSError as error:
        os.write(failed, f"start: {error.strerror}".encode())
    finally:
        os._exit(127)


def serve(spec: dict[str, Any], pid: int, wake: int) -> int | None:
    """Wait for the command's end; its exit code. None: it is to be ended."""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    poll.register(wake, select.POLLIN)
    while True:
        ready = [fd for fd, _ in poll.poll(LOOK_MILLISECONDS)]
        if wake in ready:
            os.read(wake, shim.CHUNK)
        if (code := group.reap(pid)) is not None:
            return code
        if 0 in ready:
            numbers = os.read(0, shim.CHUNK)
            if not numbers:
                return None
            for number in numbers:
                shim.forward(pid, number)
        if not _alive(spec):
            return None


def _alive(spec: dict[str, Any]) -> bool:
    """Whether the workload's shim is still that very process."""
    try:
        return bool(group.ticks(spec["shim"]) == spec["shim_ticks"])
    except (OSError, IndexError):
        return False


def end(pid: int, own: str, code: int | None) -> int:
    """End all that is left: after a hangup if the command still runs; its exit code."""
    if code is None:
        shim.forward(pid, signal.SIGHUP)
        give_up = time.monotonic() + HANGUP_SECONDS
        while code is None and time.monotonic() < give_up:
            time.sleep(PAUSE)
            code = group.reap(pid)
    while True:
        shim.forward(pid, signal.SIGKILL)
        if own:
            group.kill(own)
        group.kill_children()
        try:
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == pid and code is None:
                    code = group.exit_code(ended[1])
        except ChildProcessError:
            break
        time.sleep(PAUSE)
    if own:
        group.end(own)
    return -signal.SIGKILL if code is None else code


# A command in a container: the processes of that container with a variable that only they have.


def marked(namespace: str, mark: bytes) -> list[int]:
    """The processes in a namespace of process ids that have a mark in their environment, and those that
    descend from them.
    """
    parents, found = dict[int, int](), set[int]()
    for name in os.listdir("/proc"):
        if name.isdigit() and _namespace(name) == namespace:
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    parents[int(name)] = int(file.read().rsplit(b")", 1)[1].split()[1])
                with open(f"/proc/{name}/environ", "rb") as file:
                    if mark in file.read().split(b"\0"):
                        found.add(int(name))
            except OSError:
                pass  # it has ended
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(found)


def _namespace(process: int | str) -> str:
    try:
        return os.readlink(f"/proc/{process}/ns/pid")
    except OSError:
        return ""


def guard(inside: int, mark: str) -> int:
    """Wait until stdin closes, then end the marked processes; pass signals on to them meanwhile."""
    namespace = _namespace(inside)
    if not namespace or namespace == _namespace("self"):
        tell("failed engine: the agent does not see the container's processes, so it could not end a command")
        return 1
    tell("ok")
    while numbers := os.read(0, shim.CHUNK):
        for number in numbers:
            _signal(marked(namespace, mark.encode()), number)
    give_up, number = time.monotonic() + HANGUP_SECONDS, int(signal.SIGHUP)
    while found := marked(namespace, mark.encode()):
        _signal(found, number)
        time.sleep(PAUSE * 10)
        if time.monotonic() > give_up:
            number = int(signal.SIGKILL)
    tell("0")
    return 0


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:
            pass


def tell(text: str) -> None:
    """Write a line to the agent, if it still reads."""
    try:
        os.write(1, (text.replace("\n", " ") + "\n").encode("utf-8", "replace"))
    except OSError:
        pass


def main() -> int:
    """Run the command to its end."""
    spec = read_spec()
    if "mark" in spec:
        return guard(spec["inside"], spec["mark"])
    become.close_others({0, 1, 2, *spec["stdio"]})
    group.adopt()
    try:
        own = spec["enter"] = enter(spec)
    except OSError as error:
        tell(f"failed limits: {spec['inside']}: {error.strerror}")
        return 1
    wake, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    failed, failed_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        command(spec, failed_write)
    for fd in {failed_write, *spec["stdio"]}:
        os.close(fd)
    problem = shim.read_all(failed)
    os.close(failed)
    code: int | None = 127
    try:
        if not problem:
            tell("ok")
            code = serve(spec, pid, wake)
    finally:
        code = end(pid, own, code)
    tell("failed " + problem.decode("utf-8", "replace") if problem else str(code))
    return 0


if __name__ == "__main__":
    sys.exit(main())
