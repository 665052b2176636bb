"""Checks the health of running pods, one task each, and publishes changes, damped.

Health belongs to one start: it begins as unknown (as passing without a check), is kept when the agent
restarts, and ends with the process (R22).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

import structlog

from farmd.agent.checks import Checker, Target
from farmd.agent.disk import DiskSilent
from farmd.agent.health import HealthRun, Spell, judge, pause
from farmd.agent.manifests import Manifests
from farmd.agent.model import SavedHealth
from farmd.agent.pod import Pod
from farmd.agent.runtimes.choice import Runtimes
from farmd.agent.state import StateDirectory
from farmd.observe.progress import Progress
from store.manifests import HealthCheck, Manifest
from store.ports import Clock, Recorder, Rng
from store.reality import Health, HealthState

log = structlog.get_logger()

HEALTHS: tuple[HealthState, ...] = ("passing", "critical", "unknown")


@dataclass(eq=False, kw_only=True)
class HealthWatcher:
    """The health of all pods of the node; ``wake`` is called when a pod's health changed."""

    runtimes: Runtimes
    checker: Checker
    state: StateDirectory
    manifests: Manifests
    clock: Clock
    rng: Rng
    recorder: Recorder
    progress: Progress
    wake: Callable[[], None]
    _ending: set[asyncio.Task[None]] = field(default_factory=set, init=False)

    def manifest(self, pod: Pod) -> Manifest | None:
        """The manifest of the pod's running process, if this node still has it."""
        return self.manifests.cached(pod.record.running)

    def begin(self, pod: Pod) -> None:
        """Begin to check a new start, or an adopted process."""
        check = pod.manifest.health if pod.manifest is not None else None
        try:
            saved = self.state.load_health(pod.instance)
        except DiskSilent:
            saved = None  # the process runs all the same
        if saved is not None and saved.start == pod.record.start:
            pod.health = saved.health
        elif check is None and pod.manifest is not None:
            pod.health = Health("passing", pod.record.started, "no health check: it runs")
        else:
            pod.health = Health("unknown", pod.record.started, "not checked yet")
        pod.spell = Spell(pod.health)
        pod.damper.begin(pod.health)
        self._save(pod)
        if check is not None and pod.manifest is not None:
            pod.checking = asyncio.create_task(self._guarded(pod, pod.manifest, check))

    def end(self, pod: Pod) -> None:
        """Stop checking, because the process ended or the agent stops."""
        if pod.checking is not None:
            pod.checking.cancel()
            self._ending.add(pod.checking)
            pod.checking.add_done_callback(self._ending.discard)
            pod.checking = None

    async def close(self) -> None:
        """Wait until the commands of ended checks are gone."""
        await asyncio.gather(*self._ending, return_exceptions=True)

    def publish(self, pod: Pod, now: float) -> float:
        """Publish the current health if damping allows it; seconds until it does, else infinity."""
        before = pod.damper.published
        if pod.damper.offer(pod.health, now) != before:
            self._save(pod)
        return pod.damper.retry_in()

    def count(self, pods: Iterable[Pod]) -> None:
        """Write to the metrics how many of the pods that are checked have which published health."""
        found = Counter(pod.damper.published.state for pod in pods if pod.checking is not None)
        for health in HEALTHS:
            self.recorder.set("farmd_checked_pods", found[health], health=health)

    def _save(self, pod: Pod) -> None:
        self.state.save_health(pod.instance, SavedHealth(pod.record.start, pod.damper.published))

    async def _guarded(self, pod: Pod, manifest: Manifest, check: HealthCheck) -> None:
        """The error boundary of one pod's checks: after a bug the pod's health is unknown until the next."""
        with self.progress.loop("health", (check.interval + check.timeout) * 3 + 60) as loop:
            while True:
                try:
                    await self._check_for_ever(pod, manifest, check, loop.beat)
                except Exception as error:
                    log.exception("health.failed", instance=pod.instance)
                    pod.health = Health("unknown", self.clock.now(), f"internal error: {error!r}")
                    self.wake()
                    await self.clock.sleep(check.interval)

    async def _check_for_ever(
        self, pod: Pod, manifest: Manifest, check: HealthCheck, beat: Callable[[], None]
    ) -> None:
        assert pod.identity is not None
        runtime = self.runtimes.of(pod.identity.runtime)
        addresses = {name: port.host_ip for name, port in manifest.ports.items()}
        target = Target(pod.record.ports, partial(runtime.check, pod.identity, manifest), addresses)
        verdict = HealthRun(pod.health.state, pod.health.reason)
        # From here on the monotonic clock counts: setting the time must not change a verdict.
        began = self.clock.mono() - max(0.0, self.clock.now() - pod.record.started)
        while True:
            await self.clock.sleep(pause(check, verdict) * self.rng.uniform(0.5, 1.0))
            answer = await self.checker.check(check, target)
            self.recorder.count("farmd_health_checks_total", type=check.type, result=answer.result)
            beat()
            if check.type == "command" and answer.result == "timeout" and not await runtime.answers():
                continue  # nobody ran the command, which tells nothing of the pod
            age = self.clock.mono() - began
            verdict = judge(check, verdict, answer.result == "passing", answer.reason, age=age)
            if (verdict.state, verdict.reason) != (pod.health.state, pod.health.reason):
                self._changed(pod, verdict, manifest.restart.reset)

    def _changed(self, pod: Pod, verdict: HealthRun, settle: float) -> None:
        if verdict.state == "unknown":
            return
        since = pod.health.since
        if verdict.state != pod.health.state:
            now, mono = self.clock.now(), self.clock.mono()
            since = pod.spell.turned(verdict.state, now=now, mono=mono, settle=settle)
            log.info("pod.health", instance=pod.instance, state=verdict.state, reason=verdict.reason)
        pod.health = Health(verdict.state, since, verdict.reason)
        self.wake()
