"""Jobs on nodes as a kind of work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from farmd.jobs.commands import JOB
from farmd.jobs.metrics import STATES
from farmd.jobs.run_copy import Takeover
from farmd.pods.spending import Spending
from farmd.runtime.wake import Wake
from farmd.work.context import Context
from farmd.work.named import NamedKind
from farmd.work.phases import Phases
from store.jobs import KIND
from store.locks import Claim
from store.sessions import Session

if TYPE_CHECKING:
    from farmd.jobs.nodes.worker import JobWorker


class Jobs(NamedKind):
    """The kind ``jobs``."""

    name = KIND
    noun = JOB

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.phases = Phases(context.recorder, "farmd_jobs", "state", STATES)
        self.spending = Spending(context.fleet, self.name, context.budget(), self.guard)
        self.runs = Takeover(context)

    async def barrier(self, items: Sequence[str]) -> None:
        """Read the records, their members with the intents, and the small trees that their plans rest on
        (R15).
        """
        await self.context.read_pods(items)
        await self.context.read_nodes()
        await super().barrier(items)
        await self.runs.read(items)

    def worker(self, claim: Claim, session: Session, wake: Wake) -> JobWorker:
        """A worker for one job."""
        from farmd.jobs.nodes.worker import JobWorker  # a farm without jobs starts without it

        run = self.runs.take(claim.item)
        return JobWorker(self, claim, session, wake, run, phases=self.phases, spending=self.spending)
