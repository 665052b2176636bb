"""Services: what people deploy, the plan of a change, and its operations (uncloud ``pkg/client/deploy``).

A service compiles to one owner of pods; a deployment changes the members of its services' owners while it
lasts. Everything that decides is pure: the preview that a person sees and the farm that acts use one planner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from farmd.declaration import KindOfWork

if TYPE_CHECKING:
    import click

    from farmd.commands.noun import Noun
    from farmd.declaration import Besides, Ended, Starts
    from farmd.observe.metrics import Metric
    from farmd.work.kind import Kind


class DeploymentKind(KindOfWork):
    """Deployments of services."""

    family = "deployments"
    one, many, noun = "deployment", "deployments", "deployment"
    title = "Deployments: update services from a file, or roll them back."
    first = "farmctl deploy -f FILE"
    runbooks = (("FarmdDeployment", "FarmdDeploymentHalted"),)
    unbundled = "no deployment: apply makes one for each service that changes"
    features = ("deploy.1", "deploy.catalog")
    selectable = guarded = True

    def runs(self) -> type[Kind]:
        from farmd.deploy.kind import Deployments

        return Deployments

    def asked(self) -> Noun[Any, Any]:
        from farmd.deploy.noun import DEPLOYMENT

        return DEPLOYMENT

    def group(self) -> click.Group:
        from farmd.cli.nouns import deployment

        return deployment

    def ended(self) -> Ended:
        from farmd.deploy.commands import end

        return end

    def besides(self) -> Besides:
        from farmd.tables.deployments import besides

        return besides

    def starts(self) -> Starts:
        from farmd.deploy.goals import starts

        return starts

    def metrics(self) -> tuple[Metric, ...]:
        from farmd.deploy.metrics import METRICS

        return METRICS
