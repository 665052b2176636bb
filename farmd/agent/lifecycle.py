"""The steps of one pod's life: start, adopt, stop, end, forget.

The record is saved before the action. A process is attached only with its recorded identity. An attached
process is watched until its shim has recorded its exit; an exit without a record is reported as such (R26).
"""

from __future__ import annotations

import asyncio
import math
import signal
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import msgspec
import structlog

from farmd.agent import exits
from farmd.agent.disk import DiskSilent
from farmd.agent.environment import stop_signal
from farmd.agent.errors import AgentError, StartFailed, StateUnsaved
from farmd.agent.exits import Stages
from farmd.agent.leaving import Leaves
from farmd.agent.logs import Gone
from farmd.agent.model import LOST, Identity
from farmd.agent.pod import Leave, Pod, describe
from farmd.agent.pods import Pods
from farmd.agent.ports import PortRange
from farmd.agent.rendering import Rendered, Renderer
from farmd.agent.runtimes.runtime import Busy, Ended, InitFailed, Launch, Runtime, Runtimes, Unwanted
from farmd.agent.secrets import NOTHING, Opened
from farmd.agent.state import StateDirectory
from farmd.agent.templates import Templates
from farmd.agent.watcher import HealthWatcher
from store.manifests import Manifest
from store.ports import Clock, Ids, Recorder
from store.reality import Exit

LOOK_SECONDS = 1.0

CUT_OFF = "it was stopped because its node was out of contact with the store (stop_after)"

log = structlog.get_logger()


