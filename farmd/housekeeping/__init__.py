"""House-keeping: collects manifests without references, and prunes the old audit log.

It is a small kind of work with one item for each chore, claimed like all others: one farm at a time does
each, and the claim engine supplies takeover, fences and crash isolation. ``plan.py`` decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from farmd.declaration import KindOfWork

if TYPE_CHECKING:
    from farmd.observe.metrics import Metric
    from farmd.work.kind import Kind


class HousekeepingKind(KindOfWork):
    """House-keeping."""

    family = "housekeeping"
    one, many = "chore", "chores"
    unclaimed = "no farm does housekeeping: manifests and the audit log grow without limit"

    def runs(self) -> type[Kind]:
        from farmd.housekeeping.kind import Housekeeping

        return Housekeeping

    def metrics(self) -> tuple[Metric, ...]:
        from farmd.housekeeping.report import METRICS

        return METRICS
