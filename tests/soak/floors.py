"""By a farm's own doing no more pods of a controller are out than ``max_unavailable`` (R22).

A pod that served is out from the transaction that takes it down until it was healthy again for
``min_healthy_time``. This is judged from realities as agents wrote them, never from what farms say.
"""

from __future__ import annotations

from collections.abc import Iterable

from store.audit import Audit
from store.rcs import ReplicationController
from tests.fault.invariants import Place
from tests.soak.sight import Sight

# The farm's clock runs from when it saw the health, so it waits longer than this and never shorter.
SLACK = 0.5


class Floors:
    """Remembers which pods farms took down, by controller; ``judge`` takes the records in their order."""

    def __init__(self) -> None:
        self._out: dict[str, dict[Place, int]] = {}

    def forget(self) -> None:
        """The store went back to a snapshot."""
        self._out.clear()

    def judge(self, index: int, audit: Audit, before: Sight, after: Sight) -> Iterable[str]:
        """One record of a farm, with the last look before it and the first one after it."""
        rc = after.dump.rcs.get(audit.id)
        old = before.dump.rcs.get(audit.id)
        if rc is None or old is None or not audit.actor.startswith("farm/"):
            return
        out = self._out.setdefault(rc.id, {})
        changed = [_place(text) for text in (*audit.relabelled, *audit.removed)]
        for place in list(out):
            if place in changed or back(place, out[place], audit.at, rc, after):
                del out[place]
        fresh = [place for place in changed if served(index, audit.at, rc.id, place, before, after)]
        if not self._people(audit, old, rc):
            allowed = max(rc.max_unavailable, old.max_unavailable)
            if fresh and len(out) + len(fresh) > allowed:
                yield (
                    f"{audit.action} of {rc.name} at {index} took {fresh} down while {sorted(out)} were out,"
                    f" of {allowed} ({audit.reason!r})"
                )
        out.update({place: index for place in fresh if f"{place[0]}/{place[1]}" in audit.relabelled})

    @staticmethod
    def _people(audit: Audit, *versions: ReplicationController) -> bool:
        """Whether people want fewer pods than there were."""
        before = int(audit.before.get("pods", 0))
        return any(rc.deleting or rc.replicas_desired < before for rc in versions)


def _place(text: str) -> Place:
    node, _, instance = text.partition("/")
    return node, instance


def served(index: int, at: float, owner: str, place: Place, before: Sight, after: Sight) -> bool:
    """Whether a pod served for certain when it was taken down."""
    pod = before.dump.pods.get((owner, *place))
    if pod is None or not before.serves(place, pod[1].manifest) or not before.lasts(pod[1].manifest):
        return False
    if before.well_for.get(place[0], 0.0) == 0.0 or after.well_for.get(place[0], 0.0) == 0.0:
        return False
    was, now = before.realities[place][0], after.realities.get(place)
    if now is None or now[0].modify_index == was.modify_index:
        return True
    # It changed between the looks: if it ended by itself before it was taken down, its exits tell.
    ended = any(before.at <= each.at <= at for each in now[1].exits)
    return now[0].modify_index > index and not ended


def back(place: Place, index: int, at: float, rc: ReplicationController, after: Sight) -> bool:
    """Whether a pod that was taken down at an index was available again at a time."""
    pod, found = after.dump.pods.get((rc.id, *place)), after.realities.get(place)
    if pod is None:
        return True
    if found is None or found[1].intent < index or not after.serves(place, pod[1].manifest):
        return False
    return found[1].health.since + rc.min_healthy_time - SLACK <= at
