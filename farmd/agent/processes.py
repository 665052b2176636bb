"""The process runtime: starts a workload under its shim, finds it again, signals it (R26).

After a restart of the agent, shims and workloads are not its children, so no code here relies on being
their parent: ends are seen through pidfds, and without pidfds by the caller's regular checks.
"""

from __future__ import annotations

import asyncio
import contextlib
import marshal
import os
import select
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog

from farmd.agent import exits
from farmd.agent import identity as ids
from farmd.agent.environment import account, environment, limits, stop_signal
from farmd.agent.errors import StartFailed
from farmd.agent.model import Identity
from farmd.agent.state import StateDirectory
from store.manifests import Manifest
from store.process import boot_id

log = structlog.get_logger()

SHIM = Path(__file__).with_name("shim.py")
START_SECONDS = 20.0
# The dynamic linker may need these to find a Python that is not the system's.
SHIM_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL")


class ShimBusy(StartFailed):
    """Another shim holds the instance: the agent must adopt it instead of a new start."""

    code = "shim_busy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One start: ``start`` is its id, ``started`` its time in seconds since the epoch.

    ``restart`` is the counter that it acts on (R28).
    """

    instance: str
    sha: str
    manifest: Manifest
    ports: Mapping[str, int]
    start: str
    started: float
    restart: int = 0


class Processes:
    """All workloads of one agent; ``environ`` is the agent's own environment."""

    def __init__(self, state: StateDirectory, node: str, environ: Mapping[str, str]) -> None:
        self._state = state
        self._node = node
        self._environ = environ
        self.boot = boot_id()

    def start(self, launch: Launch) -> Identity:
        """Start a workload; blocks until it runs, so call it in a thread.

        Raises:
            ShimBusy: the instance already has a shim.
            StartFailed: with the reason.
        """
        spec = self._spec(launch)
        directory = self._state.directory(launch.instance)
        self._state.create(launch.instance)
        exits.trim(directory)
        found = account(launch.manifest)
        if found is not None:
            os.chown(self._state.work(launch.instance), found.uid, found.gid)
        answer = _run_shim(directory, marshal.dumps(spec), self._environ)
        identity = self._state.identity(launch.instance)
        if answer == "busy":
            raise ShimBusy("a process of this instance is still there")
        if answer != "ok" or identity is None or identity.start != launch.start:
            reason = answer.removeprefix("failed ").strip().splitlines()
            self.kill_leftovers(identity)
            raise StartFailed(reason[-1] if reason else "the shim ended without a message")
        return identity

    def _spec(self, launch: Launch) -> dict[str, object]:
        manifest = launch.manifest
        found = account(manifest)
        default = {signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP, signal.SIGINT, signal.SIGTERM}
        return {
            "instance": launch.instance,
            "manifest": launch.sha,
            "start": launch.start,
            "started": launch.started,
            "restart": launch.restart,
            "ports": dict(launch.ports),
            "argv": [*manifest.command, *manifest.args],
            "env": environment(manifest, self._environ, self._node, launch.instance, launch.ports),
            "cwd": manifest.working_directory or str(self._state.work(launch.instance)),
            "user": None if found is None else (found.uid, found.gid, list(found.groups)),
            "limits": limits(manifest),
            "default_signals": [int(number) for number in default],
            "stop_signal": int(stop_signal(manifest)),
            "logs": str(self._state.logs(launch.instance)),
            "max_bytes": manifest.logs.max_bytes,
            "keep": manifest.logs.keep,
        }

    def find(self, instance: str) -> Identity | None:
        """The instance's live shim and workload, if there is one."""
        identity = self._state.identity(instance)
        return identity if identity is not None and ids.shim_lives(identity, self.boot) else None

    def lives(self, identity: Identity) -> bool:
        """Whether the shim still runs; it ends after its workload."""
        return ids.shim_lives(identity, self.boot)

    def signal(self, identity: Identity, number: int) -> bool:
        """Send a signal to the workload's whole group; False if the workload is gone."""
        if not ids.workload_lives(identity, self.boot):
            return False
        try:
            os.killpg(identity.pid, number)
        except ProcessLookupError:
            return False
        return True

    def kill_leftovers(self, identity: Identity | None) -> bool:
        """Kill a workload without a shim, because its exit and output would be lost."""
        return identity is not None and self.signal(identity, signal.SIGKILL)

    def reap(self, identity: Identity) -> int | None:
        """Reap the shim if it was a child of this agent; its exit code tells how the workload ended.

        None if it tells nothing: the shim was killed, left the workload behind, or was another agent's.
        """
        try:
            pid, status = os.waitpid(identity.shim, os.WNOHANG)
        except ChildProcessError:
            return None
        if pid == 0 or os.WIFSIGNALED(status) or ids.workload_lives(identity, self.boot):
            return None
        code = os.WEXITSTATUS(status)
        return 128 - code if code > 128 else code

    def watch(self, identity: Identity, gone: Callable[[], None]) -> Callable[[], None] | None:
        """Call ``gone`` in the running loop when the shim ends; returns a function that cancels that.

        None if the kernel has no pidfd: then the caller must check from time to time.
        """
        try:
            fd = os.pidfd_open(identity.shim)
        except ProcessLookupError:
            gone()
            return lambda: None
        except (AttributeError, OSError):
            return None
        loop = asyncio.get_running_loop()

        def cancel() -> None:
            nonlocal fd
            if fd >= 0:
                loop.remove_reader(fd)
                os.close(fd)
                fd = -1

        def ended() -> None:
            cancel()
            gone()

        loop.add_reader(fd, ended)
        if not self.lives(identity):
            # The process id was reused, or the shim ended just now.
            ended()
        return cancel


def _run_shim(directory: Path, spec: bytes, environ: Mapping[str, str]) -> str:
    """Start a shim, send it its start, return its answer: ``ok``, ``busy`` or a reason."""
    spec_read, spec_write = os.pipe()
    status_read, status_write = os.pipe()
    try:
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", str(SHIM), str(directory)],
            {name: environ[name] for name in SHIM_ENVIRONMENT if name in environ},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, spec_read, 0),
                (os.POSIX_SPAWN_DUP2, status_write, 1),
                (os.POSIX_SPAWN_DUP2, status_write, 2),
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
    try:
        with contextlib.suppress(BrokenPipeError), os.fdopen(spec_write, "wb") as pipe:
            pipe.write(spec)
        answer = _read_answer(status_read)
    finally:
        os.close(status_read)
    if answer is None:
        os.kill(pid, signal.SIGKILL)
        answer = f"the shim did not answer in {START_SECONDS:g} s"
    if answer != "ok":
        os.waitpid(pid, 0)
    return answer


def _read_answer(fd: int) -> str | None:
    parts: list[bytes] = []
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    while poll.poll(START_SECONDS * 1000):
        part = os.read(fd, 4096)
        if not part:
            return b"".join(parts).decode("utf-8", "replace")
        parts.append(part)
    return None
