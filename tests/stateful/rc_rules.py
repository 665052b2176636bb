"""What holds of every change of a controller's pods."""

from __future__ import annotations

from collections.abc import Iterable

from store.audit import Audit
from store.nodes import Node
from store.rcs import ReplicationController
from store.work import Work
from tests.stateful.moment import Look, Moment, Place


class ControllerRules:
    """Remembers which pods were taken down by our own doing, until they serve again."""

    def __init__(self, look: Look) -> None:
        self._look = look
        self._keys = look.keys
        self._down: dict[str, set[Place]] = {}

    def recovered(self, place: Place) -> None:
        """A reality changed: whatever serves again is not down any more."""
        for owner, places in self._down.items():
            if place in places and self._look.serves(owner, place):
                places.discard(place)

    def judge(self, moment: Moment, audit: Audit) -> Iterable[str]:
        """Judge one transaction that changes one controller's pods or move."""
        rc = self._look.record(ReplicationController, moment.before[self._keys.record("rcs", audit.id)])
        if rc is None:
            yield "changed pods of a controller that is not there or does not decode"
            return
        if rc.disabled:
            yield f"changed pods of {rc.name}, which is disabled"
        ends = audit.action in ("transfer.finish", "transfer.cancel", "transfer.rollback")
        if rc.taken and (moment.added or moment.gone or moment.changed) and not ends:
            yield f"changed pods of {rc.name}, which {rc.managed_by} manages"
        locked = moment.before[self._keys.mutation_lock("rcs", rc.id)] is not None
        if audit.action.startswith("transfer.") and locked and not (rc.taken and ends):
            yield f"{audit.action} of {rc.name}, whose mutation lock is held"
        yield from self._counted(moment, rc)
        if not self._look.troubled(moment.farm):
            yield from self._placed_well(moment, rc)
            yield from self._gently(moment, rc)
        self._down.setdefault(rc.id, set()).update(
            (node, instance)
            for owner, node, instance in moment.changed
            if owner == rc.id and not self._look.serves(owner, (node, instance))
        )

    def _counted(self, moment: Moment, rc: ReplicationController) -> Iterable[str]:
        """Removals end at the desired count and so do additions; a move may stand on both feet.

        While it does, another pod may have gone by a forced drain: one foot goes all the same, and what is
        missing then is placed next.
        """
        before, gone = len(self._look.standing(rc.id)), len({p for p in moment.gone if p[0] == rc.id})
        after = before - gone + len({p for p in moment.added if p[0] == rc.id})
        pair = any(audit.action in ("transfer.finish", "transfer.rollback") for audit in moment.audits)
        if gone and after < min(before - pair, rc.replicas_desired) and not self._forced(moment):
            yield f"{rc.name}: from {before} to {after} pods, desired are {rc.replicas_desired}"
        work = self._look.at(Work, self._keys.work("rcs", rc.id))
        moving = 1 if work is not None and work.transfer is not None else 0
        if moment.added and after > max(before, rc.replicas_desired + moving):
            yield f"{rc.name}: from {before} up to {after} pods, desired are {rc.replicas_desired}"

    def _forced(self, moment: Moment) -> bool:
        """Whether the pods leave nodes that a person drains by force."""
        for _, node, _ in moment.gone:
            record = self._look.at(Node, self._keys.node(node))
            if record is None or record.drain is None or not record.drain.ignores_floor:
                return False
        return True

    def _placed_well(self, moment: Moment, rc: ReplicationController) -> Iterable[str]:
        """Nothing new on nodes where the controller may not place."""
        for _, node, _ in sorted(moment.added):
            if why := self._look.unfit(node, rc, self._keys.record("rcs", rc.id)):
                yield f"{rc.name}: placed on {node}, which {why}"

    def _gently(self, moment: Moment, rc: ReplicationController) -> Iterable[str]:
        """By our own doing at most ``max_unavailable`` pods do not serve."""
        mine = self._look.standing(rc.id)
        gone = {(node, instance) for owner, node, instance in moment.gone if owner == rc.id}
        down = (self._down.get(rc.id, set()) & mine) - gone
        fresh = {
            place
            for owner, *rest in moment.changed
            if owner == rc.id
            and (place := (rest[0], rest[1])) not in down
            and self._look.served(owner, place)
            and self._look.settled(
                self._keys.reality(*place),
                self._keys.work("nodes", place[0]),
                self._keys.pod(owner, *place),
            )
        }
        moving = any(audit.action.startswith("transfer") for audit in moment.audits)
        coming = 0 if moving else len({pod for pod in moment.added if pod[0] == rc.id})
        if fresh and len(fresh | down) + coming > rc.max_unavailable and not self._look.blind(*mine):
            yield (
                f"{rc.name}: {sorted(fresh)} taken down while {sorted(down)} still are and {coming} come,"
                f" of {rc.max_unavailable}"
            )
