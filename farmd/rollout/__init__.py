"""Rollouts: from one version of a controller to the next, within a health floor (p2 ``pkg/roll``).

``stages.py`` turns the policy into goals, ``membership.py`` chooses the pods to move now, within the floor,
``plan.py`` decides on phases; all three are pure. ``facts.py`` and ``writes.py`` are facts and writes,
``worker.py`` joins them, ``creation.py`` begins one, ``commands.py`` is what people say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from farmd.declaration import KindOfWork

if TYPE_CHECKING:
    from collections.abc import Mapping

    import click

    from farmd.commands.noun import Noun
    from farmd.declaration import Act, Ended, Explains, Opened
    from farmd.observe.metrics import Metric
    from farmd.work.kind import Kind


class RolloutKind(KindOfWork):
    """Rollouts of controllers."""

    family = "rollouts"
    one, many, noun = "rollout", "rollouts", "rollout"
    title = "Rollouts: replace a controller's version in stages, or revert it."
    first = "farmctl rc update -f FILE"
    runbooks = (("FarmdRolloutWaits", "FarmdRolloutWaits"), ("FarmdRollout", "FarmdRolloutHalted"))
    unbundled = "no rollout: write rollout: with its policy into the rc"
    features = ("rollouts.1", "rollouts.2", "rollouts.3")
    selectable = guarded = True
    acts_unseen = True

    def runs(self) -> type[Kind]:
        from farmd.rollout.kind import Rollouts

        return Rollouts

    def asked(self) -> Noun[Any, Any]:
        from farmd.rollout.noun import ROLLOUT

        return ROLLOUT

    def group(self) -> click.Group:
        from farmd.cli.nouns import rollout

        return rollout

    def acts(self) -> Mapping[str, Act]:
        from farmd.rollout.commands import approve, pause, resume, revert

        return {"pause": pause, "resume": resume, "approve": approve, "revert": revert}

    def begins(self) -> Act:
        from farmd.rollout.creation import begin

        return begin

    def supersedes(self) -> Act:
        from farmd.rollout.superseding import supersede

        return supersede

    def explains(self) -> Explains:
        from farmd.tables.rollouts import explained

        return explained

    def ended(self) -> Ended:
        from farmd.rollout.commands import end

        return end

    def opens(self) -> Opened:
        from farmd.rollout.gates import opened

        return opened

    def metrics(self) -> tuple[Metric, ...]:
        from farmd.rollout.metrics import METRICS

        return METRICS
