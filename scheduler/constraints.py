"""Label rules of a placement block, and whole requests: compiled once, so that judging a node is cheap.

A rule that cannot work is refused here with one line that names the field; a compiled rule never
fails. Constraints and affinities share the operators.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from scheduler.errors import PlacementInvalid
from scheduler.model import NodeView, PlacementRequest
from store import features, selectors
from store.errors import InputInvalid
from store.manifests import PORT_RESOURCE, Constraint, Operator, Placement, Spread, Toleration, asked
from store.nodes import Taint

# Versions and version ranges, as they occur in node labels: kernels, agents, operating systems.
#
# Suffixes are tolerated: ``5.10.0-8-amd64`` is a build of 5.10.0, not a pre-release of it. Only the
# words alpha, beta, pre, dev and rc make a version a pre-release.

Version = tuple[tuple[int, ...], tuple[int, int]]
VersionTest = Callable[[Version], bool]

_VERSION = re.compile(r"v?(\d+(?:\.\d+)*)(?:[-.]?(alpha|beta|dev|pre|rc)[-.]?(\d*))?(?![\d.])", re.IGNORECASE)
_CLAUSE = re.compile(r"(>=|<=|!=|==|=|>|<|~>)?\s*(\S+)")
_STAGES = {"dev": 0, "alpha": 1, "beta": 2, "pre": 3, "rc": 4}
_RELEASE = (9, 0)


def parse_version(text: str) -> Version | None:
    """Split ``v1.25.0-rc1+build`` into comparable parts; None when it does not start like a version."""
    found = _VERSION.match(text.strip())
    if found is None:
        return None
    numbers = [int(part) for part in found[1].split(".")]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    stage = _RELEASE if found[2] is None else (_STAGES[found[2].lower()], int(found[3] or 0))
    return tuple(numbers), stage


def parse_range(text: str) -> VersionTest | None:
    """A test for a range such as ``>=5.10, <7``: every clause must hold; None when it does not parse.

    Operators are ``=``, ``==``, ``!=``, ``<``, ``<=``, ``>``, ``>=`` and ``~>`` (``~>1.4`` is
    ``>=1.4, <2``; ``~>1.4.2`` is ``>=1.4.2, <1.5``); a bare version means ``=``.
    """
    tests = [_clause(clause.strip()) for clause in text.split(",")]
    known = [test for test in tests if test is not None]
    if len(known) < len(tests):
        return None
    return lambda version: all(test(version) for test in known)


def _clause(text: str) -> VersionTest | None:
    found = _CLAUSE.fullmatch(text)
    bound = parse_version(found[2]) if found is not None else None
    if found is None or bound is None:
        return None
    operator = found[1] or "="
    if operator == "~>":
        numbers = _VERSION.match(found[2])
        written = [int(part) for part in numbers[1].split(".")] if numbers is not None else [0]
        head = written[:-1] or written
        ceiling: Version = ((*head[:-1], head[-1] + 1), (-1, 0))
        return lambda version: bound <= version < ceiling
    comparisons: dict[str, VersionTest] = {
        "=": lambda version: version == bound,
        "==": lambda version: version == bound,
        "!=": lambda version: version != bound,
        "<": lambda version: version < bound,
        "<=": lambda version: version <= bound,
        ">": lambda version: version > bound,
        ">=": lambda version: version >= bound,
    }
    return comparisons[operator]


LabelTest = Callable[[str | None], bool]

_COUNTS: dict[str, tuple[int, int]] = {
    "=": (1, 1),
    "!=": (1, 1),
    "in": (1, 1024),
    "not-in": (1, 1024),
    "exists": (0, 0),
    "not-exists": (0, 0),
    "<": (1, 1),
    "<=": (1, 1),
    ">": (1, 1),
    ">=": (1, 1),
    "version": (1, 16),
}


class LabelRule(msgspec.Struct, frozen=True):
    """One compiled rule: ``fits`` takes the label's value, None when the node does not have it."""

    label: str
    text: str
    fits: LabelTest

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether a node's labels satisfy the rule."""
        return self.fits(labels.get(self.label))


def label_rule(label: str, operator: Operator, values: Sequence[str], field: str) -> LabelRule:
    """Compile one rule; ``field`` is its path in the manifest.

    ``!=`` and ``not-in`` also fit nodes without the label; comparisons never do. ``version`` with
    several values fits when any of the ranges does.

    Raises:
        PlacementInvalid: empty label, wrong number of values, not a number, not a version range.
    """
    if not label:
        raise invalid(f"{field}.label", label, "the name of a node label")
    least, most = _COUNTS[operator]
    if not least <= len(values) <= most:
        expected = f"{least}" if least == most else f"{least} to {most}"
        raise invalid(f"{field}.values", list(values), f"{expected} values for operator {operator!r}")
    return LabelRule(label, rule_text(label, operator, values), _label_test(operator, values, field))


def rule_text(label: str, operator: str, values: Sequence[str]) -> str:
    """A rule as text for people: ``disk = ssd``, ``zone in (a, b)``, ``gpu exists``."""
    if operator in ("exists", "not-exists"):
        return f"{label} {operator}"
    if operator in ("in", "not-in"):
        return f"{label} {operator} ({', '.join(values)})"
    return f"{label} {operator} {' or '.join(values)}"


