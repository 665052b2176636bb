"""``docs/trust.md`` says of each boundary which test holds it: each of these tests must be there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TRUST = (ROOT / "docs" / "trust.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/[^`]+)`", TRUST)))
HELD = re.compile(r"^\| (?P<said>.+) \| (?P<held>[^|]+) \|$")


def rows() -> list[tuple[str, str]]:
    """What the tables with a column ``held by`` say, and by what it is held."""
    found, inside = list[tuple[str, str]](), False
    for line in TRUST.splitlines():
        row = HELD.match(line)
        if row is None:
            inside = inside and line.startswith("|--")
        elif row["held"] == "held by":
            inside = True
        elif inside:
            found.append((row["said"], row["held"]))
    return found


@pytest.mark.parametrize("named", NAMED)
def test_a_test_that_is_named_there_exists(named: str) -> None:
    path, _, name = named.partition("::")
    assert (ROOT / path).is_file()
    if name:
        assert re.search(rf"^(async )?def {re.escape(name)}\(", (ROOT / path).read_text(), re.MULTILINE)


def test_each_statement_names_a_test_that_holds_it() -> None:
    assert len(rows()) > 25
    assert [said for said, held in rows() if "`tests/" not in held] == []
