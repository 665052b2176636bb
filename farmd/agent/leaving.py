"""How a pod leaves before it is stopped: it is told, its command runs, and a delay passes (R39).

A leave belongs to one start. It lasts no longer than ``TOLD_SECONDS`` and the longer of the delay and the
command's time limit, whatever fails in it, and it is never taken back. An agent that is started again in the
middle goes on with what is left of the delay; it runs the command once more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

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

    def begin(self, pod: Pod, stop: Stop) -> None:
        """Let a pod leave from now on, or go on with the leave that its record names."""
        task = asyncio.create_task(self._run(pod, stop))
        task.add_done_callback(lambda _: self.wake())
        pod.leave = Leave(task)

    async def _run(self, pod: Pod, stop: Stop) -> None:
        await within(self.told(pod.instance), self.clock, TOLD_SECONDS)
        began, delay = self.clock.mono(), self._delay(pod, stop)
        if stop.command:
            await self._withdraw(pod, stop)
        await self.clock.sleep(max(0.0, began + delay - self.clock.mono()))

    def _delay(self, pod: Pod, stop: Stop) -> float:
        """What is left of the delay: a pod that failed its check is out of the endpoints since then."""
        published = pod.damper.published
        since = (
            min(pod.record.left_at, published.since) if published.state == "critical" else pod.record.left_at
        )
        return min(stop.delay, max(0.0, stop.delay - (self.clock.now() - since)))

    async def _withdraw(self, pod: Pod, stop: Stop) -> None:
        """Run the command beside the workload. Its failure is told, and holds up nothing."""
        failure = f"it did not finish within {stop.command_timeout:g} s"

        async def run() -> None:
            nonlocal failure
            failure = await self._failure(pod, stop)

        await within(run(), self.clock, stop.command_timeout)
        if failure:
            log.warning("pod.stop_command_failed", instance=pod.instance, reason=failure)
            pod.change(reason=f"{pod.record.reason}; stop.command: {failure}")

    async def _failure(self, pod: Pod, stop: Stop) -> str:
        """How the command failed; empty: it did not."""
        assert pod.identity is not None
        assert pod.manifest is not None
        try:
            runtime = self.runtimes.of(pod.identity.runtime)
            code = await runtime.check(pod.identity, pod.manifest, stop.command)
        except (AgentError, OSError) as error:
            return str(error)
        return f"exit code {code}" if code else ""
