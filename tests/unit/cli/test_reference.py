"""docs/cli.md names every command with its options and an example, as the commands are now."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from farmd.cli.main import farmctl
from farmd.cli.reference import BEGIN, END, put, reference

PAGE = Path(__file__).parents[3] / "docs/cli.md"


def test_the_page_is_what_make_docs_writes() -> None:
    page = PAGE.read_text("utf-8")
    assert put(page, reference(farmctl, "farmctl")) == page, "run make docs"


def test_every_command_is_there_with_an_example() -> None:
    made = reference(farmctl, "farmctl")
    sections = [part for part in made.split("\n####")[1:] if "```sh" in part]
    assert len(sections) > 100
    lacking = [part.splitlines()[0] for part in sections if "# for example" not in part]
    assert lacking == []


def test_a_help_text_keeps_its_words_and_lines() -> None:
    @click.group()
    def tool() -> None:
        """Only its command is read."""

    @tool.command("go", help="Send it to <there>.\n\n\b\nkept\n  as is")
    @click.option("--fast", is_flag=True, help="At once.")
    def go() -> None:
        """Only its help is read."""

    made = reference(tool, "tool").splitlines()
    expected = [
        "### go",
        "tool go [OPTIONS]",
        "Send it to &lt;there>.",
        "kept",
        "  as is",
        "- `--fast`: At once.",
    ]
    assert [line for line in expected if line not in made] == []


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="found no lines"):
        put("# farmctl\n", "made")
    assert put(f"a\n{BEGIN}\nold\n{END}\nz\n", "made") == f"a\n{BEGIN}\n\nmade\n{END}\nz\n"
