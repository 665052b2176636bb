"""Rollouts as a kind of work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from farmd.kinds import KINDS
from farmd.rollout.gates import Ask, unasked
from farmd.rollout.metrics import PHASES
from farmd.runtime.wake import Wake
from farmd.work.context import Context
from farmd.work.managing import ManagingKind, Phases
from store.families import DAEMONSETS, RCS
from store.locks import Claim
from store.rollouts import KIND, Rollout
from store.sessions import Session

if TYPE_CHECKING:
    from farmd.rollout.worker import RolloutWorker


class Rollouts(ManagingKind):
    """The kind ``rollouts``."""

    name = KIND

    def __init__(self, context: Context) -> None:
        target = KINDS[RCS.name].noun
        phases = Phases(context.recorder, "farmd_rollouts", "phase", PHASES, target=target)
        trees = [context.caches.tree(family) for family in (RCS, DAEMONSETS)]
        super().__init__(context, trees, phases)
        self._ask: Ask = context.sections.get(KIND, unasked)
        for family in (RCS, DAEMONSETS):
            # A freeze of what they change holds rollouts, too.
            if family.name in context.guards:
                context.guards[family.name].subscribe(self._freeze_changed)

    def pod_owners(self, record: Rollout) -> tuple[str, ...]:
        """The ids of both controllers, or of the daemon set."""
        return (record.old,) if record.old == record.new else (record.old, record.new)

    def worker(self, claim: Claim, session: Session, wake: Wake) -> RolloutWorker:
        """A worker for one rollout."""
        from farmd.rollout.worker import RolloutWorker  # a farm without rollouts starts without it

        return RolloutWorker(self, claim, session, wake, self._ask)
