"""Checks the health of running pods, one task each, and publishes changes, damped.

Health belongs to one start: it begins as unknown (as passing without a check), is kept when the agent
restarts, and ends with the process (R22).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import aiohttp
import structlog

from farmd.agent.disk import DiskSilent
from farmd.agent.errors import StartFailed
from farmd.agent.health import HealthRun, Spell, judge, pause
from farmd.agent.manifests import Manifests
from farmd.agent.model import SavedHealth
from farmd.agent.pod import Pod
from farmd.agent.runtimes.runtime import Runtimes, Silent
from farmd.agent.state import StateDirectory
from farmd.observe.progress import Progress
from store.manifests import HealthCheck, Manifest
from store.ports import Clock, Recorder, Rng
from store.reality import Health, HealthState

# Runs one health check of one pod: HTTP, TCP or a command, never for longer than the check's timeout.

Result = Literal["passing", "failing", "timeout"]


@dataclass(frozen=True, slots=True)
class Target:
    """The checked pod: its ports on this node, what runs a check's command beside it, and the addresses of
    ports that are published at one alone.
    """

    ports: Mapping[str, int]
    run: Callable[[Sequence[str]], Awaitable[int]]
    addresses: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check; ``reason`` is one line for people."""

    result: Result
    reason: str


class Checker:
    """Runs checks against ``host``, where the pods of this node listen."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._http: aiohttp.ClientSession | None = None

    async def check(self, check: HealthCheck, target: Target) -> CheckResult:
        """Run one check."""
        try:
            async with asyncio.timeout(check.timeout):
                if check.type == "http":
                    return await self._ask(check, target)
                if check.type == "tcp":
                    return await self._connect(check, target)
                code = await target.run(check.command)
                return CheckResult("passing" if code == 0 else "failing", f"exit code {code}")
        except Silent as error:
            return CheckResult("timeout", error.message)
        except TimeoutError:
            return CheckResult("timeout", f"no answer in {check.timeout:g} s")
        except (OSError, aiohttp.ClientError, StartFailed) as error:
            return CheckResult("failing", _reason(error))

    async def close(self) -> None:
        """Drop connections."""
        if self._http is not None:
            await self._http.close()
            self._http = None

    async def _ask(self, check: HealthCheck, target: Target) -> CheckResult:
        if self._http is None:
            # A new connection for each check: a kept one would hide that the pod accepts no more.
            connector = aiohttp.TCPConnector(force_close=True, limit=0)
            self._http = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
        host = self._address(check, target)
        host = f"[{host}]" if ":" in host else host
        url = f"http://{host}:{target.ports[check.port]}{check.path}"
        async with self._http.get(url, allow_redirects=False) as response:
            good = 200 <= response.status < 300
            return CheckResult("passing" if good else "failing", f"HTTP {response.status}")

    async def _connect(self, check: HealthCheck, target: Target) -> CheckResult:
        _, writer = await asyncio.open_connection(self._address(check, target), target.ports[check.port])
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        return CheckResult("passing", "connected")

    def _address(self, check: HealthCheck, target: Target) -> str:
        return target.addresses.get(check.port) or self._host


def _reason(error: Exception) -> str:
    inner = getattr(error, "os_error", error)
    text = getattr(inner, "strerror", None) or str(inner) or type(error).__name__
    return text.splitlines()[0].lower()


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
            pod.health = Health("passing", pod.began, "no health check: it runs")
        else:
            pod.health = Health("unknown", pod.began, "not checked yet")
        pod.spell, pod.failing_from = Spell(pod.health), math.inf
        if pod.health.state == "critical":
            pod.failing_from = self.clock.mono() - max(0.0, self.clock.now() - pod.health.since)
        pod.damper.begin(pod.health)
        self._save(pod)
        if check is not None and pod.manifest is not None:
            pod.checking = asyncio.create_task(self._guarded(pod, pod.manifest, check))

    def wait(self, pod: Pod) -> None:
        """Check nothing yet, or nothing more: the pod's workload does not run, but its start does."""
        self.end(pod)
        pod.health = Health("unknown", pod.record.started)
        pod.spell, pod.failing_from = Spell(pod.health), math.inf
        pod.damper.begin(pod.health)

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
                    pod.failing_from = math.inf
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
        began = self.clock.mono() - max(0.0, self.clock.now() - pod.began)
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
            pod.failing_from = mono if verdict.state == "critical" else math.inf
            log.info("pod.health", instance=pod.instance, state=verdict.state, reason=verdict.reason)
        pod.health = Health(verdict.state, since, verdict.reason)
        self.wake()
