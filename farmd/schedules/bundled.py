"""Schedules in bundles: ready as soon as they are written."""

from __future__ import annotations

from farmd.commands.bundled import BundledNoun, FoundRecord, Readiness
from farmd.commands.mutation import Call
from farmd.commands.waiting import Spells
from farmd.schedules.commands import SCHEDULE, ScheduleSpec
from store.schedules import Schedule


async def _verdict(call: Call, found: FoundRecord, spells: Spells) -> Readiness:  # noqa: ARG001 - it waits for nothing
    return Readiness("ready")


BUNDLED: BundledNoun[ScheduleSpec, Schedule] = BundledNoun(of=SCHEDULE, order=4, judge=_verdict)
