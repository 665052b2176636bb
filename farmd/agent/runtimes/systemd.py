"""The systemd runtime: starts a workload's shim in a transient unit of systemd, with limits and mounts.

The shim is that of the process runtime, so identity, end and output are what it records. Only starts need
systemd: one that was not answered never begins, because a shim without its start on stdin ends at once.
What a workload leaves behind ends with the unit's control group.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from farmd.agent import cgroups
from farmd.agent.artifacts import views
from farmd.agent.errors import StartFailed
from farmd.agent.lease import Leases
from farmd.agent.model import Identity, SystemdConfig, name_of
from farmd.agent.runtimes import container_files, runtime, shims, unit_targets
from farmd.agent.runtimes.attended import Attending
from farmd.agent.runtimes.container_config import Bind
from farmd.agent.runtimes.runtime import Busy, Launch
from farmd.agent.state import StateDirectory
from farmd.agent.users import Account, Users
from farmd.runtime.wake import wait
from store import features
from store.containers import Mount
from store.manifests import Manifest
from store.ports import Clock, Recorder

if TYPE_CHECKING:
    from dbus_fast import Variant
    from dbus_fast.aio import MessageBus

# systemd's manager, asked over D-Bus so that nothing waits for it for ever.
#
# dbus-fast is imported at the first question, so that an agent without systemd's runtime pays nothing.

ANSWER_SECONDS = 10.0
SYSTEMD = "org.freedesktop.systemd1"
MANAGER = SYSTEMD + ".Manager"
ROOT = "/org/freedesktop/systemd1"
ERROR = "org.freedesktop.DBus.Error."
# What the bus says in place of systemd, for example while systemd executes itself again.
SILENT = tuple(
    ERROR + name
    for name in (
        "NoReply",
        "ServiceUnknown",
        "NameHasNoOwner",
        "Disconnected",
        "Timeout",
        "TimedOut",
        "Spawn.",
    )
)


class SystemdSilent(StartFailed):
    """systemd did not answer, so nobody knows what it did."""

    code = "systemd_silent"


class SystemdRefused(StartFailed):
    """systemd answered with the D-Bus error ``name``."""

    code = "systemd_refused"

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message)
        self.name = name


class Systemd:
    """systemd on the bus at an address such as ``unix:path=/run/dbus/system_bus_socket``."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._bus: MessageBus | None = None
        self._connecting = asyncio.Lock()

    def require_owner(self) -> None:
        """Refuse a systemd that runs no units for this user.

        Raises:
            StartFailed: the bus is another user's, and the agent does not run as root.
        """
        path, me = Path(self._address.removeprefix("unix:path=")), os.geteuid()
        if me != 0 and path.exists() and (owner := path.stat().st_uid) != me:
            raise StartFailed(
                f"agent.systemd: found {path} of uid {owner}, expected one of uid {me}, because this agent"
                " does not run as root"
            )

    async def ask(
        self, member: str, signature: str = "", *body: Any, fds: Sequence[int] = (),
        path: str = ROOT, interface: str = MANAGER,
    ) -> Any:  # fmt: skip
        """Call a method; the first value of the answer.

        Raises:
            SystemdSilent: there was no answer in time, so the outcome is unknown.
            SystemdRefused: the answer was an error.
        """
        try:
            from dbus_fast import Message, MessageType
            from dbus_fast.errors import DBusFastError
        except ImportError as error:
            raise SystemdSilent(
                "agent.systemd needs dbus-fast, farmd's extra [systemd] (docs/operations.md#install)"
            ) from error
        call = Message(
            destination=SYSTEMD, path=path, interface=interface, member=member, signature=signature,
            body=list(body), unix_fds=list(fds),
        )  # fmt: skip
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                answer = await (await self._connected()).call(call)
        except (TimeoutError, OSError, EOFError, DBusFastError) as error:
            # What is not sent yet must not be sent later: its file descriptors may be others by then.
            self.close()
            reason = f": {error}" if str(error) else ""
            raise SystemdSilent(f"systemd at {self._address} does not answer{reason}") from error
        if answer is None or answer.message_type is not MessageType.ERROR:
            return answer.body[0] if answer is not None and answer.body else None
        name, text = answer.error_name or "", " ".join(str(part) for part in answer.body)
        if name.startswith(SILENT):
            raise SystemdSilent(f"systemd at {self._address} does not answer: {text}")
        raise SystemdRefused(text or name, name)

    async def _connected(self) -> MessageBus:
        """The connection, which all who ask at the same time share."""
        async with self._connecting:
            if self._bus is None or not self._bus.connected:
                self._bus = await self._connect()
            return self._bus

    async def _connect(self) -> MessageBus:
        from dbus_fast.aio import MessageBus

        bus = MessageBus(bus_address=self._address, negotiate_unix_fd=True)
        try:
            await bus.connect()
        except BaseException:
            bus.disconnect()
            raise
        return bus

    def close(self) -> None:
        """Drop the connection."""
        if self._bus is not None:
            self._bus.disconnect()
            self._bus = None


