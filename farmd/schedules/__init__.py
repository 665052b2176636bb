"""Schedules: jobs at times, each once.

``times.py`` has the times and is pure, as ``plan.py`` is; ``kind.py`` carries a plan out in one fenced
transaction, and has the one timer of a farm. Jobs are another kind: the registry of kinds names what makes
and deletes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from farmd.declaration import KindOfWork

if TYPE_CHECKING:
    import click

    from farmd.commands.noun import Noun
    from farmd.declaration import Besides
    from farmd.observe.metrics import Metric
    from farmd.work.kind import Kind


class ScheduleKind(KindOfWork):
    """Schedules of jobs."""

    family = "schedules"
    one, many, noun = "schedule", "schedules", "schedule"
    title = "Schedules: run a job once at each of their times."
    first = "farmctl schedule create -f FILE"
    bundle_order = 4
    runbooks = tuple(
        (each, each) for each in ("FarmdScheduleFailing", "FarmdScheduleMissed", "FarmdScheduleOverrun")
    )
    selectable = guarded = True
    health_matters = False  # a job that is made removes nothing

    def runs(self) -> type[Kind]:
        from farmd.schedules.kind import Schedules

        return Schedules

    def asked(self) -> Noun[Any, Any]:
        from farmd.schedules.commands import SCHEDULE

        return SCHEDULE

    def group(self) -> click.Group:
        from farmd.cli.nouns import schedule

        return schedule

    def besides(self) -> Besides:
        from farmd.tables.schedules import besides

        return besides

    def metrics(self) -> tuple[Metric, ...]:
        from farmd.schedules.metrics import METRICS

        return METRICS
