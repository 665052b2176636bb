"""How a shim is run, and what is said over its pipes while it starts; and how a command of a check is run."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from farmd.agent.errors import StartFailed

OOM_SCORE = "/proc/self/oom_score_adj"
SHIM = Path(__file__).parents[1] / "shim.py"
GUARD = SHIM.with_name("guard.py")
BECOME = SHIM.with_name("become.py")
START_SECONDS = 20.0
# The dynamic linker may need these to find a Python that is not the system's.
SHIM_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL")


def command(directory: Path) -> list[str]:
    """How to run the shim of an instance."""
    return [sys.executable, "-I", "-S", str(SHIM), str(directory)]


def guard_command(directory: Path, container: str) -> list[str]:
    """How to run the guard of an instance's container."""
    return [sys.executable, "-I", "-S", str(GUARD), str(directory), container]


def oom_score() -> int:
    """How dear this agent is to the kernel that lacks memory; its shims are as dear, workloads never."""
    return min(0, int(Path(OOM_SCORE).read_text(encoding="ascii")))


def become_command() -> list[str]:
    """How to run what becomes a command beside a workload, as stdin says."""
    return [sys.executable, "-I", "-S", str(BECOME)]


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The own environment of a shim, and of what becomes a command."""
    return {name: environ[name] for name in SHIM_ENVIRONMENT if name in environ}


def run(words: list[str], environ: Mapping[str, str], spec: bytes, lease: int | None) -> tuple[int, str]:
    """Start a shim or a guard as a child, send it its start; its process id and its answer: ``ok``, ``busy``
    or a reason. ``lease`` is the memory of its lease, if it has one.

    Raises:
        StartFailed: it cannot run.
    """
    spec_read, spec_write = os.pipe()
    status_read, status_write = os.pipe()
    try:
        pid = os.posix_spawn(
            words[0],
            words,
            variables(environ),
            file_actions=[
                (os.POSIX_SPAWN_DUP2, spec_read, 0),
                (os.POSIX_SPAWN_DUP2, status_write, 1),
                (os.POSIX_SPAWN_DUP2, status_write if lease is None else lease, 2),
            ],
            setsigmask=[],
        )
    except OSError as error:
        os.close(spec_write)
        os.close(status_read)
        raise StartFailed(f"the shim cannot run: {error.strerror}") from error
    finally:
        os.close(spec_read)
        os.close(status_write)
    answer = converse(spec_write, spec, status_read)
    if answer is None:
        os.kill(pid, signal.SIGKILL)
        answer = f"the shim did not answer in {START_SECONDS:g} s"
    return pid, answer


def converse(to: int, spec: bytes, back: int) -> str | None:
    """Send a shim its start, and close both pipes; its answer. None if the shim takes too long."""
    try:
        with contextlib.suppress(BrokenPipeError):
            _send(to, spec)
        os.close(to)
        return _answer(back)
    finally:
        os.close(back)


def _send(fd: int, data: bytes) -> None:
    os.set_blocking(fd, False)
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    while data and poll.poll(START_SECONDS * 1000):
        data = data[os.write(fd, data) :]


def _answer(fd: int) -> str | None:
    """A shim's answer, which it writes at once, or all that it wrote up to its end.

    The pipe's end proves nothing: who started the shim may hold the pipe open.
    """
    text = b""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    while poll.poll(START_SECONDS * 1000):
        part = os.read(fd, 4096)
        text += part
        if not part or part.startswith((b"ok", b"busy", b"failed ")):
            return text.decode("utf-8", "replace")
    return None
