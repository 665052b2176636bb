"""Schedules: a job's document, and the times at which farms make a job of it.

The record holds what people ask and how far its farm has come, so that a restored snapshot has both or
neither. ``last`` never falls: the times up to it are dealt with.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from store.status import ItemStatus
from store.times import Time

KIND = "schedules"
MAX_NAME = 25
"""A job's name has at most 40 characters, of which its time takes 15."""
MAX_ACTIVE = 100
"""Jobs of one schedule that run side by side with ``overlap: allow``; each costs a read at each look."""

Overlap = Literal["forbid", "allow", "replace"]
Outcome = Literal["", "succeeded", "failed", "replaced", "deleted"]


class Keep(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How many jobs that ended are kept, by how they ended."""

    done: int = 3
    failed: int = 10


class Fired(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One job of a schedule: the time for which it was made, its id and name, and how it ended.

    ``by`` is the person who asked for it. ``stopping``: it is being deleted, because the next one waits.
    """

    due: Time
    job: str
    name: str
    outcome: Outcome = ""
    reason: str = ""
    ended: Time = 0.0
    by: str = ""
    stopping: bool = False


class Schedule(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Make a job of the document ``job``, or of the job template ``template`` with the values ``params``, at
    the times of ``cron``, or ``every`` so many seconds.

    ``start`` is a time of ``every``; empty: the time when the schedule was created. ``overlap`` says what
    happens at a time while a job runs, ``catch_up`` for how many seconds a time that was missed still counts.
    ``jitter``: the job is made up to so many seconds later, always as many for one name.

    ``timing`` is what ``last`` counts for. ``missed`` and ``skipped`` count times without a job, ``missing``
    those that were missed since the last job in time, ``failures`` the jobs in a row that failed.
    ``succeeded`` is when the last job that succeeded ended, and ``export_success`` makes that a metric.
    """

    id: str
    name: str
    cron: str = ""
    every: float | None = None
    start: str = ""
    zone: str = "UTC"
    job: dict[str, Any] = {}
    template: str = ""
    params: dict[str, str] = {}
    overlap: Overlap = "forbid"
    catch_up: float = 600.0
    jitter: float = 0.0
    keep: Keep = Keep()
    export_success: bool = False
    labels: dict[str, str] = {}
    needs: list[str] = []
    disabled: bool = False
    deleting: bool = False
    created: Time = 0.0
    part_of: str = ""
    open: list[str] = []
    timing: str = ""
    last: Time = 0.0
    fired: list[Fired] = []
    missed: int = 0
    missing: int = 0
    skipped: int = 0
    failures: int = 0
    succeeded: Time = 0.0

    @property
    def times(self) -> str:
        """What its times depend on."""
        period = "" if self.every is None else f"every {self.every:g} s from {self.start}"
        return f"{self.cron}{period} {self.zone}"

    @property
    def active(self) -> tuple[Fired, ...]:
        """Its jobs that have not ended, as far as is known."""
        return tuple(each for each in self.fired if not each.outcome)

    @property
    def full(self) -> bool:
        """Whether as many of its jobs run side by side as may."""
        return self.overlap == "allow" and len(self.active) >= MAX_ACTIVE


class ScheduleStatus(ItemStatus, frozen=True, omit_defaults=True, kw_only=True):
    """The status of a schedule: its next time, and how many of its jobs are running."""

    next: Time = 0.0
    active: int = 0
