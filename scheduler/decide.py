"""The three answers and the explanation as pure functions of a request and a view.

All of them judge a node with the same functions, so the reasons that ``explanation`` shows are the
reasons that ``allocation`` acts on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from scheduler.constraints import Requirement, compile_request
from scheduler.feasibility import port_text, room_reasons, standing_reasons
from scheduler.ledger import release, reserve
from scheduler.model import (
    EVICTING,
    Assignment,
    Explanation,
    FleetView,
    NodeJudgement,
    NodeView,
    PlacementRequest,
    Reason,
)
from scheduler.protocol import Allocation, Deallocation, Eligibility
from scheduler.rank import DIGITS, Rankings, choose, node_parts, rankable
from scheduler.rules import DomainRule, domain_parts, domain_reasons, domain_rules
from store.words import count_of, share

_Judged = tuple[list[NodeView], list[tuple[str, list[Reason]]]]


def eligibility(request: PlacementRequest, view: FleetView) -> Eligibility:
    """Which nodes may take one more pod or keep their pods, and why the others may not.

    Raises:
        PlacementInvalid: the manifest's placement block cannot work.
    """
    requirement = compile_request(request)
    rules = domain_rules(requirement, view, 1)
    eligible: list[str] = []
    retained: list[str] = []
    refused: dict[str, tuple[Reason, ...]] = {}
    for node in _asked(request, view):
        reasons = standing_reasons(requirement, node)
        if request.owner not in node.owners:
            reasons += room_reasons(requirement, node)
            if rules:
                reasons += domain_reasons(rules, node)
        if not reasons:
            eligible.append(node.name)
            retained.append(node.name)
            continue
        refused[node.name] = tuple(reasons)
        if not any(reason.code in EVICTING for reason in reasons):
            retained.append(node.name)
    return Eligibility(tuple(eligible), tuple(retained), refused)


def allocation(
    request: PlacementRequest, count: int, view: FleetView, rankings: Rankings | None = None
) -> Allocation:
    """Places for up to ``count`` more pods, the best places first.

    ``rankings`` are kept from one call to the next; they make the answer cheaper and never another one.

    Raises:
        PlacementInvalid: the manifest's placement block cannot work.
    """
    requirement = compile_request(request)
    rules = domain_rules(requirement, view, count)
    judged: _Judged | None = None
    if rules or not rankable(requirement):
        judged = _judged(requirement, view)
        places = tuple(choose(requirement, judged[0], rules, count))
    else:
        places = tuple((rankings or Rankings()).places(requirement, count, view))
    reservations = reserve(places, request, view)
    missing = max(0, count - len(places))
    if not missing:
        return Allocation(places, reservations=reservations)
    candidates, refused = judged or _judged(requirement, view)
    refused += _used_up(requirement, candidates, places, rules)
    refusals = Counter(code for _, reasons in refused for code in {reason.code for reason in reasons})
    why = _shortage(requirement.request, count, missing, refused, refusals)
    return Allocation(places, missing, why, dict(sorted(refusals.items())), reservations)


def _judged(requirement: Requirement, view: FleetView) -> _Judged:
    """The nodes that may take one more pod, and the reasons against the others."""
    candidates: list[NodeView] = []
    refused: list[tuple[str, list[Reason]]] = []
    for node in _asked(requirement.request, view):
        reasons = standing_reasons(requirement, node)
        reasons += room_reasons(requirement, node)
        if reasons:
            refused.append((node.name, reasons))
        else:
            candidates.append(node)
    return candidates, refused


def deallocation(
    request: PlacementRequest, assignments: Collection[Assignment], view: FleetView
) -> Deallocation:
    """Give places back, in order of node and instance."""
    del request  # only a remote scheduler needs it
    places = tuple(sorted(set(assignments)))
    return Deallocation(places, release(places, view))


def explanation(request: PlacementRequest, view: FleetView) -> Explanation:
    """The verdict on every node for one more pod: all reasons against it, or the parts of its score.

    Raises:
        PlacementInvalid: the manifest's placement block cannot work.
    """
    requirement = compile_request(request)
    rules = domain_rules(requirement, view, 1)
    verdicts = []
    for node in _asked(request, view):
        reasons = standing_reasons(requirement, node) + room_reasons(requirement, node)
        reasons += domain_reasons(rules, node)
        parts = () if reasons else (*node_parts(requirement, node), *domain_parts(rules, node))
        verdicts.append(NodeJudgement(node.name, tuple(reasons), parts, node.owners.get(request.owner, 0)))
    good = sorted((v for v in verdicts if v.eligible), key=lambda v: (-round(v.score, DIGITS), v.node))
    near = [v for v in verdicts if not v.eligible and not v.placed]
    nearest = min(near, key=lambda v: (len(v.reasons), v.node), default=None)
    return Explanation(tuple(verdicts), tuple(v.node for v in good), nearest)


def _asked(request: PlacementRequest, view: FleetView) -> Sequence[NodeView]:
    """The nodes that a request asks about, by name."""
    names = view.keys() if request.among is None else request.among & view.keys()
    return [view[name] for name in sorted(names)]


def _used_up(
    requirement: Requirement,
    candidates: Sequence[NodeView],
    places: Sequence[Assignment],
    rules: Sequence[DomainRule],
) -> list[tuple[str, list[Reason]]]:
    """Why each candidate takes no more pods after all places were given away."""
    taken = Counter(place.node for place in places)
    full = [Reason("full", "already takes as many of these pods as allowed")]
    short = [Reason("capacity", "what is left of it is used by other pods of this placement")]
    ports = [
        Reason("port", f"{port_text(name)} is used by another pod of this placement")
        for name in requirement.ports
    ]
    answer = []
    for node in candidates:
        reasons = domain_reasons(rules, node)
        if taken[node.name] and not reasons:
            own = taken[node.name] + node.owners.get(requirement.request.owner, 0)
            reasons = ports[:1] or (full if own >= requirement.request.replicas_per_node else short)
        answer.append((node.name, reasons))
    return answer


WORDS = {
    "selector": "outside the node selector",
    "constraint": "ruled out by a constraint",
    "runtime": "without the runtime",
    "registry": "without the registry of artifacts",
    "allow": "that do not allow what the pod needs",
    "identity": "without the identity of a secret group",
    "limits": "without control groups for its limits",
    "feature": "with an agent that is too old",
    "taint": "tainted",
    "cordoned": "cordoned",
    "draining": "draining",
    "drain_waiting": "draining",
    "agent_unknown": "with an absent or unreadable agent",
    "agent_lost": "lost",
    "record_invalid": "whose record does not decode",
    "full": "full",
    "held": "with this instance held by another owner",
    "contended": "with a reservation in flight",
    "capacity": "short of capacity",
    "port": "where a fixed port is held",
    "spread": "ruled out by the spread",
    "anti_affinity": "ruled out by anti-affinity",
    "pod_affinity": "without the pods that these must be near",
}
"""What people are told of nodes against which there is a reason of that code."""


def ranked(refusals: Mapping[str, int]) -> list[tuple[str, int]]:
    """How many nodes each code of a reason refused, the most frequent one first."""
    return sorted(refusals.items(), key=lambda item: (-item[1], item[0]))


def _shortage(
    request: PlacementRequest,
    count: int,
    missing: int,
    refused: Sequence[tuple[str, Sequence[Reason]]],
    refusals: Counter[str],
) -> str:
    """One line: how many pods found no place, how many nodes each reason refused, the nearest miss."""
    head = f"{share(missing, count, 'pod')} found no place"
    if not refused:
        return f"{head}: there are no nodes"
    if all([reason.code for reason in reasons] == ["full"] for _, reasons in refused):
        nodes, have = share(len(refused), len(refused), "node"), "has" if len(refused) == 1 else "have"
        each = f"{request.replicas_per_node} each" if request.replicas_per_node > 1 else "one"
        return f"{head}: {nodes} {have} {each} already: raise replicas_per_node or add nodes"
    parts = [f"{number} {WORDS[code]}" for code, number in ranked(refusals)]
    near_miss = ""
    near = [(name, reasons) for name, reasons in refused if not any(r.code == "full" for r in reasons)]
    if near:
        name, reasons = min(near, key=lambda item: len(item[1]))  # by name, those of these pods last
        near_miss = f"; nearest miss {name}: {'; '.join(reason.text for reason in reasons)}"
    return f"{head}; of {count_of(len(refused), 'node')} {', '.join(parts)}{near_miss}"


# The scheduler that farms use: node selector, feasibility and ranking, all in this process.
#
# p2's bundled scheduler matched only node labels and could not allocate (W25); this one answers all
# three calls from the view alone.


class LabelSelectorScheduler:
    """Satisfies ``Scheduler`` with pure functions; its calls are asynchronous only for the protocol."""

    def __init__(self) -> None:
        self._rankings = Rankings()

    async def eligible_nodes(self, request: PlacementRequest, view: FleetView) -> Eligibility:
        """See ``scheduler.decide.eligibility``."""
        return eligibility(request, view)

    async def allocate_nodes(self, request: PlacementRequest, count: int, view: FleetView) -> Allocation:
        """See ``scheduler.decide.allocation``."""
        return allocation(request, count, view, self._rankings)

    async def deallocate_nodes(
        self, request: PlacementRequest, assignments: Collection[Assignment], view: FleetView
    ) -> Deallocation:
        """See ``scheduler.decide.deallocation``."""
        return deallocation(request, assignments, view)
