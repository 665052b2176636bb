"""Rollouts during a soak: by a farm's doing the floor is kept, and each rollout ends once.

The floor is judged from realities as agents wrote them. At most so many pods are available after a
transaction as both versions have, less those that a rollout placed and that were not available again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from farmd.rollout.stages import minimum
from store.audit import Audit
from store.rollouts import KIND, Rollout
from tests.fault.invariants import Dump
from tests.soak.floors import back, served
from tests.soak.sight import Sight

OUTCOMES = ("rollout.done", "rollout.reverted", "rollout.aborted")
PodId = tuple[str, str, str]
"""(owner, node, instance)."""


class RolloutFloors:
    """Remembers which pods rollouts placed; ``judge`` takes the records in their order."""

    def __init__(self) -> None:
        self._out: dict[str, dict[PodId, int]] = {}

    def forget(self) -> None:
        """The store went back to a snapshot."""
        self._out.clear()

    def judge(self, index: int, audit: Audit, before: Sight, after: Sight) -> Iterable[str]:
        """One record of a rollout, with the last look before it and the first one after it."""
        rollout = live(before.dump).get(audit.id)
        if audit.kind != KIND or rollout is None or not (audit.placed or audit.removed):
            return
        out, gone = self._out.setdefault(audit.id, {}), [_pod(text) for text in audit.removed]
        for pod in list(out):
            if pod in gone or _back(pod, out[pod], audit.at, after):
                del out[pod]
        fresh = [(o, *place) for o, *place in gone if _served(index, audit.at, o, *place, before, after)]
        out |= {_pod(text): index for text in audit.placed}
        left, floor = int(audit.after["pods"]) - len(out), _floor(rollout)
        said = live(after.dump).get(audit.id, rollout)
        unchanged = (said.replicas, said.policy) == (rollout.replicas, rollout.policy)
        if fresh and left < floor and unchanged:
            yield (
                f"{audit.action} of {audit.name} at {index} took {fresh} down; at most {left} pods are"
                f" available, at least {floor} should be ({audit.reason!r})"
            )


def live(dump: Dump) -> dict[str, Rollout]:
    """The rollouts that are under way, by id."""
    return {rollout.id: rollout for _, rollout in dump.tree(KIND, Rollout).values()}


def twice_over(dump: Dump) -> Iterable[str]:
    """Rollouts that ended more than once, or that are under way after their end."""
    ends = Counter(audit.id for _, audit in dump.audits if audit.action in OUTCOMES)
    yield from (f"rollout {each} ended {count} times" for each, count in ends.items() if count > 1)
    yield from (f"rollout {each} ended and is there" for each in live(dump).keys() & ends.keys())


def unended(dump: Dump) -> Iterable[str]:
    """Rollouts that are under way, or are gone without an end."""
    under_way = live(dump)
    yield from (f"rollout {each.name} is under way" for each in under_way.values())
    ends = {audit.id for _, audit in dump.audits if audit.action in OUTCOMES}
    begun = {audit.id: audit.name for _, audit in dump.audits if audit.action == "rollout.create"}
    lost = begun.keys() - ends - under_way.keys()
    yield from (f"rollout {begun[each]} ({each}) is gone without an end" for each in sorted(lost))


def _floor(rollout: Rollout) -> int:
    """The floor both ways: on the way back one pod may always leave, where none comes before it."""
    began = rollout.started_from
    return min(minimum(rollout), began if rollout.policy.beside else began - 1)


def _served(index: int, at: float, owner: str, node: str, name: str, before: Sight, after: Sight) -> bool:
    return served(index, at, owner, (node, name), before, after)


def _back(pod: PodId, index: int, at: float, after: Sight) -> bool:
    owner, *place = pod
    rc = after.dump.rcs.get(owner)
    return rc is None or back((place[0], place[1]), index, at, rc, after)


def _pod(text: str) -> PodId:
    owner, node, instance = text.split("/")
    return owner, node, instance