def check_placement(placement: Placement, prefix: str = "placement") -> None:
    """Refuse a placement block that can never work, before it is stored; ``prefix`` is its path.

    Raises:
        PlacementInvalid: naming the field, what was found and what was expected.
    """
    for at, constraint in enumerate(placement.constraints):
        label_rule(constraint.label, constraint.operator, constraint.values, f"{prefix}.constraints[{at}]")
    for at, affinity in enumerate(placement.affinity):
        field = f"{prefix}.affinity[{at}]"
        label_rule(affinity.label, affinity.operator, affinity.values, field)
        check_weight(affinity.weight, -100, field)
    for at, rule in enumerate(placement.anti_affinity):
        field = f"{prefix}.anti_affinity[{at}]"
        check_weight(rule.weight, 0, field)
        pod_selector(rule.selector, field)
    for at, together in enumerate(placement.pod_affinity):
        pod_selector(together.selector, f"{prefix}.pod_affinity[{at}]")
    for at, spread in enumerate(placement.spread):
        field = f"{prefix}.spread[{at}]"
        check_spread(spread, field)
    for at, toleration in enumerate(placement.tolerations):
        field = f"{prefix}.tolerations[{at}]"
        if not toleration.key:
            raise invalid(f"{field}.key", toleration.key, "the key of a taint")
        if toleration.effect not in ("", "no-schedule", "prefer-no-schedule"):
            raise invalid(
                f"{field}.effect", toleration.effect, "'no-schedule', 'prefer-no-schedule' or nothing"
            )


def pod_selector(text: str, field: str) -> selectors.Selector:
    """Parse a selector over pod labels. An empty selector is refused: it would match every pod.

    Raises:
        PlacementInvalid: the selector does not parse, or is empty.
    """
    if not text.strip():
        raise invalid(f"{field}.selector", text, "a label selector such as 'app=web'")
    try:
        return selectors.parse(text, f"{field}.selector")
    except InputInvalid as error:
        raise PlacementInvalid(str(error), field=f"{field}.selector") from error


def check_weight(weight: int, least: int, field: str) -> None:
    """Refuse a weight below ``least`` or above 100.

    Raises:
        PlacementInvalid: the weight is out of range.
    """
    if not least <= weight <= 100:
        raise invalid(f"{field}.weight", weight, f"{least} to 100")


def check_spread(spread: Spread, field: str) -> None:
    """Refuse a spread that cannot work.

    Raises:
        PlacementInvalid: naming the field.
    """
    check_weight(spread.weight, 0, field)
    if not spread.label:
        raise invalid(f"{field}.label", spread.label, "the name of a node label")
    if spread.max_skew < 1:
        raise invalid(f"{field}.max_skew", spread.max_skew, "1 or more")


def compile_constraints(constraints: Sequence[Constraint]) -> tuple[LabelRule, ...]:
    """All hard label rules of a placement block.

    Raises:
        PlacementInvalid: a stored manifest that ``check_placement`` would have refused.
    """
    return tuple(
        label_rule(rule.label, rule.operator, rule.values, f"placement.constraints[{at}]")
        for at, rule in enumerate(constraints)
    )


def invalid(field: str, found: object, expected: str) -> PlacementInvalid:
    """The error for one field: what was found, and what was expected."""
    return PlacementInvalid(f"{field}: found {found!r}, expected {expected}", field=field)


def _label_test(operator: Operator, values: Sequence[str], field: str) -> LabelTest:
    if operator == "exists":
        return lambda value: value is not None
    if operator == "not-exists":
        return lambda value: value is None
    if operator == "version":
        return _version_test(values, field)
    if operator in ("<", "<=", ">", ">="):
        return _number_test(operator, values[0], field)
    wanted = frozenset(values)
    if operator in ("=", "in"):
        return lambda value: value in wanted
    return lambda value: value not in wanted


def _version_test(values: Sequence[str], field: str) -> LabelTest:
    ranges = []
    for text in values:
        test = parse_range(text)
        if test is None:
            raise invalid(f"{field}.values", text, "a version range such as '>=5.10, <7'")
        ranges.append(test)

    def fits(value: str | None) -> bool:
        version = parse_version(value) if value is not None else None
        return version is not None and any(test(version) for test in ranges)

    return fits


def _number_test(operator: str, text: str, field: str) -> LabelTest:
    bound = _number(text)
    if bound is None:
        raise invalid(f"{field}.values", text, f"a number for operator {operator!r}")
    compare: dict[str, Callable[[float], bool]] = {
        "<": lambda number: number < bound,
        "<=": lambda number: number <= bound,
        ">": lambda number: number > bound,
        ">=": lambda number: number >= bound,
    }
    test = compare[operator]

    def fits(value: str | None) -> bool:
        number = _number(value) if value is not None else None
        return number is not None and test(number)

    return fits


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


# A compiled request: its rules are compiled once, so that judging one node costs microseconds.
#
# A manifest that cannot work is refused while it is compiled; judging never fails.


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
