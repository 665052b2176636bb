"""How a pod leaves before it is stopped: it is told, its command runs, and a delay passes (R39).

A leave belongs to one start. It lasts no longer than ``TOLD_SECONDS`` and the longer of the delay and the
command's time limit, whatever fails in it, and it is never taken back. An agent that is started again in the
middle goes on with what is left of the delay; it runs the command once more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import structlog

from farmd.agent.errors import AgentError
from farmd.agent.plan import TOLD_SECONDS
from farmd.agent.pod import Leave, Pod
from farmd.agent.runtimes.runtime import Runtimes
from farmd.runtime.wake import within
from store.manifests import Stop
from store.ports import Clock

log = structlog.get_logger()


@dataclass(eq=False, kw_only=True)
class Leaves:
    """Has pods leave. ``told`` returns once the store knows that an instance leaves; ``wake`` is called at
    the end of a leave.
    """

    runtimes: Runtimes
    clock: Clock
    told: Callable[[str], Awaitable[None]]
    wake: Callable[[], None]
    _tasks: set[asyncio.Task[None]] = field(default_factory=set, init=False)

    def begin(self, pod: Pod, stop: Stop) -> None:
        """Let a pod leave from now on, or go on with the leave that its record names."""
        leave = pod.leave = Leave()
        leave.task = asyncio.create_task(self._run(pod, leave, stop))
        self._tasks.add(leave.task)
        leave.task.add_done_callback(self._tasks.discard)

    async def _run(self, pod: Pod, leave: Leave, stop: Stop) -> None:
        try:
            await within(self.told(pod.instance), self.clock, TOLD_SECONDS)
            began, delay = self.clock.mono(), self._delay(pod, stop)
            if stop.command:
                await within(self._command(pod, leave, stop), self.clock, stop.command_timeout)
            await self.clock.sleep(max(0.0, began + delay - self.clock.mono()))
        finally:
            leave.over = True
            self.wake()

    def _delay(self, pod: Pod, stop: Stop) -> float:
        """What is left of the delay: a pod that failed its check is out of the endpoints since then."""
        published = pod.damper.published
        since = (
            min(pod.record.left_at, published.since) if published.state == "critical" else pod.record.left_at
        )
        return min(stop.delay, max(0.0, stop.delay - (self.clock.now() - since)))

    async def _command(self, pod: Pod, leave: Leave, stop: Stop) -> None:
        """Run the command beside the workload. Its failure is told, and holds up nothing."""
        assert pod.identity is not None
        assert pod.manifest is not None
        why = f"no end within {stop.command_timeout:g} s"
        try:
            runtime = self.runtimes.of(pod.identity.runtime)
            code = await runtime.check(pod.identity, pod.manifest, stop.command)
            why = f"exit code {code}" if code else ""
        except (AgentError, OSError) as error:
            why = str(error)
        finally:
            if why and pod.leave is leave and not leave.cancelled:
                log.warning("pod.stop_command_failed", instance=pod.instance, reason=why)
                pod.change(reason=f"{pod.record.reason}; stop.command: {why}")
