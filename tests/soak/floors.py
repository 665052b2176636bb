"""By a farm's own doing no more pods of a controller are out than ``max_unavailable`` (R22), and no more of a
daemon set than ``min_health`` leaves.

A pod that served is out from the transaction that takes it down until it was healthy again for
``min_healthy_time``. This is judged from realities as agents wrote them, never from what farms say.
"""

from __future__ import annotations

from collections.abc import Iterable

from store.audit import Audit
from store.daemonsets import DaemonSet
from store.rcs import ReplicationController
from tests.fault.invariants import Place
from tests.soak.sight import Sight

# The farm's clock runs from when it saw the health, so it waits longer than this and never shorter.
SLACK = 0.5


class Floors:
    """Remembers which pods farms took down, by owner; ``judge`` takes the records in their order."""

    def __init__(self) -> None:
        self._out: dict[str, dict[Place, int]] = {}

    def forget(self) -> None:
        """The store went back to a snapshot."""
        self._out.clear()

    def judge(self, index: int, audit: Audit, before: Sight, after: Sight) -> Iterable[str]:
        """One record of a farm, with the last look before it and the first one after it."""
        owner = after.dump.owners.get(audit.id)
        old = before.dump.owners.get(audit.id)
        if owner is None or old is None or not audit.actor.startswith("farm/"):
            return
        out = self._out.setdefault(owner.id, {})
        changed = [_place(text) for text in (*audit.relabelled, *audit.removed)]
        for place in list(out):
            if place in changed or self._uncounted(place, owner, after):
                del out[place]
            elif back(place, out[place], audit.at, owner, after):
                del out[place]
        taken = [_place(text) for text in audit.relabelled] if isinstance(owner, DaemonSet) else changed
        fresh = [place for place in taken if served(index, audit.at, owner.id, place, before, after)]
        if not self._people(audit, old, owner):
            allowed = max(_allowed(each, len(after.zones)) for each in (owner, old))
            if fresh and len(out) + len(fresh) > allowed:
                yield (
                    f"{audit.action} of {owner.name} at {index} took {fresh} down while {sorted(out)} were"
                    f" out, of {allowed} ({audit.reason!r})"
                )
        out.update({place: index for place in fresh if f"{place[0]}/{place[1]}" in audit.relabelled})

    @staticmethod
    def _people(audit: Audit, *versions: ReplicationController | DaemonSet) -> bool:
        """Whether people want fewer pods than there were."""
        before = int(audit.before.get("pods", 0))
        return any(
            each.deleting or (isinstance(each, ReplicationController) and each.replicas_desired < before)
            for each in versions
        )

    @staticmethod
    def _uncounted(place: Place, owner: ReplicationController | DaemonSet, after: Sight) -> bool:
        """Whether a daemon set may not count a pod any more: its node was in trouble, and may be given up."""
        return isinstance(owner, DaemonSet) and not after.well(place[0])


def _allowed(owner: ReplicationController | DaemonSet, nodes: int) -> int:
    """How many pods may be out by a farm's doing; a daemon set allows no more on fewer nodes.

    It removes pods from nodes that may not keep them whatever the floor, so only replacements are judged.
    """
    if isinstance(owner, DaemonSet):
        return nodes - owner.floor(nodes)
    return owner.max_unavailable


def _place(text: str) -> Place:
    node, _, instance = text.partition("/")
    return node, instance


def served(index: int, at: float, owner: str, place: Place, before: Sight, after: Sight) -> bool:
    """Whether a pod served for certain when it was taken down."""
    pod = before.dump.pods.get((owner, *place))
    if pod is None or not before.serves(place, pod[1].manifest) or not before.lasts(pod[1].manifest):
        return False
    if not (before.well(place[0]) and after.well(place[0])):
        return False
    was, now = before.realities[place][0], after.realities.get(place)
    if now is None or now[0].modify_index == was.modify_index:
        return True
    # It changed between the looks: if it ended by itself before it was taken down, its exits tell.
    ended = any(before.at <= each.at <= at for each in now[1].exits)
    return now[0].modify_index > index and not ended


def back(place: Place, index: int, at: float, rc: ReplicationController | DaemonSet, after: Sight) -> bool:
    """Whether a pod that was taken down at an index was available again at a time."""
    pod, found = after.dump.pods.get((rc.id, *place)), after.realities.get(place)
    if pod is None:
        return True
    if found is None or found[1].intent < index or not after.serves(place, pod[1].manifest):
        return False
    return found[1].health.since + rc.min_healthy_time - SLACK <= at
