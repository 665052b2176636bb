"""The reference of ``farmctl`` in docs/cli.md, made from the commands themselves by ``make docs``.

A test compares the page with this, so no command and no option is missing there.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import click

from farmd.cli.help_examples import example
from farmd.cli.manual import below

BEGIN = "<!-- `make docs` writes what follows from the commands' own help: edit that -->"
END = "<!-- end of what `make docs` writes -->"
WIDTH = 120


def reference(program: click.Command, name: str) -> str:
    """Every command: how it is typed, what it does, its own options and an example."""
    return "\n".join(_lines(click.Context(program, info_name=name)))


def put(page: str, made: str) -> str:
    """A page with what was made between its marks.

    Raises:
        ValueError: the page has no marks.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"found no lines {BEGIN!r} and {END!r}, expected both")
    return f"{before}{BEGIN}\n\n{made}\n{END}{after}"


def _lines(ctx: click.Context, depth: int = 0) -> Iterator[str]:
    inside = list(below(ctx))
    if depth == 0:
        for sub in inside:
            yield from _lines(sub, 1)
        return
    words = ctx.command_path.partition(" ")[2]
    yield from (f"{'###' if depth == 1 else '####'} {words}", "")
    if inside:
        yield from (*_wrapped(ctx.command.get_short_help_str(400)), "")
        for sub in inside:
            yield from _lines(sub, depth + 1)
        return
    usage = " ".join(ctx.command.collect_usage_pieces(ctx))
    yield from ("```sh", f"{ctx.command_path} {usage}".rstrip())
    yield from (*([f"{shown}   # for example"] if (shown := example(ctx.command_path)) else []), "```", "")
    yield from _prose(ctx.command.help or "")
    if options := list(_options(ctx)):
        yield from (*options, "")


def _prose(text: str) -> Iterator[str]:
    """The paragraphs of a help text; click's ``\\b`` at the beginning of one keeps its lines."""
    for paragraph in text.split("\n\n"):
        kept, words = paragraph.strip().startswith("\b"), paragraph.replace("\b", "").strip("\n")
        if kept:
            yield from ("```", *(line.rstrip() for line in words.splitlines()), "```", "")
        elif words.strip():
            yield from (*_wrapped(words), "")


def _options(ctx: click.Context) -> Iterator[str]:
    """The options of a command, but for those that all commands share."""
    for parameter in ctx.command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is not None and record[1] and parameter.expose_value and "--help" not in parameter.opts:
            yield from _wrapped(f"`{record[0]}`: {record[1]}", first="- ", next_="  ")


def _wrapped(text: str, *, first: str = "", next_: str = "") -> list[str]:
    plain = " ".join(text.replace("``", "`").split()).replace("<", "&lt;")
    return textwrap.wrap(
        plain,
        WIDTH,
        initial_indent=first,
        subsequent_indent=next_,
        break_long_words=False,
        break_on_hyphens=False,
    )


def main() -> None:
    """Write the reference into the page that is named."""
    from farmd.cli.main import farmctl

    page = Path(sys.argv[1])
    page.write_text(put(page.read_text("utf-8"), reference(farmctl, "farmctl")), "utf-8")


if __name__ == "__main__":
    main()
