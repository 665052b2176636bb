"""`make test` has a case for each rule between processes and each command of farmctl (promises.toml)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import click
import pytest

from farmd.cli.main import farmctl
from tests import promises

TOLD = "tests/promises.toml names the cases of `make test`: add one, or take out what is gone"


def commands(group: click.Group, *words: str) -> Iterator[str]:
    """All commands below a group, as they are typed."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, *words, name)
        else:
            yield " ".join((*words, name))


def test_every_rule_of_the_protocol_has_a_case() -> None:
    protocol = (promises.TESTS.parent / "docs" / "protocol.md").read_text()
    rules = re.findall(r"^### (R\d+a?):", protocol, re.MULTILINE)
    assert sorted(rules) == sorted(rule for rule, cases in promises.RULES.items() if cases), TOLD


def test_every_command_of_farmctl_has_a_case() -> None:
    listed = {command for run in promises.COMMANDS.values() for command in run}
    assert sorted(set(commands(farmctl))) == sorted(listed), TOLD


@pytest.mark.parametrize("case", sorted(promises.NAMED))
def test_every_case_is_there_and_needs_no_more_than_make_test_has(case: str) -> None:
    file, _, name = case.partition("[")[0].partition("::")
    path = promises.TESTS / file
    assert path.is_file(), TOLD
    functions = [node for node in ast.walk(ast.parse(path.read_text())) if getattr(node, "name", "") == name]
    assert functions, TOLD
    marks = [ast.unparse(mark) for mark in functions[0].decorator_list]  # type: ignore[attr-defined]
    assert "pytest.mark.whole" not in marks
    assert not file.startswith("kubernetes/"), "its API server is built, which only `make test-all` does"


def test_a_case_that_does_not_run_its_commands_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(promises, "COMMANDS", {"integration/test_a.py::test_it": ["rc list", "deploy"]})
    monkeypatch.setattr(promises, "asked", [("rc", "get", "web"), ("deploy", "-f", "x")])
    assert promises.not_run("tests/integration/test_a.py::test_it[1]@group") == ["rc list"]
    assert promises.not_run("tests/integration/test_a.py::test_another") == []
