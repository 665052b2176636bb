"""Schedules: jobs at times, each once.

``times.py`` has the times and is pure, as ``plan.py`` is; ``kind.py`` carries a plan out in one fenced
transaction, and has the one timer of a farm. Jobs are another kind: the registry of kinds names what makes
and deletes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import farmd
from farmd import submodules
from farmd.declaration import KindOfWork

if TYPE_CHECKING:
    import farmd.cli.nouns
    import farmd.schedules.commands
    import farmd.schedules.kind
    import farmd.schedules.metrics
    import farmd.tables.schedules
else:
    __getattr__ = submodules(__name__)

DECLARATION = KindOfWork(
    family="schedules",
    one="schedule",
    many="schedules",
    noun="schedule",
    title="Schedules: run a job once at each of their times.",
    first="farmctl schedule create -f FILE",
    bundle_order=4,
    runbooks=tuple(
        (each, each) for each in ("FarmdScheduleFailing", "FarmdScheduleMissed", "FarmdScheduleOverrun")
    ),
    selectable=True,
    guarded=True,
    health_matters=False,  # a job that is made removes nothing
    runs=lambda: farmd.schedules.kind.Schedules,
    asked=lambda: farmd.schedules.commands.SCHEDULE,
    group=lambda: farmd.cli.nouns.schedule,
    besides=lambda: farmd.tables.schedules.besides,
    metrics=lambda: farmd.schedules.metrics.METRICS,
)
