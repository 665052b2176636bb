"""The form of the manual's pages: lines and rows that fit a screen, and tables that can be read at a glance.

Lines have at most 120 characters, rows of tables 200, and a section at most 12 rows.
Samples of files parse.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from farmd.cli.reference import BEGIN, END

ROOT = Path(__file__).parents[3]
LINE, ROW, ROWS = 120, 200, 12
# What `make docs` writes into docs/cli.md from the commands' own help.
MADE = re.compile(re.escape(BEGIN) + ".*" + re.escape(END), re.DOTALL)
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
SEPARATOR = re.compile(r"\|[-:| ]+\|")
# A row of docs/trust.md names the tests that hold it: their names count for nothing.
TESTS = re.compile(r"`tests/[^`]+`(, )?")


def faults(text: str) -> Iterator[str]:
    """What is too wide or too long in a page, each with its line."""
    code, section, rows = False, "the beginning", 0
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            code = not code
        elif not code and line.startswith("#"):
            section, rows = line.lstrip("# "), 0
        if code or not line.startswith("|"):
            if len(line) > LINE:
                yield f"line {number}: found {len(line)} characters, expected at most {LINE}"
        elif SEPARATOR.fullmatch(line):
            rows -= 1  # the row before it is the head
        else:
            rows += 1
            if len(TESTS.sub("", line)) > ROW:
                yield f"line {number}: found a row of {len(line)} characters, expected at most {ROW}"
            if rows == ROWS + 1:
                yield f"line {number}: found more than {ROWS} rows below {section!r}: add a subheading"


@pytest.mark.parametrize("page", PAGES)
def test_each_sample_of_a_file_parses(page: str) -> None:
    text = (ROOT / page).read_text()
    for sample in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL):
        assert list(yaml.safe_load_all(sample))
    for sample in re.findall(r"```toml\n(.*?)```", text, re.DOTALL):
        assert tomllib.loads(sample)


@pytest.mark.parametrize("page", PAGES)
def test_each_page_fits_a_screen(page: str) -> None:
    assert list(faults(MADE.sub("", (ROOT / page).read_text()))) == []


def test_faults_are_found() -> None:
    table = "|a|b|\n|---|---|\n" + "|1|2|\n" * 13
    assert [fault.partition(":")[0] for fault in faults(f"{'x' * 121}\n|{'y' * 200}|\n")] == [
        "line 1",
        "line 2",
    ]
    assert [fault.partition(":")[0] for fault in faults(f"# T\n\n{table}")] == ["line 17"]
    assert not list(faults(f"```\n{'|' * 100}\n```\n"))
