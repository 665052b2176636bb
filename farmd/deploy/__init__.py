"""Services: what people deploy, the plan of a change, and its operations (uncloud ``pkg/client/deploy``).

A service compiles to one owner of pods; a deployment changes the members of its services' owners while it
lasts. Everything that decides is pure: the preview that a person sees and the farm that acts use one planner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import farmd
from farmd import submodules
from farmd.declaration import KindOfWork

if TYPE_CHECKING:
    import farmd.cli.nouns
    import farmd.deploy.commands
    import farmd.deploy.goals
    import farmd.deploy.kind
    import farmd.deploy.metrics
    import farmd.deploy.noun
    import farmd.tables.deployments
else:
    __getattr__ = submodules(__name__)

DECLARATION = KindOfWork(
    family="deployments",
    one="deployment",
    many="deployments",
    noun="deployment",
    title="Deployments: update services from a file, or roll them back.",
    first="farmctl deploy -f FILE",
    runbooks=(("FarmdDeployment", "FarmdDeploymentHalted"),),
    unbundled="no deployment: apply makes one for each service that changes",
    features=("deploy.1", "deploy.catalog", "deploy.outputs"),
    selectable=True,
    guarded=True,
    runs=lambda: farmd.deploy.kind.Deployments,
    asked=lambda: farmd.deploy.noun.DEPLOYMENT,
    group=lambda: farmd.cli.nouns.deployment,
    ended=lambda: farmd.deploy.commands.end,
    besides=lambda: farmd.tables.deployments.besides,
    starts=lambda: farmd.deploy.goals.starts,
    metrics=lambda: farmd.deploy.metrics.METRICS,
)
