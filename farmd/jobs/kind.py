"""Jobs on nodes as a kind of work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from farmd.jobs.metrics import STATES
from farmd.jobs.run_copy import Takeover
from farmd.runtime.wake import Wake
from farmd.work.context import Context
from farmd.work.managing import Phases
from farmd.work.owner import OwnerKind
from store.jobs import KIND
from store.locks import Claim
from store.sessions import Session

if TYPE_CHECKING:
    from farmd.jobs.worker import JobWorker


class Jobs(OwnerKind):
    """The kind ``jobs``."""

    name = KIND
    BUDGET_SPENT = "pods: jobs would replace more members in a minute than the removal budget allows"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.phases = Phases(context.recorder, "farmd_jobs", "state", STATES)
        self.runs = Takeover(context)

    async def barrier(self, items: Sequence[str]) -> None:
        """Read their runs besides, if there are many (R15)."""
        await super().barrier(items)
        await self.runs.read(items)

    def worker(self, claim: Claim, session: Session, wake: Wake) -> JobWorker:
        """A worker for one job."""
        from farmd.jobs.worker import JobWorker  # a farm without jobs starts without it

        return JobWorker(self, claim, session, wake, self.runs.take(claim.item), self.phases)
