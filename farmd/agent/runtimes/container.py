"""The container runtime: one container a start, made anew each time, on a Docker-compatible engine.

What runs is what the engine lists (``container_listing``). While it does not answer, nobody knows what runs,
and the pods are left as they are. The engine restarts nothing: the agent does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from farmd.agent import environment, exits
from farmd.agent.artifacts import views
from farmd.agent.environment import NOTHING
from farmd.agent.errors import StartFailed
from farmd.agent.lease import Leases
from farmd.agent.model import LOST, ContainerConfig, Identity, name_of
from farmd.agent.runtimes import container_config, container_files, runtime, start_files
from farmd.agent.runtimes.container_exec import Contained
from farmd.agent.runtimes.container_images import ANY, ContainerNeeds, Foreign, Images
from farmd.agent.runtimes.container_init import InitContainers
from farmd.agent.runtimes.container_listing import ENDED, LIVE, EngineContainer, EngineListing
from farmd.agent.runtimes.container_logs import ContainerLogs
from farmd.agent.runtimes.engine import Engine, EngineRefused
from farmd.agent.runtimes.guards import Guarded, Guards
from farmd.agent.runtimes.runtime import Busy, Ended, Execution, Launch
from farmd.agent.state import StateDirectory
from farmd.runtime.tasks import until_one_fails
from store import features
from store.access import Exec
from store.manifests import Manifest
from store.ports import Clock, Recorder
from store.reality import Exit

OWN_NETWORK = "/proc/self/ns/net"


class Containers:
    """All containers of one agent."""

    name = "container"

    def __init__(
        self, config: ContainerConfig, *, state: StateDirectory, node: str, clock: Clock, recorder: Recorder,
        leases: Leases | None = None, environ: Mapping[str, str] = NOTHING,
    ) -> None:  # fmt: skip
        self._config = config
        self._state = state
        self._node = node
        self._clock = clock
        self._recorder = recorder
        self._engine = Engine(config.engine)
        self._images = Images(self._engine, state, config.image_retention, clock, recorder)
        self._parts = ContainerNeeds(self._engine, self._images, config.registry_auth, node, clock, recorder)
        self._listing = EngineListing(self._engine, node, clock, self._noted)
        self._guards = Guards(config.engine, state, leases or Leases(), environ)
        self._looked = asyncio.Event()
        self._environ = environ
        self._logs = ContainerLogs(self._engine, clock, self._listing.lives)
        self._init = InitContainers(self._engine, self._logs, node, clock)

    @property
    def doubt(self) -> str:
        """Why the engine cannot tell now what runs; empty if it can."""
        return self._listing.doubt

    @property
    def features(self) -> Sequence[str]:
        """The features of an engine that answered once; a short absence of the engine withdraws none."""
        if not self._listing.answered:
            return []
        apart = [features.APART] if self._listing.apart else []
        allowed = runtime.as_features(self._config.allow)
        return ["runtime.container", *features.CONTAINER_FEATURES, *apart, *allowed]

    # -- what runs -------------------------------------------------------------------------------
    async def run(self, wake: Callable[[], None]) -> None:
        """Look again and again, sooner after an event."""
        await until_one_fails([self._listing.run(wake), self._guard()])

    async def _guard(self) -> None:
        """After each look see to it that the containers with ``stop_after`` have guards, and no others."""
        while True:
            await self._looked.wait()
            self._looked.clear()
            if not self.doubt:
                seen = list(self._listing.seen.values())
                live = [_guarded(each) for each in seen if each.lease and each.state in LIVE]
                there = [each.identity.handle for each in seen if each.state not in ENDED]
                await asyncio.to_thread(self._guards.settle, live, there)

    async def look(self) -> None:
        """List the containers of this node; without an answer ``doubt`` says why."""
        await self._listing.look()

    async def answers(self) -> bool:
        """Whether the engine lists the containers, asked anew."""
        return await self._listing.answers()

    def _noted(self) -> None:
        self._recorder.set("farmd_runtime_up", 0 if self.doubt else 1, runtime=self.name)
        self._looked.set()
        self._follow_logs()

    def _follow_logs(self) -> None:
        for instance, seen in self._listing.seen.items():
            if seen.state in LIVE | ENDED and self._state.has(instance):
                identity = seen.identity
                self._logs.follow(identity.handle, identity.start, self._state.logs(instance), seen.sizes)
        if not self.doubt:
            seen_now = {seen.identity.handle for seen in self._listing.seen.values()}
            self._logs.forget(seen_now | self._init.handles)

    def find(self, instance: str) -> Identity | None:
        """The instance's live container."""
        seen = self._listing.seen.get(instance)
        return seen.identity if seen is not None and seen.state in LIVE else None

    def old_user(self, identity: Identity, manifest: Manifest) -> str:
        """None: its users are those of its image."""
        del identity, manifest
        return ""

    def strays(self) -> Iterable[Identity]:
        """All containers of this node's agents."""
        return [] if self.doubt else [seen.identity for seen in self._listing.seen.values()]

    def lives(self, identity: Identity) -> bool:
        """Whether this very container lives."""
        return self._listing.lives(identity.handle)

    def watch(self, identity: Identity, gone: Callable[[], None]) -> Callable[[], None]:
        """Copy the container's output; its end is found by the next look, which wakes the agent."""
        del gone
        self._state.create(identity.instance)
        self._follow_logs()
        return lambda: None

    def end(self, instance: str, start: str, identity: Identity | None) -> Ended | None:
        """How a start ended, as the engine recorded it."""
        seen = self._listing.seen.get(instance)
        if seen is not None and seen.identity.start == start:
            return self._ended(instance, start, seen.exit, seen.why) if seen.exit is not None else None
        if identity is not None and identity.start == start:
            gone = Exit(self._clock.now(), LOST, "lost")
            return self._ended(instance, start, gone, "its container was removed")
        return None

    def _ended(self, instance: str, start: str, end: Exit, why: str) -> Ended:
        folder, starts = self._state.directory(instance), self._state.starts(instance)
        marked, said = self._state.disk.call(
            lambda: (exits.read(folder).get(start), start_files.message(starts, start))
        )
        # The guard marks a container before it ends it: what ended earlier did so by itself.
        cut_off = marked is not None and marked.cut_off and end.at >= marked.at
        return Ended(msgspec.structs.replace(end, message=said), why, cut_off)

    # -- acts ------------------------------------------------------------------------------------
    def preflight(self, manifest: Manifest, *, kept: bool = False) -> None:
        """Refuse what ``agent.allow`` does not list.

        Raises:
            StartFailed: naming the field, what was found and what was expected.
        """
        environment.stop_signal(manifest)
        runtime.refuse_others(manifest, self._config.allow, kept=kept)

    async def prepare(
        self, instance: str, manifest: Manifest, tell: Callable[[str], None], *, kept: bool = False
    ) -> None:
        """Get the image, the volumes, the networks and the files.

        Raises:
            StartFailed: with the reason for people.
        """
        await asyncio.to_thread(self.preflight, manifest, kept=kept)
        self._state.require_room()
        self._state.create(instance)
        await asyncio.to_thread(self._lay_out, instance, manifest, kept)
        await self._parts.get(manifest, tell, ANY if kept else self._foreign(instance))

    def _foreign(self, instance: str) -> Foreign:
        """What the node allows, and what the instance's former container has, as since before an upgrade."""
        allow, seen = self._config.allow, self._listing.seen.get(instance)
        volumes, networks = (seen.volumes, seen.networks) if seen is not None else ((), ())
        named = [each.removeprefix(features.NETWORK) for each in allow if each.startswith(features.NETWORK)]
        return Foreign(
            None if features.VOLUMES in allow else volumes,
            None if features.NETWORKS in allow else [*networks, *named],
        )

    def _lay_out(
        self, instance: str, manifest: Manifest, kept: bool
    ) -> tuple[Manifest, list[container_config.Bind]]:
        """Make the files; the manifest with binds of what their paths lead to now."""
        real = runtime.resolved(manifest, self._config.allow, kept=kept)
        folder = self._state.directory(instance) / "files"
        binds = container_files.lay_out(folder, real, self._config.secrets_dir)
        return real, [*binds, *views.binds(self._state, real)]

    def _make_files(self, launch: Launch, binds: list[container_config.Bind]) -> dict[str, Path]:
        """Make the files that the start exchanges with the agent, and remove those of earlier starts."""
        folder, starts = self._state.directory(launch.instance), self._state.starts(launch.instance)
        container_files.keep_only(folder / "files", binds, self._state.trash)
        exits.trim(folder)
        start_files.lay_out(starts, launch, None)
        start_files.keep_only(starts, launch.start, self._state.trash)
        start_files.keep_only(self._state.rendered(launch.instance), launch.start, self._state.trash)
        return start_files.paths(starts, launch.start)

    async def start(self, launch: Launch) -> Identity:
        """Make and start a container in place of the instance's former one.

        Raises:
            Busy: the instance's container lives.
            Unwanted, InitFailed: it ended before the workload began.
            StartFailed: with the engine's reason.
        """
        await self._listing.looked()
        await self.remove(launch.instance)
        real, binds = await asyncio.to_thread(self._lay_out, launch.instance, launch.manifest, launch.kept)
        binds += await asyncio.to_thread(launch.secrets.lay_out, launch.manifest, None)
        binds += await asyncio.to_thread(launch.rendered.lay_out, launch.manifest, None)
        before = await asyncio.to_thread(_places, real)
        files = await asyncio.to_thread(self._make_files, launch, binds)
        launch = replace(launch, manifest=real)
        if real.init:
            await self._init.run(launch, binds, files, self._state.logs(launch.instance))
        body = container_config.create_body(self._node, launch, binds, files)
        name = name_of(self._node, launch.instance)
        ask, container = self._engine.ask, launch.manifest.container
        assert container is not None
        try:
            made = await self._engine.created(name, body, container.networks)
            if lease := container_config.lease_of(launch.manifest):
                guarded = Guarded(made.id, launch.instance, launch.start, lease)
                await asyncio.to_thread(self._guards.begin, guarded)
            await ask(made.start(), 60.0)
        except EngineRefused as error:
            await self._listing.looked()
            with contextlib.suppress(StartFailed):
                await self.remove(launch.instance)
            raise StartFailed(error.message) from error
        await self._listing.looked()
        seen = self._listing.seen.get(launch.instance)
        if seen is None or seen.identity.start != launch.start:
            raise StartFailed("the container was removed while it started")
        if await asyncio.to_thread(_exchanged, before):
            # An engine takes a path, and follows what is there when it mounts.
            await ask(made.delete(force=True))
            await self._listing.looked()
            raise StartFailed("mounts: a folder was replaced while the container started", field="mounts")
        return seen.identity

    async def signal(self, identity: Identity, number: int) -> None:
        """Send a signal to the container's first process; SIGKILL ends all of them.

        Raises:
            StartFailed: it could not be sent, and the container lives.
        """
        container = self._engine.docker.containers.container(identity.handle)
        try:
            await self._engine.ask(container.kill(signal=signal.Signals(number).name))
        except EngineRefused:
            await self._listing.looked()
            if self.lives(identity):
                raise
        await self.look()

    async def remove(self, instance: str) -> None:
        """Remove the instance's container, after its output was copied.

        Raises:
            Busy: it lives.
            StartFailed: it could not be removed.
        """
        seen = self._listing.seen.get(instance)
        if seen is None:
            return
        if seen.state in LIVE:
            raise Busy("a container of this instance still exists")
        await self._logs.drained(seen.identity.handle)
        container = self._engine.docker.containers.container(seen.identity.handle)
        refused: EngineRefused | None = None
        try:
            await self._engine.ask(container.delete(force=True))
        except EngineRefused as error:
            refused = error
        await self._listing.looked()
        if (
            instance in self._listing.seen
            and self._listing.seen[instance].identity.handle == seen.identity.handle
        ):
            raise refused or StartFailed("the container still exists after its removal")

    async def tidy(self, needed: Sequence[Manifest], healthy: Sequence[Manifest]) -> None:
        """Remove images that this agent pulled and that no pod has needed for long, and idle networks.

        Raises:
            StartFailed: the engine did not answer, or could not tell.
        """
        await self._init.tidy()
        await self._images.tidy(needed, healthy)
        await self._parts.tidy(needed)

    async def check(self, identity: Identity, manifest: Manifest, command: Sequence[str]) -> int:
        """Run a command inside the container, as its user.

        Raises:
            EngineSilent: the engine ended meanwhile, so nobody knows how the command ended.
            StartFailed: the engine did not run it.
        """
        del manifest
        ask = self._engine.ask
        container = self._engine.docker.containers.container(identity.handle)
        execution = await ask(container.exec(list(command)))
        try:
            await self._engine.executed(execution)
        except asyncio.CancelledError:
            # The API cannot end a command, and one that hangs would pile up with each check.
            with contextlib.suppress(StartFailed):
                _kill(int((await ask(execution.inspect(), 2.0)).get("Pid") or 0), identity.pid)
            raise
        found = await ask(execution.inspect())
        return int(found["ExitCode"])

    async def execute(
        self, identity: Identity, manifest: Manifest, wanted: Exec, given: Mapping[str, str]
    ) -> Execution:
        """Begin a person's command in the container, as ``Runtime.execute``.

        Raises:
            StartFailed: it cannot run.
        """
        del manifest, given  # the engine gives it what the container has
        return await Contained.begin(self._engine, identity, wanted, self._environ, self._clock)

    async def network(self, identity: Identity) -> int | None:
        """The container's own network, as ``Runtime.network``.

        Raises:
            StartFailed: it does not run, or the agent does not see it.
        """
        try:
            opened = os.open(f"/proc/{identity.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            why = f"engine: the agent does not see the container's network: {error.strerror}"
            raise StartFailed(why) from error
        try:
            # Asked after the process was opened: the process id of a container that ended may be another's.
            state = (await self._engine.inspected(identity.handle))["State"]
            if not state.get("Running") or state.get("Pid") != identity.pid:
                raise StartFailed("the pod does not run now")
            if os.path.samestat(os.fstat(opened), os.stat(OWN_NETWORK)):  # noqa: PTH116
                return None
            found, opened = opened, -1
            return found
        finally:
            if opened >= 0:
                os.close(opened)

    async def close(self) -> None:
        """Stop copying output; the containers are left as they are."""
        await self._logs.close()
        await self._engine.close()


def _guarded(seen: EngineContainer) -> Guarded:
    return Guarded(seen.identity.handle, seen.identity.instance, seen.identity.start, seen.lease)


def _places(real: Manifest) -> dict[str, tuple[int, int]]:
    """What the sources of binds lead to that exist.

    Raises:
        StartFailed: one that was judged is a link now.
    """
    found = {}
    for mount in real.mounts:
        if mount.type == "bind":
            with contextlib.suppress(OSError):  # the engine says what is missing
                found[mount.source] = runtime.identity(mount.source)
    return found


def _exchanged(places: dict[str, tuple[int, int]]) -> bool:
    """Whether one of these paths leads to something else now."""
    try:
        return any(runtime.identity(source) != known for source, known in places.items())
    except (StartFailed, OSError):
        return True


def _kill(pid: int, inside: int) -> None:
    """Kill a process if it is in the namespace of the container's first process, on this machine."""
    with contextlib.suppress(OSError):
        if pid > 1 and Path(f"/proc/{pid}/ns/pid").readlink() == Path(f"/proc/{inside}/ns/pid").readlink():
            os.kill(pid, signal.SIGKILL)
