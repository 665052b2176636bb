"""Replication controllers: keep N copies of a pod on eligible nodes (p2 ``pkg/rc``).

``facts.py`` holds the snapshot and reads it, ``plan.py`` decides (pure), with ``healing.py`` for moves,
``writes.py`` carries plans out, ``report.py`` tells people, ``commands.py`` holds the commands, ``kind.py``
has the worker and joins it to the claim engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import farmd
from farmd import submodules
from farmd.declaration import KindOfWork

if TYPE_CHECKING:
    import farmd.cli.nouns
    import farmd.replication.commands
    import farmd.replication.kind
else:
    __getattr__ = submodules(__name__)

DECLARATION = KindOfWork(
    family="rcs",
    one="controller",
    many="controllers",
    label="rc",
    noun="rc",
    title="Replication controllers: keep N copies of a pod.",
    first="farmctl rc create -f FILE",
    other_ways=", farmctl rc set-replicas its count",
    bundle_order=2,
    runbooks=(("FarmdRcCrashes", "FarmdCrashLoop"),),
    gradual="rollouts",
    features=(
        "numbered.1",
        "pod-affinity.1",
        "one-shot.1",
        "artifacts.1",
        "secrets.1",
        "runtime.limits",
        "follow.1",
        "init.1",
        "container-init.1",
        "after-stop.1",
        "templates.1",
        "files.process",
        "sidecars.1",
    ),
    wiped="no_rcs_found",
    owns_pods=True,
    main=True,
    selectable=True,
    guarded=True,
    runs=lambda: farmd.replication.kind.Replication,
    asked=lambda: farmd.replication.commands.RC,
    group=lambda: farmd.cli.nouns.rc,
    acts=lambda: {"scale": farmd.replication.commands.set_replicas},
)