# Translates a manifest into the properties of a transient unit of systemd. Pure.

UNLIMITED = 2**64 - 1
RECURSIVE = 0x4000  # MS_REC: what is mounted below the source, too


def unit_of(node: str, instance: str) -> str:
    """The one unit of a node's instance."""
    return name_of(node, instance) + ".service"


def has_view(manifest: Manifest) -> bool:
    """Whether the workload sees other files than its node."""
    own = manifest.mounts or manifest.files or manifest.secrets
    return bool(own) or any(each.to.startswith("/") for each in manifest.artifacts)


def source_of(mount: Mount, volumes: Path) -> Path:
    """Where on the node a mount's content lies."""
    return Path(mount.source) if mount.type == "bind" else volumes / mount.source / mount.subpath


def properties(
    node: str, launch: Launch, words: Sequence[str], variables: Mapping[str, str],
    binds: Sequence[Bind], oom_score: int,
) -> list[tuple[str, Variant]]:  # fmt: skip
    """The unit of a start, whose shim is run by ``words``; descriptor 0 is its stdin, 1 its answer, 2 the
    memory of its lease, if it has one (``lease.py``).

    All mounts of the manifest but those in memory are binds. ``oom_score`` is the shim's.
    """
    from dbus_fast import Variant

    manifest, limits = launch.manifest, launch.manifest.limits
    # The shim is a task, too, and so is the thread that holds its lease.
    tasks = limits.pids + (2 if manifest.stop_after > 0 else 1) if limits.pids else UNLIMITED
    found: dict[str, tuple[str, Any]] = {
        "Description": ("s", f"farmd: {launch.instance} on {node}"),
        "ExecStart": ("a(sasb)", [(words[0], list(words), False)]),
        "Environment": ("as", [f"{name}={value}" for name, value in variables.items()]),
        "StandardInputFileDescriptor": ("h", 0),
        "StandardOutputFileDescriptor": ("h", 1),
        "StandardErrorFileDescriptor": ("h", 2 if manifest.stop_after > 0 else 1),
        # The shim records ends: a unit that is over has nothing more to tell.
        "CollectMode": ("s", "inactive-or-failed"),
        # Who stops the unit asks the shim, which asks the workload; what is left then is killed.
        "KillMode": ("s", "mixed"),
        "KillSignal": ("i", int(signal.SIGTERM)),
        "TimeoutStopUSec": ("t", round((manifest.stop.grace + manifest.lingers) * 1e6) + 1),
        "OOMPolicy": ("s", "continue"),
        "OOMScoreAdjust": ("i", oom_score),
        "TasksMax": ("t", tasks),
    }
    if limits.memory:
        found |= {"MemoryMax": ("t", limits.memory), "MemorySwapMax": ("t", 0)}
    if limits.cpu:
        found["CPUQuotaPerSecUSec"] = ("t", round(limits.cpu * 1e6))
    if limits.io_weight:
        found["IOWeight"] = ("t", limits.io_weight)
    return [(name, Variant(*value)) for name, value in (found | _view(manifest, binds)).items()]


