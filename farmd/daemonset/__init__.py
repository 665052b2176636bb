"""Daemon sets: one pod on every eligible node (p2 ``pkg/ds``).

``facts.py`` holds the snapshot and reads it, with ``rivals.py`` for daemon sets that claim the same nodes,
``plan.py`` decides (pure), ``kind.py`` has the worker and joins it to the claim engine, ``commands.py`` holds
the commands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import farmd
from farmd import submodules
from farmd.declaration import KindOfWork

if TYPE_CHECKING:
    import farmd.daemonset.commands
    import farmd.daemonset.kind
    import farmd.daemonset.metrics
else:
    __getattr__ = submodules(__name__)

DECLARATION = KindOfWork(
    family="daemonsets",
    one="daemon set",
    many="daemon sets",
    noun="daemonset",
    aliases=("ds",),
    title="Daemon sets: one pod on every eligible node.",
    first="farmctl daemonset create -f FILE",
    bundle_order=2,
    runbooks=(("FarmdDaemonsetCrashes", "FarmdCrashLoop"), ("FarmdDaemonsetAiling", "FarmdDaemonsetAiling")),
    owns_pods=True,
    per_node=True,
    gradual="rollouts",
    features=("follow.1",),
    selectable=True,
    guarded=True,
    runs=lambda: farmd.daemonset.kind.DaemonSets,
    metrics=lambda: farmd.daemonset.metrics.METRICS,
    asked=lambda: farmd.daemonset.commands.DAEMON_SET,
)
