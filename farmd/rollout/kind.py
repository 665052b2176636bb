"""Rollouts as a kind of work."""

from __future__ import annotations

from collections.abc import Sequence

from farmd.kinds import KINDS
from farmd.observe.metrics import ROLLOUT_PHASES
from farmd.rollout.gates import Ask, unasked
from farmd.rollout.noun import ROLLOUT
from farmd.rollout.worker import RolloutWorker
from farmd.runtime.wake import Wake
from farmd.work.context import Context
from farmd.work.following import Following
from farmd.work.named import NamedKind
from farmd.work.phases import Phases
from store.families import RCS
from store.locks import Claim
from store.rollouts import KIND
from store.sessions import Session


class Rollouts(NamedKind):
    """The kind ``rollouts``."""

    name = KIND
    noun = ROLLOUT

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._following = Following(context.fleet, [context.caches.tree(RCS)])
        target = KINDS[RCS.name].noun
        self._phases = Phases(context.recorder, "farmd_rollouts", "phase", ROLLOUT_PHASES, target=target)
        self._ask: Ask = context.sections.get(KIND, unasked)
        # A freeze of the controllers holds their rollouts, too.
        context.guards[RCS.name].subscribe(self._freeze_changed)

    async def barrier(self, items: Sequence[str]) -> None:
        """Read the records and their states, both controllers' pods, and what plans rest on (R15)."""
        caches, keys = self.context.caches, self.context.keys
        await super().barrier(items)
        for tree in (caches.work, caches.nodes, caches.agents, caches.reserved):
            await tree.barrier()
        found = [self.tree.get(keys.record(KIND, item)) for item in items]
        records = [stored.record for stored in found if stored is not None]
        await caches.pods.barrier([keys.pods(rc) for each in records for rc in (each.old, each.new)])

    def worker(self, claim: Claim, session: Session, wake: Wake) -> RolloutWorker:
        """A worker for one rollout."""
        return RolloutWorker(self, claim, session, wake, self._following, self._phases, self._ask)
