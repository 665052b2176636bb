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
from typing import Any

import msgspec
import structlog

from farmd.agent.errors import StartFailed
from farmd.agent.lease import Leases
from farmd.agent.model import Identity, SystemdConfig
from farmd.agent.runtimes import allowed, container_files, shim_start, systemd_unit, unit_targets
from farmd.agent.runtimes.container_config import Bind
from farmd.agent.runtimes.port import Busy, Launch
from farmd.agent.runtimes.shims import Shims
from farmd.agent.runtimes.systemd_bus import SYSTEMD, Systemd, SystemdRefused, SystemdSilent
from farmd.agent.state import StateDirectory
from farmd.agent.users import Account, Users
from farmd.runtime.wake import wait
from store import features
from store.containers import Mount
from store.manifests import Manifest
from store.ports import Clock, Recorder

log = structlog.get_logger()

LOOK_SECONDS = 30.0
LOOK_OFTEN_SECONDS = 2.0
# How long the former unit of an instance may take to go after its shim ended.
LEAVE_SECONDS = 5.0


class Units(Shims):
    """All transient units of one agent."""

    name = "systemd"

    def __init__(
        self, config: SystemdConfig, *, state: StateDirectory, node: str, environ: Mapping[str, str],
        clock: Clock, recorder: Recorder, users: Users, leases: Leases | None = None,
    ) -> None:  # fmt: skip
        super().__init__(state, node, environ, clock, users, leases)
        self.doubt = "systemd was not asked yet"
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
        able = ["runtime.systemd", features.FILE_ENCODINGS, features.TMPFS_OPTIONS]
        return [*able, *allowed.as_features(self._config.allow)] if self._answered else []

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
        allowed.refuse_others(manifest, self._config.allow, kept=kept)
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
        manifest = allowed.resolved(manifest, self._config.allow, kept=kept)
        binds = container_files.lay_out(self._files(instance), manifest, self._config.secrets_dir)
        mounts = [
            mount if mount.type == "tmpfs" else self._existing(mount, f"mounts[{at}]")
            for at, mount in enumerate(manifest.mounts)
        ]
        return msgspec.structs.replace(manifest, mounts=mounts), binds

    def _existing(self, mount: Mount, field: str) -> Mount:
        """A bind of what a mount leads to; a volume's workload may have put a link into it."""
        source = systemd_unit.source_of(mount, self._volumes)
        real = Path(os.path.realpath(source))
        if mount.type == "volume" and not real.is_relative_to(os.path.realpath(self._volumes / mount.source)):
            raise StartFailed(f"{field}: {source} leads out of its volume", field="mounts")
        if mount.type == "bind" and real != source:  # its path was resolved and judged a moment ago
            raise StartFailed(f"{field}: {source} became a link meanwhile", field="mounts")
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
        answer = await asyncio.to_thread(shim_start.converse, spec_write, spec, answer_read)
        unit = systemd_unit.unit_of(self._node, launch.instance)
        if answer is None:
            with contextlib.suppress(StartFailed):
                await self._systemd.ask("KillUnit", "ssi", unit, "all", int(signal.SIGKILL))
            answer = f"the shim did not answer in {shim_start.START_SECONDS:g} s"
        answer = answer or f"systemd ran no shim: journalctl --unit {unit} says why"
        return await asyncio.to_thread(self.begun, launch, answer)

    def _checked_spec(self, launch: Launch, real: Manifest) -> bytes:
        """What the shim reads; it compares what systemd mounted by these paths with what was judged."""
        try:
            places = [
                (mount.target, *allowed.identity(mount.source))
                for mount in real.mounts
                if mount.type == "bind"
            ]
        except OSError as error:
            raise StartFailed(f"mounts: {error.filename}: {error.strerror}", field="mounts") from error
        return self.ready(launch, places)

    async def _begin(self, launch: Launch, binds: list[Bind], fds: list[int]) -> None:
        """Start the unit, once the instance's former unit is gone."""
        unit = systemd_unit.unit_of(self._node, launch.instance)
        words = shim_start.command(self._state.directory(launch.instance))
        variables = shim_start.variables(self._environ)
        score = await asyncio.to_thread(shim_start.oom_score)
        wanted = systemd_unit.properties(self._node, launch, words, variables, binds, score)
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
                    raise Busy(f"the unit {unit} of this instance is still there") from error
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
        if not systemd_unit.has_view(manifest):
            return await super().check(identity, manifest, command)
        if not self.lives(identity):
            raise StartFailed("its shim has ended")
        return await self._run_check(identity, manifest, command, mounts_of=identity.shim)

    async def close(self) -> None:
        """Drop the connection; units are left as they are."""
        self._systemd.close()
