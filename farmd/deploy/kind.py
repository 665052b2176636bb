"""Deployments as a kind of work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from farmd.deploy.metrics import STATES
from farmd.runtime.wake import Wake
from farmd.work.context import Context
from farmd.work.managing import ManagingKind, Phases
from store import families
from store.deployments import KIND, Deployment
from store.locks import Claim
from store.sessions import Session

if TYPE_CHECKING:
    from farmd.deploy.worker import DeploymentWorker


class Deployments(ManagingKind):
    """The kind ``deployments``."""

    name = KIND

    def __init__(self, context: Context) -> None:
        phases = Phases(context.recorder, "farmd_deployments", "state", STATES)
        super().__init__(context, context.caches.owners(), phases)
        for family in families.owners():
            # A freeze of the owners holds their deployments, too; a farm may claim deployments alone.
            if family.name in context.guards:
                context.guards[family.name].subscribe(self._freeze_changed)

    def pod_owners(self, record: Deployment) -> list[str]:
        """Its services' owners, and the services, which own their hooks' pods."""
        return [ident for goal in record.goals for ident in (goal.owner.partition("/")[2], goal.service)]

    async def read_owners(self, ids: Sequence[str]) -> None:
        """Read the owners of its services, which plans take from the copies."""
        caches, keys = self.context.caches, self.context.keys
        for family in families.owners():
            await caches.tree(family).barrier([keys.record(family.name, ident) for ident in ids])

    def worker(self, claim: Claim, session: Session, wake: Wake) -> DeploymentWorker:
        """A worker for one deployment."""
        from farmd.deploy.worker import DeploymentWorker  # a farm without deployments starts without it

        return DeploymentWorker(self, claim, session, wake)