def _view(manifest: Manifest, binds: Sequence[Bind]) -> dict[str, tuple[str, Any]]:
    """What the workload sees in place of what the node has there."""
    writable: list[tuple[str, str, bool, int]] = []
    read_only = [(here, there, False, 0) for here, there in binds]
    memory = []
    for mount in manifest.mounts:
        if mount.type == "tmpfs":
            options = [f"size={mount.size}"] if mount.size else []
            options += [f"mode={mount.mode:o}"] if mount.mode else []
            options += [*mount.options, *(["ro"] if mount.read_only else [])]
            memory.append((mount.target, ",".join(options)))
        else:
            kept = read_only if mount.read_only else writable
            kept.append((mount.source, mount.target, False, RECURSIVE))
    found = {
        "BindPaths": ("a(ssbt)", writable),
        "BindReadOnlyPaths": ("a(ssbt)", read_only),
        "TemporaryFileSystem": ("a(ss)", memory),
    }
    return {name: value for name, value in found.items() if value[1]}


log = structlog.get_logger()

LOOK_SECONDS = 30.0
LOOK_OFTEN_SECONDS = 2.0
# How long the former unit of an instance may take to go after its shim ended.
LEAVE_SECONDS = 5.0


class Units(Attending):
    """All transient units of one agent."""

    name = "systemd"

    def __init__(
        self, config: SystemdConfig, *, state: StateDirectory, node: str, environ: Mapping[str, str],
        clock: Clock, recorder: Recorder, users: Users, leases: Leases | None = None,
    ) -> None:  # fmt: skip
        super().__init__(state, node, environ, clock, users, leases)
        self.doubt = "systemd was not queried yet"
        self._config = config
        self._recorder = recorder
        self._systemd = Systemd(config.bus)
        self._volumes = state.root / "volumes"
        self._again = asyncio.Event()
        self._answered = False
        self._wake: Callable[[], None] = lambda: None

    @property
    def features(self) -> Sequence[str]:
        """The features of a systemd that answered once; a short absence of systemd withdraws none."""
        able = ["runtime.systemd", features.FILE_ENCODINGS, features.TMPFS_OPTIONS, features.IO_WEIGHT]
        return [*able, *runtime.as_features(self._config.allow)] if self._answered else []

    async def run(self, wake: Callable[[], None]) -> None:
        """Ask systemd again and again whether it answers; the kernel tells of every end."""
        self._wake = wake
        while True:
            await wait(self._again, self._clock, LOOK_OFTEN_SECONDS if self.doubt else LOOK_SECONDS)
            self._again.clear()
            await self.look()

    async def look(self) -> None:
        """Ask systemd whether it answers; if it does not, ``doubt`` says why."""
        try:
            self._systemd.require_owner()
            await self._systemd.ask("Ping", interface="org.freedesktop.DBus.Peer")
        except StartFailed as error:
            self._told(error.message)
        else:
            self._answered = True
            self._told("")

    def _told(self, doubt: str) -> None:
        self._recorder.set("farmd_runtime_up", 0 if doubt else 1, runtime=self.name)
        if doubt != self.doubt:
            self.doubt = doubt
            log.info("runtime.doubt", runtime=self.name, reason=doubt or "it answers")
            self._again.set()
            self._wake()

    def strays(self) -> Iterable[Identity]:
        """None: the process runtime finds every shim whose records are lost."""
        return ()

    def preflight(self, manifest: Manifest, *, kept: bool = False) -> None:
        """Refuse what this node does not have, or what ``agent.allow`` does not list.

        Raises:
            StartFailed: naming the field, what was found and what was expected.
        """
        super().preflight(manifest, kept=kept)
        runtime.refuse_others(manifest, self._config.allow, kept=kept)
        if not (kept or self._users.share or features.ROOT in self._config.allow):
            unit_targets.refuse_unsafe(manifest, self._state.root, new_privileges=self._users.new_privileges)

    async def prepare(
        self, instance: str, manifest: Manifest, tell: Callable[[str], None], *, kept: bool = False
    ) -> None:
        """Make the volumes and the files.

        Raises:
            StartFailed: with the reason for people.
        """
        del tell
        await asyncio.to_thread(self.preflight, manifest, kept=kept)
        self._state.require_room()
        self._state.create(instance)
        await asyncio.to_thread(self._lay_out, instance, manifest, self._users.of(manifest, kept=kept), kept)

    def _lay_out(
        self, instance: str, manifest: Manifest, user: Account, kept: bool
    ) -> tuple[Manifest, list[Bind]]:
        """Make what it sees of the node; the manifest with only binds, of what their paths lead to now."""
        for mount in manifest.mounts:
            if mount.type == "volume":
                self._make_volume(mount.source, user)
        manifest = runtime.resolved(manifest, self._config.allow, kept=kept)
        binds = container_files.lay_out(self._files(instance), manifest, self._config.secrets_dir)
        binds += views.binds(self._state, manifest)
        mounts = [
            mount if mount.type == "tmpfs" else self._existing(mount, f"mounts[{at}]")
            for at, mount in enumerate(manifest.mounts)
        ]
        return msgspec.structs.replace(manifest, mounts=mounts), binds

    def _existing(self, mount: Mount, field: str) -> Mount:
        """A bind of what a mount leads to; a volume's workload may have put a link into it."""
        source = source_of(mount, self._volumes)
        real = Path(os.path.realpath(source))
        if mount.type == "volume" and not real.is_relative_to(os.path.realpath(self._volumes / mount.source)):
            raise StartFailed(f"{field}: {source} points outside its volume", field="mounts")
        if mount.type == "bind" and real != source:  # its path was resolved and judged a moment ago
            raise StartFailed(f"{field}: {source} was replaced by a link", field="mounts")
        if not real.exists():
            raise StartFailed(f"{field}: {source} does not exist on this node", field="mounts")
        return msgspec.structs.replace(mount, type="bind", source=str(real), subpath="")

    def _files(self, instance: str) -> Path:
        return self._state.directory(instance) / "files"

    def _make_volume(self, name: str, user: Account) -> None:
        """Make a missing volume, for the user of the first workload that has it."""
        self._volumes.mkdir(exist_ok=True, mode=0o711)
        with contextlib.suppress(FileExistsError):
            (self._volumes / name).mkdir(mode=0o755)
            if user.other:
                os.chown(self._volumes / name, user.uid, user.gid)

    async def start(self, launch: Launch) -> Identity:
        """Start a shim in a new unit.

        Raises:
            Busy: the instance's unit is still there.
            StartFailed: with systemd's or the shim's reason.
        """
        user = self._users.of(launch.manifest, kept=launch.kept)
        real, binds = await asyncio.to_thread(
            self._lay_out, launch.instance, launch.manifest, user, launch.kept
        )
        binds += await asyncio.to_thread(launch.secrets.lay_out, launch.manifest, user)
        binds += await asyncio.to_thread(self._lay_out_rendered, launch, user)
        spec = await asyncio.to_thread(self._checked_spec, launch, real)
        await asyncio.to_thread(
            container_files.keep_only, self._files(launch.instance), binds, self._state.trash
        )
        spec_read, spec_write = os.pipe()
        answer_read, answer_write = os.pipe()
        try:
            with self._memory(launch) as lease:
                stderr = [] if lease is None else [lease]
                await self._begin(replace(launch, manifest=real), binds, [spec_read, answer_write, *stderr])
        except BaseException:
            os.close(spec_write)
            os.close(answer_read)
            raise
        finally:
            os.close(spec_read)
            os.close(answer_write)
        answer = await asyncio.to_thread(shims.converse, spec_write, spec, answer_read)
        unit = unit_of(self._node, launch.instance)
        if answer is None:
            with contextlib.suppress(StartFailed):
                await self._systemd.ask("KillUnit", "ssi", unit, "all", int(signal.SIGKILL))
            answer = f"the shim did not answer in {shims.START_SECONDS:g} s"
        answer = answer or f"systemd started no shim: journalctl --unit {unit} shows why"
        return await asyncio.to_thread(self.begun, launch, answer)

    def _checked_spec(self, launch: Launch, real: Manifest) -> bytes:
        """What the shim reads; it compares what systemd mounted by these paths with what was judged."""
        try:
            places = [
                (mount.target, *runtime.identity(mount.source))
                for mount in real.mounts
                if mount.type == "bind"
            ]
        except OSError as error:
            raise StartFailed(f"mounts: {error.filename}: {error.strerror}", field="mounts") from error
        return self.ready(launch, places)

    async def _begin(self, launch: Launch, binds: list[Bind], fds: list[int]) -> None:
        """Start the unit, once the instance's former unit is gone."""
        unit = unit_of(self._node, launch.instance)
        words = shims.command(self._state.directory(launch.instance))
        variables = shims.variables(self._environ)
        score = await asyncio.to_thread(shims.oom_score)
        wanted = properties(self._node, launch, words, variables, binds, score)
        give_up = self._clock.mono() + LEAVE_SECONDS
        while True:
            try:
                await self._systemd.ask(
                    "StartTransientUnit", "ssa(sv)a(sa(sv))", unit, "fail", wanted, [], fds=fds
                )
            except SystemdSilent as error:
                self._told(error.message)
                raise
            except SystemdRefused as error:
                if error.name != SYSTEMD + ".UnitExists":
                    raise
                await self._refuse_foreign(unit, words)
                if self._state.shim_holds(launch.instance) or self._clock.mono() > give_up:
                    raise Busy(f"the unit {unit} of this instance still exists") from error
                await self._clock.sleep(0.05)
            else:
                return

    async def _refuse_foreign(self, unit: str, words: list[str]) -> None:
        """Refuse to wait for a unit of that name that runs something else than this instance's shim."""
        path = await self._systemd.ask("LoadUnit", "s", unit)
        runs = await self._property(path, "Service", "ExecStart")
        fragment = await self._property(path, "Unit", "FragmentPath")
        if (runs or fragment) and [each[1] for each in runs] != [words]:
            found = " ".join(runs[0][1]) if runs else fragment
            raise StartFailed(f"systemd has another unit {unit}, which farmd did not start: {found}")

    async def _property(self, path: str, interface: str, name: str) -> Any:
        found = await self._systemd.ask(
            "Get",
            "ss",
            f"{SYSTEMD}.{interface}",
            name,
            path=path,
            interface="org.freedesktop.DBus.Properties",
        )
        return found.value

    async def check(self, identity: Identity, manifest: Manifest, command: Sequence[str]) -> int:
        """Run a health check's command; it sees the files that the workload sees.

        Raises:
            StartFailed: the workload has ended.
        """
        if not has_view(manifest):
            return await super().check(identity, manifest, command)
        if not self.lives(identity):
            raise StartFailed("its shim has ended")
        return await self._run_check(identity, manifest, command, mounts_of=identity.shim)

    def _inside(self, identity: Identity, manifest: Manifest) -> tuple[str, int]:
        return cgroups.folder_of(identity.shim), identity.shim if has_view(manifest) else 0

    async def close(self) -> None:
        """Drop the connection; units are left as they are."""
        self._systemd.close()
