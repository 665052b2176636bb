"""Turns the process that runs it into a workload's own: its mounts, limits, user, privileges and environment.

A shim does so in its child. The command of a health check does so, too: ``python -I -S become.py`` reads on
stdin what it becomes, and writes to stdout why it cannot. Until the user is dropped, no program is looked up,
no variable of the workload is set and nothing of the project but this file runs, because all of that may be
in the workload's hands and this process may be root.
"""

# pathlib would cost more memory than the rest of this file:
# ruff: noqa: PTH123

from __future__ import annotations

import marshal
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Collection
    from typing import Any, NoReturn
else:
    try:
        import _signal as signal  # the same functions without ``enum``: half a megabyte less a workload
    except ImportError:
        import signal

PR_SET_NO_NEW_PRIVS = 38
CLONE_NEWNS = 0x20000
CHUNK = 65536
MOST_SHOWN = 200
OOM_SCORE = "/proc/self/oom_score_adj"


def become(spec: dict[str, Any], failed: int) -> NoReturn:
    """Become the workload; what prevents it is written to ``failed``, which closes where nothing does.

    An agent that still runs an earlier version passes only a part of the fields.
    """
    step = "start"
    try:
        close_others({0, 1, 2, failed})
        os.set_inheritable(failed, False)
        for number in spec["default_signals"]:
            signal.signal(number, signal.SIG_DFL)
        step = "oom_score_adj"
        be_no_dearer_than_others()
        if spec.get("enter"):
            step = "limits"
            _enter(spec["enter"])
        if spec.get("mounts_of"):
            step = "mounts"
            _join_mounts(spec["mounts_of"])
        for target, device, number in spec.get("places", ()):
            step = "mounts " + target
            found = os.stat(target)  # noqa: PTH116
            if (found.st_dev, found.st_ino) != (device, number):
                raise OSError("its source was replaced while the workload started")
        if spec["limits"]:
            import resource

            for name, kind, value in spec["limits"]:
                step = "ulimits." + name
                resource.setrlimit(kind, (value, value))
        if spec.get("no_new_privs"):
            step = "no_new_privs"  # before the user, who may not be able to read this Python
            _libc("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        if spec["user"] is not None:
            step = "user"
            uid, gid, groups = spec["user"]
            os.setgroups(groups)
            os.setgid(gid)
            os.setuid(uid)
        os.umask(0o022)
        step = "working_directory " + _short(spec["cwd"])
        os.chdir(spec["cwd"])
        step = "command " + _short(spec["argv"][0])
        _execute(spec["argv"], spec["env"])
    except BaseException as error:  # noqa: BLE001 - a child must never return into its parent's code
        text = step + ": " + (getattr(error, "strerror", None) or str(error))
        os.write(failed, text.encode("utf-8", "replace"))
    finally:
        os._exit(127)


def _short(text: str) -> str:
    """A path that people are told, which may be as long as a manifest."""
    return text if len(text) <= MOST_SHOWN else text[:MOST_SHOWN] + "…"


def _execute(argv: list[str], env: dict[str, str]) -> NoReturn:
    """What ``os.execvpe`` does, which imports a module: the workload's user may not be able to read that."""
    if "/" in argv[0]:
        os.execve(argv[0], argv, env)
    refused: OSError = FileNotFoundError(2, "No such file or directory")
    for folder in env.get("PATH", os.defpath).split(":"):
        try:
            os.execve(f"{folder}/{argv[0]}" if folder else argv[0], argv, env)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            refused = error
    raise refused


def close_others(kept: Collection[int]) -> None:
    """Close all descriptors but these: whoever started this process may have left it any."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        if int(name) not in kept:
            try:
                os.close(int(name))
            except OSError:
                pass  # the one that listed the folder


def be_no_dearer_than_others() -> None:
    """Let the kernel kill this process for lack of memory like any other: only the agent is protected."""
    with open(OOM_SCORE, encoding="ascii") as file:
        if int(file.read()) >= 0:
            return  # only a privileged process may lower it
    with open(OOM_SCORE, "w", encoding="ascii") as file:
        file.write("0")


def _enter(group: str) -> None:
    """Move this process into a control group, before it runs anything of the workload's."""
    fd = os.open(group + "/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
    os.write(fd, b"0")
    os.close(fd)


def _join_mounts(pid: int) -> None:
    """See the files that another process sees."""
    fd = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    _libc("setns", fd, CLONE_NEWNS)
    os.close(fd)


def _libc(function: str, *numbers: int) -> None:
    """Call a function of the C library that answers 0, for which Python has none."""
    import ctypes

    if getattr(ctypes.CDLL(None, use_errno=True), function)(*numbers) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def main() -> NoReturn:
    """Become what stdin says, with no input and no output."""
    parts: list[bytes] = []
    while part := os.read(0, CHUNK):
        parts.append(part)
    failed = os.dup(1)
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    become(marshal.loads(b"".join(parts)), failed)


if __name__ == "__main__":
    main()
