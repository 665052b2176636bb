"""The manual pages say what the commands say, and nothing in a help text is read as a command of roff."""

from __future__ import annotations

import click
import pytest

from farmd.__main__ import main
from farmd.cli.main import farmctl
from farmd.cli.manual import completions, page, pages

PROGRAMS = {"farmd": main, "farmctl": farmctl}


@pytest.fixture(scope="module")
def written() -> dict[str, str]:
    return pages(PROGRAMS, "1.2.3")


def test_each_first_word_has_a_page_that_names_each_of_its_verbs(written):
    for name, program in PROGRAMS.items():
        ctx = click.Context(program, info_name=name)
        assert isinstance(program, click.Group)
        for word in program.list_commands(ctx):
            text = written[f"man/man1/{name}-{word}.1"]
            command = program.get_command(ctx, word)
            assert command is not None
            verbs = command.list_commands(click.Context(command)) if isinstance(command, click.Group) else []
            assert [
                verb for verb in verbs if f'.SS "{name} {word} {verb}"' not in text.replace("\\-", "-")
            ] == []


def test_a_page_bears_the_version(written):
    assert written["man/man1/farmctl-rc.1"].startswith('.TH "FARMCTL\\-RC" 1 "" "farmd 1.2.3"')


def test_pages_are_ascii_and_no_line_of_help_is_a_command_of_roff():
    @click.command(help=".so /etc/passwd …\n\n\b\n'br\n  a\\b")
    @click.option("--dry-run", is_flag=True, help=".TH")
    def odd() -> None:
        """Only its help is read."""

    text = page(click.Context(odd, info_name="odd"), "1")
    assert text.isascii()
    for line in ("\\&.so /etc/passwd \\[u2026]", "\\&'br", "  a\\eb", "\\fB\\-\\-dry\\-run\\fR", "\\&.TH"):
        assert line in text.splitlines(), text


def test_every_shell_completes_both_programs():
    assert {path for path, text in completions(PROGRAMS).items() if "_COMPLETE" in text} == {
        path
        for name in PROGRAMS
        for path in (
            f"bash-completion/completions/{name}",
            f"zsh/site-functions/_{name}",
            f"fish/vendor_completions.d/{name}.fish",
        )
    }
