"""Tables: names are never broken, whatever the terminal's width."""

from __future__ import annotations

import sys

import click
import pytest

from farmd.cli import output
from farmd.cli.output import lines
from farmd.cli.progress import ProgressLine, barred
from farmd.tables.model import Column, Table

ROWS = [("hello", "0123456789abcdef", "blocked", "of 5 nodes 3 are cordoned and 2 have no room for it")]


def table(rows: list[tuple[str, str, str, str]] = ROWS) -> Table:
    titles = ("NAME", "ID", "STATE", "REASON")
    columns = [Column(title, lambda row, at=at: row[at]) for at, title in enumerate(titles)]  # type: ignore[misc]
    return Table("Thing", rows, columns, name=lambda row: row[0], plain=dict)


def test_a_wide_terminal_shows_a_row_a_line() -> None:
    head, row = lines(table(), width=200)
    assert head == "NAME   ID                STATE    REASON"
    assert row == "hello  0123456789abcdef  blocked  of 5 nodes 3 are cordoned and 2 have no room for it"


def test_a_narrow_terminal_folds_the_last_column_only() -> None:
    shown = lines(table(), width=60)
    assert shown[1].startswith("hello  0123456789abcdef  blocked  of 5 nodes")
    assert shown[2].startswith(" " * 34)
    assert " ".join(line[34:] for line in shown[1:]) == ROWS[0][3]
    assert max(map(len, shown)) <= 60


def test_where_the_others_leave_no_room_the_last_column_goes_below_its_line() -> None:
    row = ("a-controller-with-a-longer-name", *ROWS[0][1:])
    assert lines(table([row, ("b", "1", "ready", "")]), width=80) == [
        "NAME                             ID                STATE    REASON",
        "a-controller-with-a-longer-name  0123456789abcdef  blocked",
        "    of 5 nodes 3 are cordoned and 2 have no room for it",
        "b                                1                 ready",
    ]


@pytest.mark.parametrize("width", [0, 10, 40])
def test_where_nothing_is_left_for_the_last_column_lines_stay_whole(width: int) -> None:
    assert len(lines(table(), width=width)) == 2


def test_a_last_column_of_nothing_but_blanks_is_empty() -> None:
    assert lines(table([("a", "1", "ready", "\n" * 90)]), width=60)[1] == "a     1   ready"


def test_colours_are_those_of_states_and_change_no_text() -> None:
    rows = [("ready", "0", "blocked", "lost")]
    shown = lines(table(rows), colour=True)[1]
    assert "\x1b[31mblocked" in shown
    assert shown.startswith("ready  0")  # a name is not a state
    assert shown.endswith("lost")


def test_one_long_row_does_not_break_the_other_lines_on_a_terminal() -> None:
    rows = [("a", "1", "long " * 40, "why"), ("b", "2", "short", "why")]
    head, below, *_ = lines(table(rows), width=80, colour=True)
    assert click.unstyle(head) == "NAME  ID  STATE"
    assert below == "    REASON"


def test_control_characters_of_the_store_never_reach_a_terminal() -> None:
    (shown,) = lines(table([("a\x1b[2Jb", "0", "x", "y\n")]))[1:]
    assert "\x1b" not in shown
    assert "\n" not in shown


def wide_table(**texts: str) -> Table:
    columns = [Column(title, lambda _, text=text: text) for title, text in texts.items()]  # type: ignore[misc]
    return Table("Thing", [0], columns, name=str, plain=dict)


def test_a_terminal_without_room_for_all_columns_leaves_out_the_last_that_are_no_state_and_says_which() -> (
    None
):
    found = wide_table(NAME="x" * 30, STATE="ready", RESTARTS="7", AGE="5h", UP="22h", REASON="why " * 9)
    said: list[str] = []
    assert lines(found, width=51, note=said.append) == [
        f"{'NAME':30}  STATE  RESTARTS",
        "    REASON",
        f"{'x' * 30}  ready  7",
        "    why why why why why why why why why",
    ]
    assert said == ["the terminal has no room for AGE, UP: see -o wide"]
    assert lines(found, width=60, wide=True)[0] == f"{'NAME':30}  STATE  RESTARTS  AGE  UP"


def test_an_empty_column_takes_no_room_where_there_is_little() -> None:
    found = wide_table(NAME="x" * 30, STATE="ready", TAINTS="", AGE="5h", REASON="")
    assert lines(found, width=45, note=pytest.fail) == [f"{'NAME':30}  STATE  AGE", f"{'x' * 30}  ready  5h"]


def test_a_list_without_blanks_folds_behind_its_commas_and_a_name_not_at_its_hyphen() -> None:
    found = wide_table(NAME="farm-1", HOLDS="housekeeping=2,jobs=1,schedules=1 on node-1/squares-worker")
    assert [line.strip() for line in lines(found, width=38)[1:]] == [
        "farm-1  housekeeping=2,jobs=1,",
        "schedules=1 on",
        "node-1/squares-worker",
    ]


def test_a_wait_shows_a_bar_and_on_a_narrow_terminal_the_whole_reason_in_its_place() -> None:
    step = ProgressLine(
        "rc/hello", "3 of 5 placed; blocked: every node has one: raise replicas_per_node", 2, 5
    )
    assert barred(step, 120) == [f"rc/hello {'█' * 12}{'░' * 8} {step.text}"]
    assert barred(step, 60) == [
        "rc/hello 3 of 5 placed; blocked: every node has one:",
        "    raise replicas_per_node",
    ]
    assert barred(ProgressLine("node/n1", "drained", 0, 1), 60) == [f"node/n1 {'█' * 20} drained"]
    assert barred(ProgressLine("job/sum", "pending", 0, 0), 60) == ["job/sum pending"]
    assert barred(ProgressLine("node/n1", "9 pods left", 9, 1), 60) == [f"node/n1 {'░' * 20} 9 pods left"]


def test_a_line_of_a_plan_that_does_not_fit_goes_on_below_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "width_of", lambda _: 60)
    line = "  pod.args: one two three four five six -> seven eight nine ten eleven twelve"
    assert output.hanging(line, sys.stdout) == [
        "  pod.args: one two three four five six -> seven eight nine",
        "      ten eleven twelve",
    ]
    assert output.hanging("  short", sys.stdout) == ["  short"]
