"""The metric of members that are tried again, for both backends."""

from __future__ import annotations

from farmd.jobs.model import Plan, Snapshot, attempt_of
from store.jobs import Run
from store.ports import Recorder

RESTARTS = "farmd_job_restarts_total"


def tries_again(before: Run, after: Run) -> bool:
    """Whether a run has attempts that another one has not."""
    return after.attempt != before.attempt or after.slots != before.slots


def count(recorder: Recorder, before: Snapshot, plan: Plan) -> None:
    """Count the members that a committed plan tries again, by why they ended."""
    if plan.run is None or plan.run.outcome or not tries_again(before.run, plan.run):
        return
    for member in before.members:
        retried = member.attempt == attempt_of(before.run, member.slot) < attempt_of(plan.run, member.slot)
        if retried and member.phase in ("failed", "unknown"):
            recorder.count(RESTARTS, cause=member.cause or "exit")
