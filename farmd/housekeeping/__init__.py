"""House-keeping: collects manifests without references, and prunes the old audit log.

It is a small kind of work with one item for each chore, claimed like all others: one farm at a time does
each, and the claim engine supplies takeover, fences and crash isolation. ``plan.py`` decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import farmd
from farmd import submodules
from farmd.declaration import KindOfWork

if TYPE_CHECKING:
    import farmd.housekeeping.kind
    import farmd.housekeeping.report
else:
    __getattr__ = submodules(__name__)

DECLARATION = KindOfWork(
    family="housekeeping",
    one="chore",
    many="chores",
    unclaimed="no farm does housekeeping: manifests and the audit log grow without limit",
    runs=lambda: farmd.housekeeping.kind.Housekeeping,
    metrics=lambda: farmd.housekeeping.report.METRICS,
)
