"""The steps of one pod's life: start, adopt, stop, end, forget.

The record is saved before the action. A process is attached only with its recorded identity. An attached
process is watched until its shim has recorded its exit; an exit without a record is reported as such (R26).
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from farmd.agent import exits
from farmd.agent.environment import stop_signal
from farmd.agent.errors import StartFailed
from farmd.agent.model import Identity
from farmd.agent.pod import Pod, describe
from farmd.agent.pods import Pods
from farmd.agent.ports import PortRange
from farmd.agent.processes import Launch, Processes, ShimBusy
from farmd.agent.state import StateDirectory
from farmd.agent.watcher import HealthWatcher
from store.ports import Clock, Ids, Recorder
from store.reality import Exit

log = structlog.get_logger()

LOST = -int(signal.SIGKILL)


@dataclass(eq=False, kw_only=True)
class Lifecycle:
    """Acts on single pods; ``wake`` is called whenever a process ended by itself."""

    pods: Pods
    state: StateDirectory
    processes: Processes
    ports: PortRange
    health: HealthWatcher
    clock: Clock
    ids: Ids
    recorder: Recorder
    wake: Callable[[], None]

    async def start(self, pod: Pod) -> None:
        """Start the wanted manifest, after its record and the agent's identity are on disk.

        Raises:
            StartFailed: with the reason for people.
        """
        manifest = pod.target
        if manifest is None:
            raise StartFailed(pod.problem)
        again = not (pod.record.superseded or pod.record.fresh)
        launch = Launch(
            instance=pod.instance,
            sha=pod.record.manifest,
            manifest=manifest,
            ports=self.ports.assign(pod.instance, manifest),
            start=self.ids.new(),
            started=self.clock.now(),
            # An intent tells the counter of what an older agent started; without the store it stays unknown.
            restart=pod.record.restart if pod.record.restarted >= 0 else -1,
        )
        pod.change(
            acted=pod.record.intent,
            restarted=launch.restart,
            running=launch.sha,
            start=launch.start,
            started=launch.started,
            ports=dict(launch.ports),
            restarts=pod.record.restarts + 1 if again else 0,
            exits=[] if pod.record.fresh else pod.record.exits,
            fresh=False,
        )
        self.state.save_first(pod.record)
        try:
            identity = await asyncio.to_thread(self.processes.start, launch)
        except ShimBusy:
            # A shim that an earlier agent started holds the instance: adopt it instead.
            found = self.processes.find(pod.instance)
            if found is None:
                raise
            identity = found
        pod.start_failed = False
        pod.change(reason="")
        self._count("restarted" if again else "started")
        log.info("pod.started", instance=pod.instance, pid=identity.pid, manifest=identity.manifest[:12])
        self.attach(pod, identity)

    def attach(self, pod: Pod, identity: Identity) -> None:
        """Attach a process to the pod: watch its end and its health."""
        pod.identity = identity
        if pod.record.start != identity.start:
            pod.change(
                running=identity.manifest,
                start=identity.start,
                started=identity.started,
                ports=identity.ports,
                restarted=identity.restart,
            )
            if pod.record.restart_due:
                pod.change(acted=0)
            self.pods.save(pod)
        self.state.hold_identity(identity)
        pod.manifest = self.health.manifest(pod)
        self.health.begin(pod)
        pod.unwatch = self.processes.watch(identity, self.wake)
        self.wake()

    def adopted(self, pod: Pod, identity: Identity) -> None:
        """Attach a process of an earlier agent, and clear the reason of an earlier failure."""
        pod.change(reason="")
        self._count("adopted")
        log.info("pod.adopted", instance=pod.instance, pid=identity.pid, manifest=identity.manifest[:12])
        self.attach(pod, identity)

    def detach(self, pod: Pod) -> None:
        """Stop watching; the process itself is left as it is."""
        self.health.end(pod)
        if pod.unwatch is not None:
            pod.unwatch()
            pod.unwatch = None

    def stop(self, pod: Pod, why: str) -> None:
        """Ask the whole group to stop."""
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
        if pod.identity is not None:
            self.processes.signal(pod.identity, number)

    def ended(self, pod: Pod) -> None:
        """Record how the pod's last start ended, and when the next start may be."""
        self.detach(pod)
        identity = pod.identity or self.state.identity(pod.instance)
        started = pod.record.start
        end = exits.read(self.state.directory(pod.instance)).get(started)
        if end is None and (identity is None or identity.start != started):
            # The agent died between saving the record and the start: this start never happened.
            pod.change(start="")
            self.pods.save(pod)
            return
        told = self.processes.reap(identity) if identity is not None else None
        if end is None and told is not None:
            # The shim could not record the exit, for example because the disk became read-only.
            end = Exit(self.clock.now(), told)
        why = describe(end, pod.record.started) if end is not None else self._unrecorded(identity)
        self.state.release_identity(pod.instance)
        self._count("exited")
        code = end.code if end is not None else LOST
        log.info("pod.exited", instance=pod.instance, code=code, asked=pod.stopping is not None, reason=why)
        pod.ended(end or Exit(self.clock.now(), LOST), why=why, mono=self.clock.mono())
        self.pods.save(pod)

    def _unrecorded(self, identity: Identity | None) -> str:
        if identity is not None and identity.boot != self.processes.boot:
            return "the node was restarted while it ran"
        if self.processes.kill_leftovers(identity):
            return "its shim was lost, so it was killed"
        return "its end was not recorded: its shim was lost"

    async def forget(self, pod: Pod) -> None:
        """Remove all files of a pod that is not wanted and does not run.

        Raises:
            ShimBusy: a shim still holds the instance.
        """
        if self.state.shim_holds(pod.instance):
            raise ShimBusy("a process of this instance is still there")
        self.state.forget(pod.instance)
        await asyncio.to_thread(self.state.remove, pod.instance)
        self.ports.release(pod.instance)
        pod.stored = False
        if pod.record.wanted:
            # The pod became wanted again meanwhile.
            pod.change(running="", ports={}, exits=[], restarts=0, acted=0)
            self.pods.save(pod)
            return
        self.pods.drop(pod.instance)
        log.info("pod.forgotten", instance=pod.instance)

    def _count(self, event: str) -> None:
        self.recorder.count("farmd_pod_events_total", event=event)