@dataclass(eq=False, kw_only=True)
class Lifecycle:
    """Acts on single pods; ``wake`` is called whenever a process ended by itself."""

    pods: Pods
    state: StateDirectory
    gone: Gone
    last_words: Callable[[str], AbstractAsyncContextManager[None]]
    runtimes: Runtimes
    ports: PortRange
    health: HealthWatcher
    leaves: Leaves
    templates: Templates
    clock: Clock
    ids: Ids
    recorder: Recorder
    wake: Callable[[], None]

    async def hold(self, pod: Pod) -> None:
        """Choose the ports of a pod that waits, and keep them from now on (R29).

        Raises:
            StartFailed: with the reason for people.
        """
        assert pod.target is not None
        ports = self.ports.assign(pod.instance, pod.target)
        fields = {"ports": dict(ports), "held": True, "acted": pod.record.intent, "reason": ""}
        record = msgspec.structs.replace(pod.record, **fields)
        self.state.save_first(record)
        pod.record, pod.start_failed = record, False
        log.info("pod.held", instance=pod.instance, ports=ports)

    async def start(self, pod: Pod) -> None:
        """Start the wanted manifest, after its record and the agent's identity are on disk.

        Raises:
            StartFailed: with the reason for people.
        """
        start = self.ids.new()
        manifest, opened, rendered, ports = await self._ready(pod, start)
        if pod.awaits_start and pod.record.start_by <= self.clock.now():
            raise StartFailed(
                f"the signature of manifest {pod.record.manifest[:12]} ended before its first start"
            )
        runtime = self.runtimes.of(manifest.runtime)
        again = not (pod.record.superseded or pod.record.fresh)
        launch = Launch(
            instance=pod.instance,
            sha=pod.record.manifest,
            manifest=manifest,
            ports=ports,
            start=start,
            started=self.clock.now(),
            vars={
                **pod.record.vars,
                **opened.own(manifest),
                **Renderer.own(manifest, rendered.folder),
            },
            secrets=opened,
            rendered=rendered,
            peers=self.pods.peers(pod.record),
            kept=pod.record.keeps(pod.record.manifest),
            wanted=lambda: pod.record.wanted and pod.record.manifest == launch.sha,
            tell=lambda at, attempt: self._tell(pod, Stages(start, "init", at, attempt)),
            # An intent tells the counter of what an older agent started; without the store it stays unknown.
            restart=pod.record.restart if pod.record.restarted >= 0 else -1,
        )
        pod.change(
            acted=pod.record.intent,
            restarted=launch.restart,
            running=launch.sha,
            runtime=manifest.runtime,
            start=launch.start,
            started=launch.started,
            ports=dict(launch.ports),
            restarts=pod.record.restarts + 1 if again else 0,
            exits=[] if pod.record.fresh else pod.record.exits,
            fresh=False,
            done=False,
            ruled=not launch.kept,
        )
        self.state.save_first(pod.record)
        try:
            identity = await self._begun(runtime, launch)
        except Busy:
            # A workload that an earlier agent started holds the instance: adopt it instead.
            found = runtime.find(pod.instance)
            if found is None:
                raise
            identity = found
        except (InitFailed, Unwanted) as error:
            self._gave_up(pod, error)
            return
        finally:
            pod.stages = None
        pod.start_failed = False
        pod.change(reason="")
        self._count("restarted" if again else "started")
        log.info("pod.started", instance=pod.instance, pid=identity.pid, manifest=identity.manifest[:12])
        self.attach(pod, identity)

    def _gave_up(self, pod: Pod, error: InitFailed | Unwanted) -> None:
        """Record the end of a start whose workload never began."""
        log.info("pod.not_started", instance=pod.instance, code=error.code, reason=error.message)
        if isinstance(error, InitFailed):
            end = Exit(self.clock.now(), error.fields["exit_code"])
            pod.ended(end, why=error.message, mono=self.clock.mono())
        else:
            pod.change(start="")
        self.pods.save(pod)

    def _tell(self, pod: Pod, stages: Stages) -> None:
        pod.stages = stages
        self.wake()

    async def _ready(self, pod: Pod, start: str) -> tuple[Manifest, Opened, Rendered, Mapping[str, int]]:
        """The manifest that is wanted, its open secrets, its rendered files, and its ports. Another one may
        be wanted once they are ready: then these are.

        Raises:
            StartFailed: with the reason for people.
        """
        while (manifest := pod.target) is not None:
            opened, rendered = NOTHING, Rendered()
            ports = self.ports.assign(pod.instance, manifest, same=pod.record.held)
            if manifest.sealed:
                opened = await asyncio.to_thread(self.runtimes.secrets.open, manifest, pod.instance, start)
            if manifest.files and self.runtimes.renderer is not None:
                rendered, _ = await self.runtimes.renderer.all(
                    pod.instance, start, manifest, ports, pod.record.vars
                )
            if pod.target is manifest:
                return manifest, opened, rendered, ports
        raise StartFailed(pod.problem)

    async def _begun(self, runtime: Runtime, launch: Launch) -> Identity:
        """Start it; the secrets of a start that failed go at once."""
        try:
            return await runtime.start(launch)
        except AgentError:
            self.runtimes.secrets.close(launch.instance, launch.start)
            raise

    def attach(self, pod: Pod, identity: Identity) -> None:
        """Attach a process to the pod: watch its end and its health."""
        pod.identity = identity
        if pod.record.start != identity.start:
            pod.change(
                running=identity.manifest,
                runtime=identity.runtime,
                start=identity.start,
                started=identity.started,
                ports=identity.ports,
                restarted=identity.restart,
            )
            if pod.record.restart_due:
                pod.change(acted=0)
            self.pods.save(pod)
        pod.manifest = self.health.manifest(pod)
        pod.looked_at, pod.stages = -math.inf, self._stages(pod, pod.manifest)
        (self.health.begin if pod.runs else self.health.wait)(pod)
        if pod.manifest is not None and pod.record.leaving == identity.start:
            if pod.record.left:
                pod.leave = Leave()  # it has got its signal
            else:
                self.leaves.begin(pod, pod.manifest.stop)
        runtime = self.runtimes.of(identity.runtime)
        pod.old_user = runtime.old_user(identity, pod.manifest) if pod.manifest is not None else ""
        pod.unwatch = runtime.watch(identity, self.wake)
        self.templates.begin(pod)
        self.wake()

    def observe(self, pod: Pod) -> float:
        """Learn how far the start of a pod is (R43); when to look again, infinity if only its end matters."""
        before, manifest, now = pod.stages, pod.manifest, self.clock.mono()
        if before is None or manifest is None:
            return math.inf
        if pod.runs and not (manifest.sidecars or manifest.after_stop):
            return math.inf
        if now < pod.looked_at + LOOK_SECONDS:
            return pod.looked_at + LOOK_SECONDS
        pod.looked_at = now
        pod.stages = self._stages(pod, pod.manifest) or before
        if pod.stages.stage != before.stage:
            log.info("pod.stage", instance=pod.instance, stage=pod.stages.stage)
            (self.health.begin if pod.runs else self.health.wait)(pod)
        return now + LOOK_SECONDS

    def _stages(self, pod: Pod, manifest: Manifest | None) -> Stages | None:
        """What the shim told of the stages of its start; None where that has none."""
        start = pod.record.start
        if manifest is None or not manifest.staged or manifest.runtime == "container":
            return None
        try:
            folder = self.state.directory(pod.instance)
            found = self.state.disk.call(lambda: exits.stages(folder))
        except DiskSilent:
            found = None  # the process goes on all the same
        if found is not None and found.start == start:
            return found
        return pod.stages or Stages(start, "init" if manifest.init or manifest.sidecars else "running")

    def adopted(self, pod: Pod, identity: Identity) -> None:
        """Attach a process of an earlier agent, and clear the reason of an earlier failure."""
        pod.change(reason="")
        self._count("adopted")
        log.info("pod.adopted", instance=pod.instance, pid=identity.pid, manifest=identity.manifest[:12])
        self.attach(pod, identity)

    def detach(self, pod: Pod) -> None:
        """Stop watching; the process itself is left as it is."""
        self.health.end(pod)
        self.templates.end(pod)
        if pod.unwatch is not None:
            pod.unwatch()
            pod.unwatch = None

    def ails(self, pod: Pod, why: str) -> None:
        """Note that a pod is ended because of its check, so that the next agent counts that end alike.

        Raises:
            StateUnsaved: the disk could not record the start that follows, so nothing is ended.
        """
        if pod.record.restarts_unhealthy:
            return
        before = pod.record
        pod.ails(why)
        try:
            self.state.require_room()
            self.state.save_first(pod.record)
        except StateUnsaved:
            pod.record = before
            raise
        self._count("unhealthy")
        log.warning("pod.unhealthy", instance=pod.instance, reason=why)

    def leave(self, pod: Pod, why: str) -> None:
        """Let a pod leave before it is stopped (R39)."""
        assert pod.manifest is not None
        pod.change(reason=why, leaving=pod.record.start, left_at=self.clock.now(), left=False)
        self.pods.save(pod)
        self._count("leaving")
        log.info("pod.leaving", instance=pod.instance, reason=why)
        self.leaves.begin(pod, pod.manifest.stop)

    def stop(self, pod: Pod, why: str) -> None:
        """Ask the whole group to stop."""
        if pod.leave is not None:
            why = pod.record.reason if pod.leave.over else why
            pod.leave.cancel()
            pod.change(left=True)
            self.pods.save(pod)
        number = stop_signal(pod.manifest) if pod.manifest is not None else signal.SIGTERM
        pod.stopping = self.clock.mono()
        pod.change(reason=why)
        self._count("stopped")
        log.info("pod.stopping", instance=pod.instance, signal=number.name, reason=why)
        self._signal(pod, number)

    def kill(self, pod: Pod) -> None:
        """Send SIGKILL to the whole group, because the time to stop is over."""
        pod.killed = self.clock.mono()
        self._count("killed")
        log.warning("pod.killed", instance=pod.instance)
        self._signal(pod, signal.SIGKILL)

    def _signal(self, pod: Pod, number: signal.Signals) -> None:
        """Send it beside everything else, because a runtime may hang; a later signal replaces this one."""
        if pod.identity is not None:
            if pod.signalling is not None:
                pod.signalling.cancel()
            pod.signalling = asyncio.create_task(self._signalled(pod, pod.identity, number))

    async def _signalled(self, pod: Pod, identity: Identity, number: signal.Signals) -> None:
        try:
            await self.runtimes.of(identity.runtime).signal(identity, number)
        except AgentError as error:
            log.warning("pod.not_signalled", instance=pod.instance, code=error.code, reason=error.message)

    def ended(self, pod: Pod) -> None:
        """Record how the pod's last start ended, and when the next start may be."""
        self.detach(pod)
        runtime, started = self.runtimes.of(pod.record.runtime), pod.record.start
        self.runtimes.secrets.close(pod.instance, started)
        ended = runtime.end(pod.instance, started, pod.identity)
        if ended is None and (saved := self.state.load_health(pod.instance)) and saved.start == started:
            # It did run: somebody removed its container, or the records of its process.
            ended = Ended(Exit(self.clock.now(), LOST, "lost"), "its end was not recorded")
        if ended is None:
            # The agent died between saving the record and the start: this start never happened.
            pod.change(start="")
            self.pods.save(pod)
            return
        manifest = pod.manifest or self.health.manifest(pod)
        pod.stages = self._stages(pod, manifest)
        before, after = pod.stages.told(manifest) if pod.stages is not None else ("", "")
        why = before or ended.why or describe(ended.exit, pod.began)
        if after:
            log.warning("pod.after_stop_failed", instance=pod.instance, reason=after)
        self._count("exited")
        asked = pod.asked_to_end
        log.info("pod.exited", instance=pod.instance, code=ended.exit.code, asked=asked, reason=why)
        if ended.cut_off:
            why = CUT_OFF
        pod.ended(ended.exit, why=why, note=after, mono=self.clock.mono(), cut_off=ended.cut_off)
        self.pods.save(pod)

    async def forget(self, pod: Pod) -> None:
        """Remove a pod that is not wanted and does not run; only the end of its log is kept for a while.

        Raises:
            Busy: a workload still holds the instance.
            NotRemoved: what it left stays where it is.
        """
        await self.runtimes.of(pod.record.runtime).remove(pod.instance)
        self.state.require_answer()
        self.state.forget(pod.instance)
        await asyncio.to_thread(self.gone.keep, pod.instance)
        async with self.last_words(pod.instance):
            await asyncio.to_thread(self.state.remove, pod.instance)
        self.ports.release(pod.instance)
        pod.stored = False
        if pod.record.wanted:
            # The pod became wanted again meanwhile.
            pod.change(running="", ports={}, exits=[], restarts=0, acted=0)
            pod.preparation = None
            self.pods.save(pod)
            return
        self.pods.drop(pod.instance)
        log.info("pod.forgotten", instance=pod.instance)
        await asyncio.to_thread(self.state.empty_trash)

    def _count(self, event: str) -> None:
        self.recorder.count("farmd_pod_events_total", event=event)
