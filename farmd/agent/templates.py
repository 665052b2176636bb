"""Keeps the rendered files of running pods up to date (R45).

A file whose template asks for services is rendered again when their endpoints change, and the pod is told as
``on_change`` says. What must never break: an error leaves the file as it is, and a change that the pod was
not told of, because the agent died, is told by the next agent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from farmd.agent.environment import signal_of
from farmd.agent.errors import AgentError, StartFailed
from farmd.agent.model import Identity
from farmd.agent.pod import Pod
from farmd.agent.rendering import Rendered, Renderer, holds, path_of, write
from farmd.agent.runtimes import start_files
from farmd.agent.runtimes.runtime import Runtimes
from farmd.agent.state import StateDirectory
from farmd.runtime.wake import Wake, wait
from store.containers import OnChange
from store.manifests import Manifest
from store.ports import Clock, Rng

log = structlog.get_logger()

RETRY_SECONDS = 30.0
COMMAND_SECONDS = 30.0
END_SECONDS = 2.0
# Endpoints that change all the time change the files of a pod at most so often.
PAUSE_SECONDS = 1.0
# And restart it at most so often: a restarted pod of the service itself changes the endpoints of all others.
RESTART_SECONDS, LONGEST_SECONDS, CALM_SECONDS = 10.0, 300.0, 600.0


class _Later(AgentError):
    """What is due may not be done before ``seconds`` have passed."""

    code = "later"

    def __init__(self, why: str, seconds: float) -> None:
        super().__init__(why)
        self.seconds = seconds


@dataclass(slots=True)
class _Kept:
    task: asyncio.Task[None]
    wake: Wake
    used: frozenset[str] = frozenset()


@dataclass(eq=False, kw_only=True)
class Templates:
    """The pods whose files are kept; ``wake`` is called when what is told of one changed."""

    renderer: Renderer
    runtimes: Runtimes
    state: StateDirectory
    clock: Clock
    rng: Rng
    wake: Callable[[], None]
    _kept: dict[str, _Kept] = field(default_factory=dict, init=False)
    _ending: set[asyncio.Task[None]] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self.renderer.endpoints.changed = self._changed

    def begin(self, pod: Pod) -> None:
        """Keep the files of a pod that runs."""
        self.end(pod)
        manifest, identity = pod.manifest, pod.identity
        if manifest is None or identity is None or not any(file.template for file in manifest.files):
            return
        wake = Wake()
        self._kept[pod.instance] = _Kept(
            asyncio.create_task(self._kept_up(pod, manifest, identity, wake)), wake
        )

    def end(self, pod: Pod) -> None:
        """Leave the files of a pod as they are, because it ended."""
        pod.files_problem, pod.stale = "", ""
        if (kept := self._kept.pop(pod.instance, None)) is not None:
            kept.task.cancel()
            self._ending.add(kept.task)
            kept.task.add_done_callback(self._ending.discard)
            self.renderer.endpoints.want(pod.instance, ())

    async def close(self) -> None:
        """Wait a moment for the end of what is rendered right now."""
        if self._ending:
            await asyncio.wait(self._ending, timeout=END_SECONDS)

    def _changed(self, service: str) -> None:
        for kept in self._kept.values():
            if service in kept.used:
                kept.wake.set()

    async def _kept_up(self, pod: Pod, manifest: Manifest, identity: Identity, wake: Wake) -> None:
        """Render again at each change, and after a failure; a bug is told as one."""
        while True:
            wake.clear()
            problem, used, retry = "", frozenset[str](), RETRY_SECONDS
            try:
                used = await self._look(pod, manifest, identity)
            except _Later as error:
                problem, retry = str(error), error.seconds
            except (AgentError, OSError) as error:
                problem = str(error)
            except Exception as error:
                log.exception("templates.crashed", instance=pod.instance)
                problem = f"files: internal error: {error!r}"
            if problem != pod.files_problem:
                if problem:
                    log.warning("pod.files_not_rendered", instance=pod.instance, reason=problem)
                pod.files_problem = problem
                self.wake()
            if not (problem or used):
                return  # nothing changes it while this start lives
            await wait(wake, self.clock, retry if problem else None)
            if splay := max(file.splay for file in manifest.files):
                await self.clock.sleep(self.rng.uniform(0.0, splay))

    async def _look(self, pod: Pod, manifest: Manifest, identity: Identity) -> frozenset[str]:
        """Render all templates, and do what is due where a result is another one."""
        instance, start = identity.instance, identity.start
        given = await asyncio.to_thread(start_files.variables, self.state.starts(instance), start)
        rendered, used = await self.renderer.all(instance, start, manifest, identity.ports, given)
        self.renderer.endpoints.want(instance, used)
        if (kept := self._kept.get(instance)) is not None:
            kept.used = used
        due = await asyncio.to_thread(self._written, rendered, manifest)
        if any(each.do == "restart" for each in due):
            self._restart(pod)
            return used
        for each in due:
            await self._tell(pod, manifest, identity, each)
        await asyncio.to_thread(_told, rendered.folder)
        if due:
            await self.clock.sleep(PAUSE_SECONDS)
        if why := self.renderer.endpoints.silence(used):
            raise StartFailed(f"files: {why}; they have the last ones", field="files")
        return used

    def _restart(self, pod: Pod) -> None:
        """Have a pod restarted for its files. Each restart soon after another doubles the time until the
        next one may be.

        Raises:
            _Later: it may not be yet.
        """
        if pod.stale:
            return
        now, pause = self.clock.mono(), pod.files_pause
        if (left := pod.files_restarted + pause - now) > 0:
            why = f"files: a file changed again; the pod restarts for it at most every {pause:g} s"
            raise _Later(f"{why} (on_change: restart)", left)
        calm = now >= pod.files_restarted + CALM_SECONDS
        pod.files_restarted = now
        pod.files_pause = RESTART_SECONDS if calm else min(max(RESTART_SECONDS, pause * 2), LONGEST_SECONDS)
        pod.stale = "a file that its endpoints are in changed (on_change: restart)"
        self.wake()

    def _written(self, rendered: Rendered, manifest: Manifest) -> Sequence[OnChange]:
        """Write the files whose content is another one; what the pod has to be told, each once."""
        due: list[OnChange] = []
        for number, file, content in rendered.files:
            path = path_of(rendered.folder, number, file, manifest)
            mark = _mark(rendered.folder, number)
            if not file.template or (holds(path, content) and not mark.exists()):
                continue
            if file.on_change.do != "restart":  # its next start writes it
                mark.touch()
                found = path.stat()
                write(
                    path,
                    content,
                    (found.st_uid, found.st_gid),
                    file.mode,
                    fresh=manifest.runtime == "process",
                )
            if file.on_change not in due:
                due.append(file.on_change)
        return due

    async def _tell(self, pod: Pod, manifest: Manifest, identity: Identity, change: OnChange) -> None:
        """Tell a pod of its files.

        Raises:
            StartFailed: it could not be told; that is tried again.
        """
        while pod.stages is not None and pod.stages.doing(manifest):
            await self.clock.sleep(PAUSE_SECONDS)  # what runs in its place is not meant
        if pod.asked_to_end:
            return
        runtime = self.runtimes.of(identity.runtime)
        log.info("pod.files_changed", instance=pod.instance, on_change=change.do)
        if change.do == "signal":
            await runtime.signal(identity, signal_of(change.signal))
        elif change.do == "command":
            try:
                async with asyncio.timeout(COMMAND_SECONDS):
                    code = await runtime.check(identity, manifest, change.command)
            except TimeoutError as error:
                raise StartFailed(f"on_change.command did not finish within {COMMAND_SECONDS:g} s") from error
            if code:
                raise StartFailed(f"on_change.command: exit code {code}", field="files")


def _mark(folder: Path, number: int) -> Path:
    """What lies beside a file while the pod was not told of its content; of no name that a file may have."""
    return folder / f".{number}.changed"


def _told(folder: Path) -> None:
    for mark in folder.glob(".*.changed"):
        mark.unlink()
