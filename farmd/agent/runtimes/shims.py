"""What runs under a shim, whoever starts the shim: its start, finding it again, signals, its end (R26).

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import structlog

from farmd.agent import environment, exits, group
from farmd.agent.artifacts import views
from farmd.agent.environment import limits, stop_signal
from farmd.agent.errors import StartFailed
from farmd.agent.lease import Leases
from farmd.agent.model import LOST, Identity, shim_lives, workload_lives
from farmd.agent.runtimes import start_files
from farmd.agent.runtimes.runtime import Busy, Ended, Launch, Silent
from farmd.agent.state import StateDirectory
from farmd.agent.users import Account, Users
from store import variables as store_variables
from store.manifests import Manifest
from store.ports import Clock
from store.presence import boot_id
from store.reality import Exit

# How a shim is run, and what is said over its pipes while it starts; and how a command of a check is run.

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
        raise StartFailed(f"the shim cannot be started: {error.strerror}") from error
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


log = structlog.get_logger()

END_SECONDS = 1.0  # a check waits so long for the end of a command that it killed


class Shims:
    """The shims of one runtime; a subclass starts them. ``environ`` is the agent's own environment."""

    name = ""

    def __init__(
        self, state: StateDirectory, node: str, environ: Mapping[str, str], clock: Clock, users: Users,
        leases: Leases | None = None,
    ) -> None:  # fmt: skip
        self._leases = leases or Leases()
        self._state = state
        self._node = node
        self._environ = environ
        self._clock = clock
        self._users = users
        self.boot = boot_id()
        self._unended: dict[str, asyncio.Task[int]] = {}

    async def answers(self) -> bool:
        """Always: the kernel tells what runs."""
        return True

    def preflight(self, manifest: Manifest, *, kept: bool = False) -> None:
        """Refuse a manifest whose user, limits or stop signal this node does not have.

        Raises:
            StartFailed: naming the field, what was found and what was expected.
        """
        self._users.of(manifest, kept=kept)
        environment.preflight(manifest)

    def ready(self, launch: Launch, places: Sequence[tuple[str, int, int]] = ()) -> bytes:
        """Make the instance's folders; what its shim must read from stdin.

        ``places``: what must be mounted where before the workload begins, by device and number.

        Raises:
            StartFailed: the manifest's user or limits are not those of this node.
        """
        user = self._users.of(launch.manifest, kept=launch.kept)
        self._state.create(launch.instance)
        exits.trim(self._state.directory(launch.instance))
        if user.other:
            os.chown(self._state.work(launch.instance), user.uid, user.gid)
        views.lay_out(self._state, launch.instance, launch.manifest)
        start_files.lay_out(self._state.starts(launch.instance), launch, user)
        return marshal.dumps(self._spec(launch, user) | {"places": list(places)})

    def _lay_out_rendered(self, launch: Launch, user: Account) -> list[tuple[str, str]]:
        """Write the rendered files of a start in place of those of earlier ones; as ``Rendered.lay_out``."""
        start_files.keep_only(self._state.rendered(launch.instance), launch.start, self._state.trash)
        return launch.rendered.lay_out(launch.manifest, user)

    @contextlib.contextmanager
    def _memory(self, launch: Launch) -> Iterator[int | None]:
        """What the shim of a start gets as its stderr, so that it can hold the lease; None: it has none."""
        if launch.manifest.stop_after <= 0:
            yield None
            return
        fd = self._leases.reader()
        try:
            yield fd
        finally:
            os.close(fd)

    def begun(self, launch: Launch, answer: str) -> Identity:
        """The workload that a shim started, as the shim answered (``ok``, ``busy`` or a reason).

        Raises:
            Busy: the instance already has a shim.
            StartFailed: with the reason.
        """
        identity = self._state.identity(launch.instance)
        if answer == "busy":
            raise Busy("a process of this instance is still running")
        if answer != "ok" or identity is None or identity.start != launch.start:
            reason = answer.removeprefix("failed ").strip().splitlines()
            self.kill_leftovers(identity)
            raise StartFailed(reason[-1] if reason else "the shim ended without a message")
        start_files.keep_only(self._state.starts(launch.instance), launch.start, self._state.trash)
        return identity

    def _spec(self, launch: Launch, user: Account) -> dict[str, object]:
        manifest = launch.manifest
        common = self._common(manifest, user, launch.instance, launch.start, launch.ports)
        default = {signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP, signal.SIGINT, signal.SIGTERM}
        return {
            **common,
            "runtime": self.name,
            "instance": launch.instance,
            "manifest": launch.sha,
            "start": launch.start,
            "started": launch.started,
            "restart": launch.restart,
            # Empty as before there were rules: so are they not applied to its checks.
            "as": "" if launch.kept else user.name,
            "no_new_privs": not (launch.kept or self._users.new_privileges),
            "ports": dict(launch.ports),
            # Secrets are added later: a command can be read by everybody on the node.
            "argv": store_variables.words([*manifest.command, *manifest.args], common["env"]),
            "env": common["env"] | launch.secrets.variables,
            **environment.stages(manifest, common["env"], launch.secrets.values),
            "secret": bool(launch.secrets.variables),
            "limits": limits(manifest),
            "default_signals": [int(number) for number in default],
            "memory": manifest.limits.memory,
            **self._group(launch.instance, manifest),
            "stop_signal": int(stop_signal(manifest)),
            "logs": str(self._state.logs(launch.instance)),
            "max_bytes": manifest.logs.max_bytes,
            "keep": manifest.logs.keep,
            "lease": (manifest.stop_after, manifest.stop.grace) if manifest.stop_after > 0 else None,
        }

    def _group(self, instance: str, manifest: Manifest) -> dict[str, object]:
        """What the shim is told of the control group that it makes; nothing: it makes none."""
        del instance, manifest
        return {}

    def find(self, instance: str) -> Identity | None:
        """The instance's live shim and workload, if this runtime has one."""
        identity = self.recorded(instance)
        return identity if identity is not None and identity.runtime == self.name else None

    def old_user(self, identity: Identity, manifest: Manifest) -> str:
        """The user of a program that an earlier version started and that this version would start as
        another; empty: the same.
        """
        return self._users.outdated(manifest) if not identity.user else ""

    def recorded(self, instance: str) -> Identity | None:
        """The instance's live shim and workload, whichever runtime has it."""
        identity = self._state.identity(instance)
        return identity if identity is not None and self.lives(identity) else None

    def lives(self, identity: Identity) -> bool:
        """Whether the shim still runs; it ends after its workload."""
        return shim_lives(identity, self.boot)

    async def signal(self, identity: Identity, number: int) -> None:
        """Send a signal to the workload's whole group.

        Raises:
            StartFailed: this agent's user may not.
        """
        self.send(identity, number)

    def send(self, identity: Identity, number: int) -> bool:
        """Send a signal, as ``signal``, without a wait; False if the workload is gone.

        Raises:
            StartFailed: as ``signal``.
        """
        if not workload_lives(identity, self.boot):
            return False
        try:
            os.killpg(identity.pid, number)
        except ProcessLookupError:
            return False
        except PermissionError as error:
            # An agent that is not root, and a workload that became another user by itself.
            me = os.geteuid()
            raise StartFailed(
                f"process {identity.pid} belongs to another user: uid {me} may not signal it"
            ) from error
        return True

    def kill_leftovers(self, identity: Identity | None) -> bool:
        """Kill a workload without a shim, because its end would be lost; whether it was killed."""
        try:
            return identity is not None and self.send(identity, signal.SIGKILL)
        except StartFailed:
            return False
        finally:
            if identity is not None and identity.group and identity.boot == self.boot:
                group.kill(identity.group)

    def reap(self, identity: Identity) -> int | None:
        """Reap the shim if it was a child of this agent; its exit code tells how the workload ended.

        None if it tells nothing: the shim was killed, left the workload behind, or was another agent's.
        """
        try:
            pid, status = os.waitpid(identity.shim, os.WNOHANG)
        except ChildProcessError:
            return None
        if pid == 0 or os.WIFSIGNALED(status) or workload_lives(identity, self.boot):
            return None
        code = os.WEXITSTATUS(status)
        return 128 - code if code > 128 else code

    async def tidy(self, needed: Sequence[Manifest], healthy: Sequence[Manifest]) -> None:
        """Do nothing: all files of a start lie in the instance's folder."""

    def watch(self, identity: Identity, gone: Callable[[], None]) -> Callable[[], None] | None:
        """Call ``gone`` in the running loop when the shim ends; returns a function that cancels that.

        None if the kernel has no pidfd: then the caller must check from time to time.
        """
        self._state.hold_identity(identity)
        self._join(identity)
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

    def _join(self, identity: Identity) -> None:
        """Renew what the shim of an earlier agent has; one of an earlier version has nothing."""
        try:
            self._leases.join(identity.shim)
        except OSError as error:
            log.warning("lease.not_renewed", instance=identity.instance, error=error.strerror)

    def end(self, instance: str, start: str, identity: Identity | None) -> Ended | None:
        """How a start ended: as its shim recorded it, else as its shim's own exit tells."""
        identity = identity or self._state.identity(instance)
        folder, starts = self._state.directory(instance), self._state.starts(instance)
        recorded, said, left = self._state.disk.call(
            lambda: (exits.read(folder).get(start), start_files.message(starts, start), exits.stages(folder))
        )
        if recorded is None and (identity is None or identity.start != start):
            return None  # the agent died between saving the record and the start
        told = self.reap(identity) if identity is not None else None
        if identity is not None and left is not None and left.start == start:
            list(map(self.kill_leftovers, left.others(identity)))  # of a shim that was killed
        self._state.release_identity(instance)
        if recorded is not None:
            end = Exit(recorded.at, recorded.code, "oom" if recorded.memory else "", said)
            return Ended(end, recorded.why, recorded.cut_off)
        if told is not None:
            # The shim could not record the exit, for example because the disk became read-only.
            return Ended(Exit(self._clock.now(), told, message=said))
        return Ended(Exit(self._clock.now(), LOST, "lost", said), self._unrecorded(identity))

    def _unrecorded(self, identity: Identity | None) -> str:
        if identity is not None and identity.boot != self.boot:
            return "the node was restarted while it ran"
        if self.kill_leftovers(identity):
            return "its shim was lost, so it was killed"
        return "its end was not recorded, because its shim was lost"

    async def remove(self, instance: str) -> None:
        """Check that no shim holds the instance; there is nothing else to remove.

        Raises:
            Busy: a shim still holds it.
        """
        if self._state.shim_holds(instance):
            raise Busy("a process of this instance is still running")

    async def check(self, identity: Identity, manifest: Manifest, command: Sequence[str]) -> int:
        """Run a health check's command as the workload's user, with its environment and directory."""
        return await self._run_check(identity, manifest, command)

    async def _run_check(
        self, identity: Identity, manifest: Manifest, command: Sequence[str], *, mounts_of: int = 0
    ) -> int:
        if identity.instance in self._unended:
            raise Silent("the command of an earlier check was killed and has not ended yet")
        spec = await asyncio.to_thread(self._check_spec, identity, manifest, command, mounts_of)
        async with self._beside(identity, manifest) as enter:
            return await self._become(identity, {**spec, "enter": enter})

    async def _become(self, identity: Identity, spec: dict[str, object]) -> int:
        process = await asyncio.create_subprocess_exec(
            *become_command(),
            env=variables(self._environ),
            cwd="/",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(marshal.dumps(spec))
            process.stdin.close()
            if problem := (await process.stdout.read()).decode("utf-8", "replace"):
                raise StartFailed(problem)
            return await process.wait()
        finally:
            # Kill the whole group: the command's children too, and also after a cancellation or a timeout.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await self._ended(identity.instance, process)

    def _beside(self, identity: Identity, manifest: Manifest) -> AbstractAsyncContextManager[str]:
        """A control group for one command beside a workload, which nothing of it outlives; empty: none."""
        del identity, manifest
        return contextlib.nullcontext("")

    def _check_spec(
        self, identity: Identity, manifest: Manifest, command: Sequence[str], mounts_of: int
    ) -> dict[str, object]:
        user = self._users.running(identity.user, manifest)
        return {
            **self._common(manifest, user, identity.instance, identity.start, identity.ports),
            "mounts_of": mounts_of,
            "no_new_privs": bool(identity.user) and not self._users.new_privileges,
            "argv": list(command),
            "limits": [],
            "default_signals": [],
        }

    def _common(
        self, manifest: Manifest, user: Account, instance: str, start: str, ports: Mapping[str, int]
    ) -> dict[str, Any]:
        """What a workload and the commands of its checks share."""
        given = start_files.variables(self._state.starts(instance), start)
        given |= views.variables(self._state, instance, manifest)
        return {
            "user": (user.uid, user.gid, list(user.groups)) if user.other else None,
            "cwd": manifest.working_directory or str(self._state.work(instance)),
            "env": environment.environment(manifest, user, self._environ, self._node, instance, ports, given),
        }

    async def _ended(self, instance: str, process: asyncio.subprocess.Process) -> None:
        """Wait for the end of a killed command; of one that the kernel holds, on a hanging disk for example,
        only so long that no check waits for it, and no other command joins it."""
        ending = asyncio.create_task(process.wait())
        self._unended[instance] = ending
        ending.add_done_callback(lambda _: self._unended.pop(instance))
        await asyncio.wait({ending}, timeout=END_SECONDS)
