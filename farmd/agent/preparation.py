"""What gets ready for a start while the former workload still serves: images, volumes, files.

A failure is tried again with the backoff of the manifest's restarts; until then the former workload stays.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from farmd.agent.errors import AgentError
from farmd.agent.plan import backoff
from farmd.agent.runtimes.port import Runtime
from farmd.agent.shim import trouble
from store.manifests import Manifest, Restart
from store.ports import Clock

log = structlog.get_logger()


@dataclass(slots=True, eq=False)
class Preparation:
    """The preparation of one manifest on one pod. ``problem``: why the last try failed; ``not_before`` is
    monotonic.

    ``doing``: what is under way, for people; ``wake`` is called when it changed.
    """

    sha: str
    wake: Callable[[], None]
    task: asyncio.Task[None] | None = None
    done: bool = False
    failures: int = 0
    problem: str = ""
    doing: str = ""
    not_before: float = -math.inf

    def tell(self, what: str) -> None:
        """Tell people what is under way; nothing if empty."""
        self.doing = what
        self.wake()

    def abandon(self) -> None:
        """Stop, because another manifest is wanted now, or none."""
        if self.task is not None:
            self.task.cancel()

    async def run(
        self, runtime: Runtime, instance: str, manifest: Manifest, clock: Clock, *, kept: bool
    ) -> None:
        """One try, and its error boundary: the former workload stays, and the pod says why."""
        try:
            await runtime.prepare(instance, manifest, self.tell, kept=kept)
        except AgentError as error:
            self._failed(error.message, manifest.restart, clock.mono())
        except OSError as error:
            self._failed(f"state_dir: {trouble(error)}", manifest.restart, clock.mono())
        except Exception as error:
            log.exception("pod.crashed", instance=instance)
            self._failed(f"internal error: {error!r}", manifest.restart, clock.mono())
        else:
            self.done, self.problem = True, ""
        finally:
            self.task = None
            self.tell("")
        if self.problem:
            log.warning("pod.not_prepared", instance=instance, reason=self.problem)

    def _failed(self, problem: str, restart: Restart, now: float) -> None:
        self.problem = problem
        self.failures += 1
        self.not_before = now + backoff(restart, self.failures)
