"""The agent's main loop: makes the running processes equal to the wanted pods (R26, R27).

The supervisor needs only the agent's own records: without the store, the farms or the watch it continues to
restart, stop and check the pods that were wanted last. An error of one pod becomes that pod's reason and
stops no other pod. While the disk cannot be written, only starts wait, because they could not be recorded.
Cancelling the supervisor leaves every workload as it is.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog

from farmd.agent import plan
from farmd.agent.disk import DiskSilent
from farmd.agent.errors import AgentError, NotRemoved, StateUnsaved
from farmd.agent.lifecycle import Lifecycle
from farmd.agent.link import Contact
from farmd.agent.log_files import trouble
from farmd.agent.model import Identity, Record
from farmd.agent.pod import Pod, Preparation
from farmd.agent.pods import Pods
from farmd.agent.ports import PortRange
from farmd.agent.runtimes import process
from farmd.agent.runtimes.runtime import Runtime, Runtimes
from farmd.agent.state import StateDirectory
from farmd.agent.watcher import HealthWatcher
from farmd.observe.progress import Progress
from farmd.runtime.wake import wait, within
from store.ports import Clock, Recorder
from store.reality import Phase, Reality

log = structlog.get_logger()

LOOK_AGAIN = 30.0
LOOK_OFTEN = 1.0
TIDY_SECONDS = 60.0
LEAVE_SECONDS = 5.0
STATES: tuple[Phase, ...] = ("running", "starting", "backoff", "stopping", "failed", "held", "done")


@dataclass(eq=False, kw_only=True)
class Supervisor:
    """Runs the plan for all pods; ``reports`` gets the reality records after each round.

    ``unconfirmed`` is called when the lease of a pod is over: it starts again only after a new answer.
    """

    pods: Pods
    lifecycle: Lifecycle
    state: StateDirectory
    runtimes: Runtimes
    ports: PortRange
    health: HealthWatcher
    contact: Contact
    clock: Clock
    recorder: Recorder
    progress: Progress
    wake: asyncio.Event
    reports: Callable[[Mapping[str, Reality]], None]
    unconfirmed: Callable[[], None]
    _clearing: set[str] = field(default_factory=set, init=False)
    _unreadable: set[str] = field(default_factory=set, init=False)
    _halting: bool = field(default=False, init=False)
    _restore_at: float = field(default=0.0, init=False)
    _tidy_at: float = field(default=-math.inf, init=False)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set, init=False)

    async def adopt(self) -> None:
        """Adopt every workload of an earlier agent, and record unseen ends, before any pod starts."""
        known = self.state.known()
        for runtime in self.runtimes:
            await runtime.look()
        lost = {
            stray.instance: stray
            for runtime in self.runtimes
            for stray in runtime.strays()
            if runtime.lives(stray)
        }
        for instance in sorted({*known, *lost}):
            self._adopt(instance, lost.get(instance))

    def _adopt(self, instance: str, lost: Identity | None) -> None:
        """Take over one instance; one that cannot be read may live, so it is left alone and never removed."""
        try:
            self._take_over(instance, lost)
        except NotRemoved as error:
            log.warning("state.not_removed", path=error.fields["path"], error=error.message)
        except OSError as error:
            if instance not in self._unreadable:
                log.warning("pod.unreadable", instance=instance, error=trouble(error))
            self._unreadable.add(instance)
        else:
            self._unreadable.discard(instance)

    def _take_over(self, instance: str, lost: Identity | None) -> None:
        """Load the record, and adopt the workload now or later, once its runtime can tell what runs."""
        record = self.state.load(instance)
        if record is None and lost is None:
            found = (runtime.find(instance) for runtime in self.runtimes)
            lost = next((identity for identity in found if identity is not None), None)
        if record is None and lost is None:
            if not any(runtime.doubt for runtime in self.runtimes):
                log.warning("pod.remains_removed", instance=instance)
                self.state.remove(instance)  # a move; what was moved is removed when the agent tidies
            return
        if record is None and lost is not None:
            # The record is lost, the workload lives: keep it as it is until a proven answer changes it.
            record = Record(instance=instance, manifest=lost.manifest, runtime=lost.runtime, ruled=True)
        assert record is not None
        pod = self.pods.load(record)
        self.ports.remember(instance, record.ports)
        if not self.runtimes.doubt(record.runtime):
            self._settle(pod, lost and process.recorded(lost, record))

    def _settle(self, pod: Pod, lost: Identity | None = None) -> None:
        """Adopt what runs of a pod, or record the end of its last start."""
        runtime = self.runtimes.of(pod.record.runtime)
        identity = runtime.find(pod.instance) or lost
        if identity is not None and runtime.lives(identity):
            self.ports.remember(pod.instance, identity.ports)
            self.lifecycle.adopted(pod, identity)
            return
        if pod.record.start:
            self.lifecycle.ended(pod)

    def stop_all(self) -> float:
        """Stop every workload, for an agent with ``stop_workloads_on_exit``; the longest grace in seconds."""
        self._halting = True
        self.wake.set()
        lasts = (pod.situation(isolated=0.0, halting=True).grace + pod.lingers for pod in self.pods)
        return max(lasts, default=0.0)

    def left(self) -> dict[str, str]:
        """Workloads that run, may run or are being started, by instance, with what is known of each."""
        return {
            pod.instance: pod.doubt or ("being started" if pod.busy else "it has not ended")
            for pod in self.pods
            if pod.identity is not None or pod.busy or (pod.doubt and pod.record.start)
        }

    async def run(self) -> None:
        """Compare and act for ever."""
        with self.progress.loop("supervisor", LOOK_AGAIN * 4) as loop:
            while True:
                loop.beat()
                self.wake.clear()
                until = self.round()
                await wait(self.wake, self.clock, max(0.0, until - self.clock.mono()))

    def round(self) -> float:
        """Compare all pods once; returns the latest monotonic time of the next round."""
        now = self.clock.mono()
        until = now + LOOK_AGAIN
        isolated = self.contact.age()
        if now >= self._restore_at:
            self.state.restore()
            self.state.disk.begin(self.lifecycle.gone.sweep)
            self._restore_at = now + LOOK_AGAIN
        self._find_strays()
        for pod in self.pods:
            until = min(until, self._look(pod, now, isolated))
        if any(pod.may_be_cut_off for pod in self.pods):
            self.contact.save()
            until = min(until, now + LOOK_OFTEN)
        if self.state.unsaved:
            self._restore_at = min(self._restore_at, now + LOOK_OFTEN)
        if now >= self._tidy_at:
            self._tidy_at = now + TIDY_SECONDS
            self._spawn_tidy()
        self._report(now)
        return min(until, self._restore_at)

    def _spawn_tidy(self) -> None:
        """Remove what was thrown away, and let runtimes remove what no pod needs, unless that is unknown."""
        self._begin(asyncio.to_thread(self.state.empty_trash))
        pods = list(self.pods)
        self.runtimes.secrets.keep_only({pod.instance: pod.record.start for pod in pods})
        if any(pod.target is None and pod.record.wanted for pod in pods):
            return
        needed = [each for pod in pods for each in (pod.target, pod.manifest) if each is not None]
        healthy = [pod.manifest for pod in pods if pod.manifest and pod.damper.published.state == "passing"]
        for runtime in self.runtimes:
            self._begin(self._tidied(runtime.name, runtime.tidy(needed, healthy)))
        self._begin(self._tidied("artifacts", self.runtimes.tidy_artifacts(needed, healthy)))

    async def _tidied(self, name: str, work: Awaitable[None]) -> None:
        """The error boundary of one runtime's tidying; the next one tries again."""
        try:
            await work
        except AgentError as error:
            log.info("runtime.not_tidied", runtime=name, reason=error.message)
        except Exception:
            log.exception("runtime.not_tidied", runtime=name)

    def _find_strays(self) -> None:
        """Adopt the workloads whose records are lost, and clear up what is left of those that ended."""
        for runtime in self.runtimes:
            for stray in runtime.strays():
                if self.pods.get(stray.instance) is not None:
                    continue
                if runtime.lives(stray):
                    self._adopt(stray.instance, stray)
                elif stray.instance not in self._clearing:
                    self._clearing.add(stray.instance)
                    self._begin(self._clear(runtime, stray.instance))

    async def _clear(self, runtime: Runtime, instance: str) -> None:
        try:
            await runtime.remove(instance)
            log.info("pod.remains_removed", instance=instance)
        except AgentError as error:
            log.warning("pod.remains_not_removed", instance=instance, reason=error.message)
        finally:
            self._clearing.discard(instance)

    def _look(self, pod: Pod, now: float, isolated: float) -> float:
        """One pod's part of a round, and its error boundary: an error stops no other pod."""
        try:
            known = pod.cut_off_at
            pod.doubt = self._doubt(pod)
            if pod.doubt:
                return now + LOOK_AGAIN
            lives = pod.identity is not None and self.runtimes.of(pod.identity.runtime).lives(pod.identity)
            if not (lives or pod.busy) and self.state.disk.silent:
                return now + LOOK_OFTEN  # how it ended is on the disk, and another start needs the disk
            if pod.identity is not None and not lives:
                self.lifecycle.ended(pod)
            elif pod.identity is None and not pod.busy and (pod.record.start or not pod.preparing):
                # What only gets ready is settled right before its start: each time costs a read.
                self._settle(pod)
            again = self.lifecycle.observe(pod) if pod.identity is not None else math.inf
            situation = pod.situation(isolated=isolated, halting=self._halting)
            if plan.cut_off(situation):
                pod.cut_off_at = now
            if pod.cut_off_at > known == -math.inf:
                self.unconfirmed()
            action = plan.decide(situation, now)
            until = self._act(pod, action, now)
            if pod.identity is None:
                return until
            # Without pidfds on this kernel, check often whether the process ended.
            often = now + LOOK_OFTEN if pod.unwatch is None else math.inf
            return min(until, again, often, now + self.health.publish(pod, now))
        except DiskSilent as error:
            log.warning("pod.unreadable", instance=pod.instance, error=trouble(error))
            return now + LOOK_OFTEN
        except Exception:
            log.exception("pod.crashed", instance=pod.instance)
            return now + LOOK_OFTEN

    def _doubt(self, pod: Pod) -> str:
        """Why nobody can tell now what runs of a pod, or start it."""
        if pod.identity is not None or pod.record.start:
            return self.runtimes.doubt(pod.record.runtime)
        return self.runtimes.doubt(pod.target.runtime) if pod.record.wanted and pod.target is not None else ""

    def _act(self, pod: Pod, action: plan.Action, now: float) -> float:
        begun = pod.preparation
        if begun is not None and not (pod.record.wanted and begun.sha == pod.record.manifest):
            begun.abandon()
        match action:
            case plan.Prepare():
                self._prepare(pod)
            case plan.Hold():
                self._spawn(pod, self.lifecycle.hold(pod))
            case plan.Start():
                self._spawn(pod, self.lifecycle.start(pod))
            case plan.Forget():
                self._spawn(pod, self.lifecycle.forget(pod))
            case plan.Leave(why, ailing) | plan.Stop(why, ailing):
                if ailing and not self._ails(pod, why):
                    return now + LOOK_AGAIN
                (self.lifecycle.leave if isinstance(action, plan.Leave) else self.lifecycle.stop)(pod, why)
                return now
            case plan.Kill():
                self.lifecycle.kill(pod)
                return now
            case plan.Wait(until):
                return until
        return math.inf

    def _ails(self, pod: Pod, why: str) -> bool:
        """Whether a pod that fails its check may be ended: not while the disk could not record its start."""
        try:
            self.lifecycle.ails(pod, why)
        except StateUnsaved as error:
            log.warning("pod.not_restarted", instance=pod.instance, reason=error.message)
            return False
        return True

    def _prepare(self, pod: Pod) -> None:
        before = pod.preparation
        if before is None or before.sha != pod.record.manifest:
            pod.preparation = Preparation(pod.record.manifest, self.wake.set)
        assert pod.preparation is not None
        assert pod.target is not None
        kept = pod.record.keeps(pod.record.manifest)
        work = pod.preparation.run(self.runtimes, pod.instance, pod.target, self.clock, kept=kept)
        pod.preparation.task = self._begin(work)

    def _spawn(self, pod: Pod, work: Coroutine[Any, Any, None]) -> None:
        pod.busy = True
        self._begin(self._guarded(pod, work))

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _guarded(self, pod: Pod, work: Coroutine[Any, Any, None]) -> None:
        """The error boundary of one pod: an error becomes that pod's reason."""
        try:
            await work
        except AgentError as error:
            log.warning("pod.failed", instance=pod.instance, code=error.code, reason=error.message)
            self._failed(pod, error.message)
        except OSError as error:
            log.warning("pod.failed", instance=pod.instance, code="state_invalid", reason=str(error))
            self._failed(pod, f"state_dir: {trouble(error)}")
        except Exception as error:
            log.exception("pod.crashed", instance=pod.instance)
            self._failed(pod, f"internal error: {error!r}")
        finally:
            pod.busy = False
            self.wake.set()

    def _failed(self, pod: Pod, reason: str) -> None:
        pod.failed(reason, now=self.clock.now(), mono=self.clock.mono())
        self.pods.save(pod)

    def _report(self, now: float) -> None:
        unsaved = self.state.unsaved_instances()
        for pod in self.pods:
            pod.unsaved = unsaved.get(pod.instance, "")
        reports = {pod.instance: pod.report(now) for pod in self.pods}
        found = Counter(reality.phase for reality in reports.values())
        for state in STATES:
            self.recorder.set("farmd_pods", found[state], state=state)
        self.health.count(self.pods)
        self.reports(reports)

    async def leave(self) -> None:
        """Detach from all pods: wait a little for starts that are under way, stop no process.

        What only gets ready, such as a pull of an image, is abandoned: it may take an hour. So is a start
        that an engine does not answer; the next agent adopts what came of it, as after a crash.
        """
        for pod in self.pods:
            if pod.preparation is not None:
                pod.preparation.abandon()
        self.state.trash.stop()
        await within(asyncio.gather(*self._tasks, return_exceptions=True), self.clock, LEAVE_SECONDS)
        for pod in self.pods:
            self.lifecycle.detach(pod)
        await self.health.close()
