"""Replication controllers: keep N copies of a pod on eligible nodes (p2 ``pkg/rc``).

``facts.py`` holds the snapshot and reads it, ``plan.py`` decides (pure), with ``healing.py`` for moves,
``writes.py`` carries plans out, ``report.py`` tells people, ``commands.py`` holds the commands, ``kind.py``
has the worker and joins it to the claim engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from farmd.declaration import KindOfWork

if TYPE_CHECKING:
    from collections.abc import Mapping

    import click

    from farmd.commands.noun import Noun
    from farmd.declaration import Act
    from farmd.work.kind import Kind


class ControllerKind(KindOfWork):
    """Replication controllers."""

    family = "rcs"
    one, many, label, noun = "controller", "controllers", "rc", "rc"
    title = "Replication controllers: keep N copies of a pod."
    first = "farmctl rc create -f FILE"
    bundle_order = 2
    runbooks = (("FarmdRcCrashes", "FarmdCrashLoop"),)
    gradual = "rollouts"
    features = ("numbered.1", "pod-affinity.1", "one-shot.1", "artifacts.1", "secrets.1")
    wiped = "no_rcs_found"
    owns_pods = main = selectable = guarded = True

    def runs(self) -> type[Kind]:
        from farmd.replication.kind import Replication

        return Replication

    def asked(self) -> Noun[Any, Any]:
        from farmd.replication.commands import RC

        return RC

    def group(self) -> click.Group:
        from farmd.cli.nouns import rc

        return rc

    def acts(self) -> Mapping[str, Act]:
        from farmd.replication.commands import set_replicas

        return {"scale": set_replicas}
