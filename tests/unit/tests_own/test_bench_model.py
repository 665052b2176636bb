"""The model of large fleets: its arithmetic, and how near it is to what P3 measured."""

from __future__ import annotations

import json

import pytest

from bench.model import CONSUL, LIMITS, MEASURED, Fleet, cells, main, predicted

OLD = CONSUL["1.8"]
FLEET = Fleet(controllers=10_000, pods=50_000, nodes=2_000)


@pytest.mark.parametrize(("fleet", "measured"), MEASURED)
def test_predictions_are_within_a_fifth_of_what_was_measured(
    fleet: Fleet, measured: dict[str, float]
) -> None:
    found = predicted(fleet, OLD)
    for name, value in measured.items():
        assert getattr(found, name) == pytest.approx(value, rel=0.2), name


def test_what_renewals_cost_grows_with_nodes_and_with_a_shorter_ttl() -> None:
    def renewals(**fields: float) -> float:
        alone = {"controllers": 0, "pods": 0, "farms": 0, "changes": 0.0, **fields}
        return predicted(Fleet(**alone), OLD).consul_cores  # type: ignore[arg-type]

    assert renewals(nodes=2_000, ttl=30.0) < renewals(nodes=2_000, ttl=15.0)
    assert renewals(nodes=4_000, ttl=15.0) == pytest.approx(2 * renewals(nodes=2_000, ttl=15.0), rel=0.01)


def test_a_change_costs_less_in_a_tree_that_is_read_in_parts() -> None:
    small, large = (predicted(Fleet(count, 0, 0), OLD).reaction_milliseconds for count in (30_000, 60_000))
    assert large < small


def test_there_are_as_few_cells_as_the_limits_allow() -> None:
    fleet = Fleet(controllers=200_000, pods=1_000_000, nodes=40_000)
    number = cells(fleet, OLD)
    within = [
        all(getattr(predicted(fleet.cell(n), OLD), name) <= most for name, most in LIMITS.items())
        for n in (number - 1, number)
    ]
    assert within == [False, True]


def test_the_command_prints_the_whole_fleet_and_one_cell(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--pods", "50000", "--nodes", "2000", "--consul", "1.14"])
    whole, cell = map(json.loads, capsys.readouterr().out.splitlines())
    assert (whole["controllers"], whole["nodes"]) == (10_000, 2_000)
    assert cell["name"] == "each of 1 cells"
