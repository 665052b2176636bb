"""What the code records is in the table of metrics: read from the source, so that no path is missed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from farmd.observe.metrics import LOOPS, table

ROOT = Path(__file__).resolve().parents[3]
KIND = {"count": "counter", "observe": "histogram", "set": "gauge"}
ROWS = {row.name: row for row in table()}


def calls() -> Iterator[tuple[str, ast.Call]]:
    for package in ("store", "scheduler", "alerting", "farmd"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", node


def literal(node: ast.Call) -> str:
    first = node.args[0] if node.args else None
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""


RECORDS = [
    pytest.param(node, id=where)
    for where, node in calls()
    if node.func.attr in KIND and literal(node).startswith("farmd_")
]
REGISTERED = [
    pytest.param(node, id=where)
    for where, node in calls()
    if node.func.attr == "loop" and literal(node) and len(node.args) == 2
]


@pytest.mark.parametrize("node", RECORDS)
def test_each_record_fits_its_row(node):
    row = ROWS[literal(node)]
    assert KIND[node.func.attr] == row.kind
    assert {keyword.arg for keyword in node.keywords} == set(row.labels)
    for keyword in node.keywords:
        values = row.labels[keyword.arg]
        if isinstance(keyword.value, ast.Constant) and values:
            assert keyword.value.value in values


@pytest.mark.parametrize("node", REGISTERED)
def test_each_loop_has_a_known_name(node):
    assert literal(node) in LOOPS


def test_something_was_found():
    assert len(RECORDS) > 10
    assert len(REGISTERED) > 3
