"""How many removals that no person asked for a kind may make in a minute (R19)."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable

from store.ports import Clock

REMOVALS_SHARE_PER_MINUTE = 0.3
# The minimum for small fleets, for all farms together; and one farm's minimum, which is what one worker may
# move at once.
REMOVALS_AT_LEAST = 20
REMOVALS_A_FARM_AT_LEAST = 8
# The share of the budget for other nodes while one node alone uses it up: a few pods elsewhere are no mass
# removal.
REMOVALS_BESIDE_ONE_NODE = 0.1


class RemovalBudget:
    """How many removals that no person asked for a kind may make in a minute (R19).

    All pods of one node may be removed, whatever share of a small fleet they are, because healing a failed
    node needs it. The budget limits removals on several nodes. ``farms`` counts the farms, which share the
    minimum.
    """

    def __init__(self, clock: Clock, farms: Callable[[], int]) -> None:
        self._clock = clock
        self._farms = farms
        self._spent: deque[tuple[float, str]] = deque()
        self._nodes: Counter[str] = Counter()

    def allows(self, nodes: Collection[str], population: int) -> bool:
        """Whether one removal on each of these nodes stays within the budget; if so, it is spent.

        ``population`` is how many pods this farm owns now: each farm has its own budget and does not know the
        others'. What it hands over lowers its limit, whatever it has spent.
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
        """Return the budget of removals that were not made, because somebody else was faster."""
        for node in nodes:
            last = next((spent for spent in reversed(self._spent) if spent[1] == node), None)
            if last is not None:
                self._spent.remove(last)
                self._forget(node)

    def _forget(self, node: str) -> None:
        self._nodes[node] -= 1
        if not self._nodes[node]:
            del self._nodes[node]
