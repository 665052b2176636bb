"""Jobs in bundles: ready once all slots ended well; a job that differs is deleted and made anew."""

from __future__ import annotations

from typing import Any

from farmd.commands.bundled import BundledNoun, FoundRecord, Readiness
from farmd.commands.mutation import Call
from farmd.commands.waiting import Spells
from farmd.jobs.commands import JOB, JobSpec, run_of
from store.jobs import Job


async def _verdict(call: Call, found: FoundRecord, spells: Spells) -> Readiness:  # noqa: ARG001 - a job has no spell
    run = await run_of(call, found.stored.record)
    if run.outcome == "succeeded":
        return Readiness("ready")
    return Readiness("failed" if run.outcome else "progressing", run.reason)


async def _document(call: Call, job: Job) -> dict[str, Any] | str:
    """A job as its file; one that is over would run again where the file is read."""
    if outcome := (await run_of(call, job)).outcome:
        return f"is over: {outcome}"
    return await JOB.as_file(call, job)


BUNDLED: BundledNoun[JobSpec, Job] = BundledNoun(
    of=JOB, order=3, judge=_verdict, replaces=True, document=_document
)
