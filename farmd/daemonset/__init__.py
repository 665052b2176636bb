"""Daemon sets: one pod on every eligible node (p2 ``pkg/ds``).

``facts.py`` holds the snapshot and reads it, ``plan.py`` decides (pure), ``kind.py`` has the worker and
joins it to the claim engine, ``commands.py`` holds the commands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from farmd.declaration import KindOfWork

if TYPE_CHECKING:
    from farmd.commands.noun import Noun
    from farmd.observe.metrics import Metric
    from farmd.work.kind import Kind


class DaemonSetKind(KindOfWork):
    """Daemon sets."""

    family = "daemonsets"
    one, many, noun = "daemon set", "daemon sets", "daemonset"
    aliases = ("ds",)
    title = "Daemon sets: one pod on every eligible node."
    first = "farmctl daemonset create -f FILE"
    bundle_order = 2
    runbooks = (("FarmdDaemonsetCrashes", "FarmdCrashLoop"), ("FarmdDaemonsetAiling", "FarmdDaemonsetAiling"))
    owns_pods = per_node = selectable = guarded = True

    def runs(self) -> type[Kind]:
        from farmd.daemonset.kind import DaemonSets

        return DaemonSets

    def metrics(self) -> tuple[Metric, ...]:
        from farmd.daemonset.metrics import METRICS

        return METRICS

    def asked(self) -> Noun[Any, Any]:
        from farmd.daemonset.commands import DAEMON_SET

        return DAEMON_SET
