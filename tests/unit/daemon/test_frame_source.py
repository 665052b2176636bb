"""What the code records is in the table of metrics: read from the source, so that no path is missed."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

from farmd.observe.metrics import LOOPS, table

ROOT = Path(__file__).resolve().parents[3]
KIND = {"count": "counter", "observe": "histogram", "set": "gauge"}
ROWS = {row.name: row for row in table()}


@functools.cache
def calls() -> list[tuple[str, ast.Call]]:
    return [
        (f"{path.relative_to(ROOT)}:{node.lineno}", node)
        for package in ("store", "scheduler", "alerting", "farmd")
        for path in sorted((ROOT / package).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    ]


def literal(node: ast.Call) -> str:
    first = node.args[0] if node.args else None
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""


def test_each_record_fits_its_row():
    records = [
        (where, node)
        for where, node in calls()
        if node.func.attr in KIND and literal(node).startswith("farmd_")
    ]
    assert len(records) > 10
    for where, node in records:
        row = ROWS[literal(node)]
        assert KIND[node.func.attr] == row.kind, where
        assert {keyword.arg for keyword in node.keywords} == set(row.labels), where
        for keyword in node.keywords:
            values = row.labels[keyword.arg]
            if isinstance(keyword.value, ast.Constant) and values:
                assert keyword.value.value in values, where


def test_each_loop_has_a_known_name():
    registered = {
        literal(node)
        for _, node in calls()
        if node.func.attr == "loop" and literal(node) and len(node.args) == 2
    }
    assert len(registered) > 3
    assert registered - set(LOOPS) == set()
