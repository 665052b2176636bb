"""What gets ready for a start while the former workload still serves: images, volumes, files.

A failure is tried again with the backoff of the manifest's restarts; until then the former workload stays.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass

from farmd.agent.plan import backoff
from store.manifests import Restart


@dataclass(slots=True, eq=False)
class Preparation:
    """That of one manifest on one pod. ``problem``: why the last try failed; ``not_before`` is monotonic.

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

    def failed(self, problem: str, restart: Restart, now: float) -> None:
        """Count a failure."""
        self.problem = problem
        self.failures += 1
        self.not_before = now + backoff(restart, self.failures)
