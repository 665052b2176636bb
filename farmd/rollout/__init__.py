"""Rollouts: from one version of a controller to the next, within a health floor (p2 ``pkg/roll``).

``stages.py`` turns the policy into goals, ``membership.py`` chooses the pods to move now, within the floor,
``plan.py`` decides on phases; all three are pure. ``facts.py`` and ``writes.py`` are facts and writes,
``worker.py`` joins them, ``creation.py`` begins one, ``commands.py`` is what people say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import farmd
from farmd import submodules
from farmd.declaration import KindOfWork

if TYPE_CHECKING:
    import farmd.cli.nouns
    import farmd.rollout.commands
    import farmd.rollout.creation
    import farmd.rollout.gates
    import farmd.rollout.kind
    import farmd.rollout.metrics
    import farmd.rollout.noun
    import farmd.rollout.superseding
    import farmd.tables.rollouts
else:
    __getattr__ = submodules(__name__)

DECLARATION = KindOfWork(
    family="rollouts",
    one="rollout",
    many="rollouts",
    noun="rollout",
    title="Rollouts: replace a controller's version in stages, or revert it.",
    first="farmctl rc update -f FILE",
    runbooks=(("FarmdRolloutWaits", "FarmdRolloutWaits"), ("FarmdRollout", "FarmdRolloutHalted")),
    unbundled="no rollout: write rollout: with its policy into the rc",
    features=("rollouts.1", "rollouts.2", "rollouts.3", "rollouts.4", "rollouts.5", "rollouts.6"),
    selectable=True,
    guarded=True,
    acts_unseen=("pause", "resume", "approve", "revert"),
    runs=lambda: farmd.rollout.kind.Rollouts,
    asked=lambda: farmd.rollout.noun.ROLLOUT,
    group=lambda: farmd.cli.nouns.rollout,
    acts=lambda: {
        "pause": farmd.rollout.commands.pause,
        "resume": farmd.rollout.commands.resume,
        "approve": farmd.rollout.commands.approve,
        "revert": farmd.rollout.commands.revert,
        "abort": farmd.rollout.commands.abort,
        "scale": farmd.rollout.commands.scale,
    },
    begins=lambda: farmd.rollout.creation.begin,
    supersedes=lambda: farmd.rollout.superseding.supersede,
    explains=lambda: farmd.tables.rollouts.explained,
    ended=lambda: farmd.rollout.commands.end,
    opens=lambda: farmd.rollout.gates.opened,
    metrics=lambda: farmd.rollout.metrics.METRICS,
)
