"""How many removals that no person asked for a kind may make in a minute (R19)."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable

from store.ports import Clock

REMOVALS_SHARE_PER_MINUTE = 0.3
# Of small fleets, by all farms together; and a farm's part of it: what one worker may move at once.
REMOVALS_AT_LEAST = 20
REMOVALS_A_FARM_AT_LEAST = 8
# Of the budget, while one node alone uses it up: that a pod elsewhere moves, too, is no mass removal.
REMOVALS_BESIDE_ONE_NODE = 0.1


class RemovalBudget:
    """How many removals that no person asked for a kind may make in a minute (R19).

    All pods of one node may go, whatever share of a small fleet they are: one node that fails is what
    healing is there for. What the budget is about are the removals on several. ``farms``: how many farms
    are there, which share what is always allowed.
    """

    def __init__(self, clock: Clock, farms: Callable[[], int]) -> None:
        self._clock = clock
        self._farms = farms
        self._spent: deque[tuple[float, str]] = deque()
        self._nodes: Counter[str] = Counter()

    def allows(self, nodes: Collection[str], population: int) -> bool:
        """Whether one more removal on each of these nodes stays within the budget; spends them if so.

        ``population`` is how many pods this farm owns: each has its own budget, and none sees the others'.
        """
        now = self._clock.mono()
        while self._spent and now - self._spent[0][0] >= 60:
            self._forget(self._spent.popleft()[1])
        wanted, total = Counter(nodes), len(self._spent) + len(nodes)
        at_least = max(REMOVALS_A_FARM_AT_LEAST, REMOVALS_AT_LEAST / max(1, self._farms()))
        limit = max(at_least, REMOVALS_SHARE_PER_MINUTE * population)
        if total > limit:
            one_node = max((self._nodes + wanted).values(), default=0)
            if total - one_node > max(1, REMOVALS_BESIDE_ONE_NODE * limit):
                return False
        self._nodes += wanted
        self._spent.extend((now, node) for node in nodes)
        return True

    def give_back(self, nodes: Iterable[str]) -> None:
        """What was allowed there was not done: others were faster."""
        for node in nodes:
            last = next((spent for spent in reversed(self._spent) if spent[1] == node), None)
            if last is not None:
                self._spent.remove(last)
                self._forget(node)

    def _forget(self, node: str) -> None:
        self._nodes[node] -= 1
        if not self._nodes[node]:
            del self._nodes[node]
