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
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import structlog

from farmd.agent import environment, exits, strays
from farmd.agent import identity as ids
from farmd.agent.environment import account, limits, stop_signal
from farmd.agent.errors import StartFailed
from farmd.agent.model import LOST, Identity
from farmd.agent.runtimes.port import Busy, Ended, Launch
from farmd.agent.state import StateDirectory
from store.manifests import Manifest
from store.ports import Clock
from store.process import boot_id
from store.reality import Exit

log = structlog.get_logger()

SHIM = Path(__file__).parents[1] / "shim.py"
START_SECONDS = 20.0
NAMING_SECONDS = 5.0
# The dynamic linker may need these to find a Python that is not the system's.
SHIM_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL")


class Processes:
    """All processes of one agent; ``environ`` is the agent's own environment."""

    name = "process"
    features = ("process", "runtime.process")
    doubt = ""

    def __init__(self, state: StateDirectory, node: str, environ: Mapping[str, str], clock: Clock) -> None:
        self._state = state
        self._node = node
        self._environ = environ
        self._clock = clock
        self._lost: dict[str, Identity] = {}
        self.boot = boot_id()

    async def look(self) -> None:
        """Find the processes whose records are lost. A second process of an instance is killed."""
        for instance in self._state.known():
            await self._named(instance)
        found: dict[str, Identity] = {}
        for stray in strays.running(self._state.instances):
            known = self.find(stray.instance) or found.get(stray.instance)
            if known is None:
                log.warning("pod.record_lost", instance=stray.instance, pid=stray.pid)
                found[stray.instance] = stray
            elif known.pid != stray.pid:
                log.error("pod.second_process", instance=stray.instance, pid=stray.pid)
                self.send(stray, signal.SIGKILL)
        self._lost = found

    async def _named(self, instance: str) -> None:
        """Wait for a shim that an earlier agent started just before its end to write its identity.

        A shim that never does keeps its lock, so no second process starts and its files are not removed.
        """
        give_up = self._clock.mono() + NAMING_SECONDS
        while self.find(instance) is None and self._state.shim_holds(instance):
            if self._clock.mono() > give_up:
                log.error("pod.nameless_shim", instance=instance)
                return
            await self._clock.sleep(0.02)

    async def run(self, wake: Callable[[], None]) -> None:
        """Wait for ever: the kernel tells of every end."""
        del wake
        await asyncio.Event().wait()

    def preflight(self, manifest: Manifest) -> None:
        """Refuse a manifest whose user, limits or stop signal this node does not have.

        Raises:
            StartFailed: naming the field, what was found and what was expected.
        """
        environment.preflight(manifest)

    async def prepare(self, instance: str, manifest: Manifest) -> None:
        """Nothing: a process needs only what is on the node."""

    async def start(self, launch: Launch) -> Identity:
        """Start a workload.

        Raises:
            Busy: the instance already has a shim.
            StartFailed: with the reason.
        """
        return await asyncio.to_thread(self.launch, launch)

    def launch(self, launch: Launch) -> Identity:
        """The same; it blocks until the workload runs.

        Raises:
            Busy: the instance already has a shim.
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
            raise Busy("a process of this instance is still there")
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
            "env": self._environment(manifest, launch.instance, launch.ports),
            "cwd": self._folder(manifest, launch.instance),
            "user": None if found is None else (found.uid, found.gid, list(found.groups)),
            "limits": limits(manifest),
            "default_signals": [int(number) for number in default],
            "stop_signal": int(stop_signal(manifest)),
            "logs": str(self._state.logs(launch.instance)),
            "max_bytes": manifest.logs.max_bytes,
            "keep": manifest.logs.keep,
        }

    def _environment(self, manifest: Manifest, instance: str, ports: Mapping[str, int]) -> dict[str, str]:
        return environment.environment(manifest, self._environ, self._node, instance, ports)

    def _folder(self, manifest: Manifest, instance: str) -> str:
        return manifest.working_directory or str(self._state.work(instance))

    def strays(self) -> Iterable[Identity]:
        """The processes whose records were lost when the agent began, as far as they live."""
        return [identity for identity in self._lost.values() if self.lives(identity)]

    def find(self, instance: str) -> Identity | None:
        """The instance's live shim and workload, if there is one."""
        identity = self._state.identity(instance)
        return identity if identity is not None and ids.shim_lives(identity, self.boot) else None

    def lives(self, identity: Identity) -> bool:
        """Whether the shim still runs; it ends after its workload."""
        return ids.shim_lives(identity, self.boot)

    async def signal(self, identity: Identity, number: int) -> None:
        """Send a signal to the workload's whole group."""
        self.send(identity, number)

    def send(self, identity: Identity, number: int) -> bool:
        """The same at once; False if the workload is gone."""
        if not ids.workload_lives(identity, self.boot):
            return False
        try:
            os.killpg(identity.pid, number)
        except ProcessLookupError:
            return False
        return True

    def kill_leftovers(self, identity: Identity | None) -> bool:
        """Kill a workload without a shim, because its exit and output would be lost."""
        return identity is not None and self.send(identity, signal.SIGKILL)

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
        self._state.hold_identity(identity)
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

    def end(self, instance: str, start: str, identity: Identity | None) -> Ended | None:
        """How a start ended: as its shim recorded it, else as its shim's own exit tells."""
        identity = identity or self._state.identity(instance)
        recorded = exits.read(self._state.directory(instance)).get(start)
        if recorded is None and (identity is None or identity.start != start):
            return None  # the agent died between saving the record and the start
        told = self.reap(identity) if identity is not None else None
        if recorded is None and told is not None:
            # The shim could not record the exit, for example because the disk became read-only.
            recorded = Exit(self._clock.now(), told)
        why = "" if recorded is not None else self._unrecorded(identity)
        self._state.release_identity(instance)
        return Ended(recorded or Exit(self._clock.now(), LOST), why)

    def _unrecorded(self, identity: Identity | None) -> str:
        if identity is not None and identity.boot != self.boot:
            return "the node was restarted while it ran"
        if self.kill_leftovers(identity):
            return "its shim was lost, so it was killed"
        return "its end was not recorded: its shim was lost"

    async def remove(self, instance: str) -> None:
        """Nothing, once no shim holds the instance.

        Raises:
            Busy: a shim still holds it.
        """
        if self._state.shim_holds(instance):
            raise Busy("a process of this instance is still there")

    async def check(self, identity: Identity, manifest: Manifest, command: Sequence[str]) -> int:
        """Run a health check's command as the workload's user, with its environment and directory."""
        found = account(manifest)
        process = await asyncio.create_subprocess_exec(
            *command,
            env=self._environment(manifest, identity.instance, identity.ports),
            cwd=self._folder(manifest, identity.instance),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
            user=None if found is None else found.uid,
            group=None if found is None else found.gid,
            extra_groups=None if found is None else found.groups,
        )
        try:
            return await process.wait()
        finally:
            # Kill the whole group: the command's children too, and also after a cancellation or a timeout.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()

    async def close(self) -> None:
        """Nothing to let go of."""


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
