"""A compiled request: its rules are compiled once, so that judging one node costs microseconds.

A manifest that cannot work is refused while it is compiled; judging never fails.
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.constraints import LabelRule, check_weight, compile_constraints, label_rule
from scheduler.model import NodeView, PlacementRequest
from store import features, selectors
from store.manifests import PORT_RESOURCE, Toleration, asked
from store.nodes import Taint


@dataclass(frozen=True, slots=True)
class Requirement:
    """A compiled request. ``amounts`` holds only resources with an amount above 0, sorted by name.

    ``ports`` names the fixed ports as resources. ``features`` must be among the node's. ``exclusive``: the
    instance's name is the pod id, so a node can hold only one. The node selector is split into its
    equalities, which most selectors consist of, and the rest.
    """

    request: PlacementRequest
    equalities: tuple[tuple[str, frozenset[str]], ...]
    other_requirements: tuple[selectors.Requirement, ...]
    constraints: tuple[LabelRule, ...]
    affinities: tuple[tuple[LabelRule, int], ...]
    amounts: tuple[tuple[str, float], ...]
    ports: tuple[str, ...]
    features: tuple[str, ...]
    exclusive: bool

    @property
    def pod_id(self) -> str:
        """The manifest's id, from which instances get their names."""
        return self.request.manifest.id


def compile_request(request: PlacementRequest) -> Requirement:
    """Compile a request's rules.

    Raises:
        PlacementInvalid: the manifest's placement block cannot work; names the field.
    """
    placement = request.manifest.placement
    parts = request.selector.requirements
    wanted = sorted(asked(request.manifest).items())
    affinities = []
    for at, rule in enumerate(placement.affinity):
        field = f"placement.affinity[{at}]"
        check_weight(rule.weight, -100, field)
        affinities.append((label_rule(rule.label, rule.operator, rule.values, field), rule.weight))
    return Requirement(
        request=request,
        equalities=tuple((part.key, frozenset(part.values)) for part in parts if _is_equality(part)),
        other_requirements=tuple(part for part in parts if not _is_equality(part)),
        constraints=compile_constraints(placement.constraints),
        affinities=tuple(affinities),
        amounts=tuple(item for item in wanted if not item[0].startswith(PORT_RESOURCE)),
        ports=tuple(name for name, _ in wanted if name.startswith(PORT_RESOURCE)),
        features=(*features.needed(request.manifest), *request.features),
        exclusive=not request.numbered and request.replicas_per_node <= 1,
    )


def selects(requirement: Requirement, node: NodeView) -> bool:
    """The same as ``request.selector.matches``, several times faster for selectors of equalities."""
    labels = node.labels
    for key, values in requirement.equalities:
        if labels.get(key) not in values:
            return False
    return not requirement.other_requirements or all(
        part.matches(labels) for part in requirement.other_requirements
    )


def _is_equality(part: selectors.Requirement) -> bool:
    return part.operator is selectors.Operator.IN


def tolerates(tolerations: list[Toleration], taint: Taint) -> bool:
    """Whether any toleration accepts a taint; an empty value or effect accepts every value or effect."""
    return any(
        accepted.key == taint.key
        and accepted.value in ("", taint.value)
        and accepted.effect in ("", taint.effect)
        for accepted in tolerations
    )


def next_instance(requirement: Requirement, node: NodeView, start: int) -> tuple[str, int]:
    """The first free instance name on a node with a number of at least ``start``, and the next number.

    A name with a reservation and no pod is free: the new pod takes the reservation over, which repairs
    a leftover one. If two workers take a name at once, only one of them can create the intent.
    """
    if requirement.exclusive:
        return requirement.pod_id, start
    number = start
    while (name := f"{requirement.pod_id}~{number}") in node.pods:
        number += 1
    return name, number + 1
