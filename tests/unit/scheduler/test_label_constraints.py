"""Operators on node labels and version ranges, and the one line for each that cannot work."""

from __future__ import annotations

import pytest

from scheduler.constraints import check_placement, label_rule, parse_range, parse_version
from scheduler.errors import PlacementInvalid
from store.manifests import Affinity, AntiAffinity, Constraint, Operator, Placement, Spread, Toleration


@pytest.mark.parametrize(
    ("operator", "values", "fits", "fails"),
    [
        ("=", ["ssd"], ["ssd"], ["hdd", "", None]),
        ("!=", ["ssd"], ["hdd", "", None], ["ssd"]),
        ("in", ["a", "b"], ["a", "b"], ["c", None]),
        ("not-in", ["a", "b"], ["c", None], ["a", "b"]),
        ("exists", [], ["", "x"], [None]),
        ("not-exists", [], [None], ["", "x"]),
        ("<", ["10"], ["9", "-1", "9.99"], ["10", "11", "many", "nan", None]),
        ("<=", ["10"], ["10", "9"], ["10.01", None]),
        (">", ["10"], ["11", "1e3"], ["10", "9", "inf", None]),
        (">=", ["10"], ["10", "10.0"], ["9", "", None]),
        ("version", [">=5.10, <7"], ["5.10", "5.10.0-8-amd64", "6.1"], ["5.9", "7.0", "7.0.0", "new", None]),
        ("version", ["<1", ">=2"], ["0.9", "2", "v2.1"], ["1.0", "1.9.9"]),
        ("version", ["~>1.4"], ["1.4", "1.9"], ["1.3.9", "2.0", "2.0-rc1"]),
        ("version", ["~>1.4.2"], ["1.4.2", "1.4.9"], ["1.5", "1.4.1"]),
        ("version", ["1.2"], ["1.2", "1.2.0", "v1.2+build"], ["1.2.1", "1.2-rc1"]),
        ("version", ["!=1.2"], ["1.3"], ["1.2.0"]),
    ],
)
def test_operators(
    operator: Operator, values: list[str], fits: list[str | None], fails: list[str | None]
) -> None:
    rule = label_rule("label", operator, values, "field")
    assert [value for value in fits if not rule.fits(value)] == []
    assert [value for value in fails if rule.fits(value)] == []


def test_versions_are_ordered() -> None:
    ordered = ["1.0-dev", "1.0-alpha", "1.0-alpha2", "1.0b".replace("b", "-beta1"), "1.0-rc1", "1.0", "1.0.1"]
    ordered += ["1.2", "1.10", "2"]
    parsed = [parse_version(text) for text in ordered]
    assert None not in parsed
    assert parsed == sorted(parsed)  # type: ignore[type-var]
    assert len(set(parsed)) == len(parsed)


@pytest.mark.parametrize("text", ["", "x", "1.2.x", "1..2", ">1", "latest"])
def test_what_is_no_version(text: str) -> None:
    assert parse_version(text) is None


@pytest.mark.parametrize("text", ["", "x", ">=5.10 <7", "=>5", ">=5,", "~5", ">="])
def test_what_is_no_range(text: str) -> None:
    assert parse_range(text) is None


@pytest.mark.parametrize(
    ("placement", "line"),
    [
        (
            Placement(constraints=[Constraint("", "exists")]),
            "constraints[0].label: found '', expected the name of a node label",
        ),
        (
            Placement(constraints=[Constraint("a", "exists"), Constraint("a", "=", ["x", "y"])]),
            "constraints[1].values: found ['x', 'y'], expected 1 values for operator '='",
        ),
        (
            Placement(constraints=[Constraint("a", "in")]),
            "constraints[0].values: found [], expected 1 to 1024 values for operator 'in'",
        ),
        (
            Placement(constraints=[Constraint("a", "<", ["many"])]),
            "constraints[0].values: found 'many', expected a number for operator '<'",
        ),
        (
            Placement(constraints=[Constraint("a", "version", ["new"])]),
            "constraints[0].values: found 'new', expected a version range such as '>=5.10, <7'",
        ),
        (
            Placement(affinity=[Affinity("a", "exists", weight=101)]),
            "affinity[0].weight: found 101, expected -100 to 100",
        ),
        (
            Placement(anti_affinity=[AntiAffinity("")]),
            "anti_affinity[0].selector: found '', expected a label selector such as 'app=web'",
        ),
        (
            Placement(anti_affinity=[AntiAffinity("a", weight=-1)]),
            "anti_affinity[0].weight: found -1, expected 0 to 100",
        ),
        (
            Placement(spread=[Spread("zone", max_skew=0)]),
            "spread[0].max_skew: found 0, expected 1 or more",
        ),
        (Placement(spread=[Spread("")]), "spread[0].label: found '', expected the name of a node label"),
        (
            Placement(tolerations=[Toleration("")]),
            "tolerations[0].key: found '', expected the key of a taint",
        ),
        (
            Placement(tolerations=[Toleration("a", effect="no-execute")]),
            "tolerations[0].effect: found 'no-execute', "
            "expected 'no-schedule', 'prefer-no-schedule' or nothing",
        ),
    ],
)
def test_a_placement_that_cannot_work_is_refused_with_one_line(placement: Placement, line: str) -> None:
    with pytest.raises(PlacementInvalid) as refused:
        check_placement(placement, "web.yaml: pod.placement")
    assert refused.value.message == f"web.yaml: pod.placement.{line}"


def test_a_selector_that_does_not_parse_names_its_field() -> None:
    with pytest.raises(
        PlacementInvalid, match=r"^web\.yaml: pod\.placement\.anti_affinity\[0\]\.selector"
    ) as refused:
        check_placement(Placement(anti_affinity=[AntiAffinity("app in (")]), "web.yaml: pod.placement")
    assert "\n" not in refused.value.message


def test_a_good_placement_passes() -> None:
    check_placement(
        Placement(
            constraints=[Constraint("kernel", "version", [">=5.10"])],
            affinity=[Affinity("disk", values=["ssd"], weight=-100)],
            anti_affinity=[AntiAffinity("app=web", "rack")],
            spread=[Spread("zone", hard=True)],
            tolerations=[Toleration("gpu", effect="no-schedule")],
        )
    )
