"""Deployments as a kind of work."""

from __future__ import annotations

from collections.abc import Sequence

from farmd.deploy.noun import DEPLOYMENT
from farmd.deploy.worker import DeploymentWorker
from farmd.observe.metrics import DEPLOYMENT_STATES
from farmd.runtime.wake import Wake
from farmd.work.context import Context
from farmd.work.following import Following
from farmd.work.named import NamedKind
from farmd.work.phases import Phases
from store import families
from store.deployments import KIND, Deployment
from store.locks import Claim
from store.sessions import Session


class Deployments(NamedKind):
    """The kind ``deployments``."""

    name = KIND
    noun = DEPLOYMENT

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._following = Following(context.fleet, context.caches.owners())
        self._phases = Phases(context.recorder, "farmd_deployments", "state", DEPLOYMENT_STATES)
        for family in families.owners():
            # A freeze of the owners holds their deployments, too; a farm may claim deployments alone.
            if family.name in context.guards:
                context.guards[family.name].subscribe(self._freeze_changed)

    async def barrier(self, items: Sequence[str]) -> None:
        """Read the records and their states, the pods of their services, and what plans rest on (R15)."""
        caches, keys = self.context.caches, self.context.keys
        await super().barrier(items)
        for tree in (caches.work, caches.nodes, caches.agents, caches.reserved):
            await tree.barrier()
        found = [self.tree.get(keys.record(KIND, item)) for item in items]
        records: list[Deployment] = [stored.record for stored in found if stored is not None]
        ids = [ident for record in records for ident in pod_owners(record)]
        await caches.pods.barrier([keys.pods(ident) for ident in ids])
        for family in families.owners():
            await caches.tree(family).barrier([keys.record(family.name, ident) for ident in ids])

    def worker(self, claim: Claim, session: Session, wake: Wake) -> DeploymentWorker:
        """A worker for one deployment."""
        return DeploymentWorker(self, claim, session, wake, self._following, self._phases)


def pod_owners(record: Deployment) -> list[str]:
    """The ids under which pods of a deployment stand: of its services' owners, and of the services, which own
    their hooks' pods.
    """
    return [ident for goal in record.goals for ident in (goal.owner.partition("/")[2], goal.service)]
