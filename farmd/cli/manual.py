"""Manual pages and completion scripts of ``farmd`` and ``farmctl``, made from the commands themselves.

One page for each program and one for each of its first words (``farmctl-rc(1)``), as git's are. The build of
a wheel writes them; nothing of this runs in a farm.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import click
from click.shell_completion import get_completion_class

from farmd.cli.options import Exampled

# ``farmctl completion``: the script that a shell needs.


@click.command("completion", cls=Exampled)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell; names of objects are completed, too.

    \b
    bash: source <(farmctl completion bash)
    zsh:  source <(farmctl completion zsh)
    fish: farmctl completion fish | source
    """

    click.echo(script("farmctl", ctx.find_root().command, shell))


PLACES = {
    "bash": "bash-completion/completions/{}",
    "zsh": "zsh/site-functions/_{}",
    "fish": "fish/vendor_completions.d/{}.fish",
}
"""Where each shell looks for completions, below ``share/``."""


def completions(programs: Mapping[str, click.Command]) -> dict[str, str]:
    """The completion scripts by their path below ``share/``."""
    return {
        place.format(name): script(name, command, shell)
        for name, command in programs.items()
        for shell, place in PLACES.items()
    }


def script(name: str, command: click.Command, shell: str) -> str:
    """The script that makes a shell complete the words of a program."""
    kind = get_completion_class(shell)
    assert kind is not None
    return kind(command, {}, name, f"_{name.upper()}_COMPLETE").source()


def pages(programs: Mapping[str, click.Command], version: str) -> dict[str, str]:
    """The pages by their path below ``share/``."""
    found: dict[str, str] = {}
    for name, command in programs.items():
        root = click.Context(command, info_name=name)
        found[f"man/man1/{name}.1"] = page(root, version)
        for ctx in below(root):
            found[f"man/man1/{name}-{ctx.info_name}.1"] = page(ctx, version, deep=True)
    return found


def page(ctx: click.Context, version: str, *, deep: bool = False) -> str:
    """One page in roff. ``deep``: with the commands below in full, else with a line for each."""
    name = ctx.command_path.replace(" ", "-")
    lines = [
        f'.TH "{_plain(name.upper())}" 1 "" "farmd {_plain(version)}" "farmd"',
        ".SH NAME",
        f"{_plain(name)} \\- {_plain(ctx.command.get_short_help_str(200).rstrip('.'))}",
        ".SH SYNOPSIS",
        _synopsis(ctx),
        ".SH DESCRIPTION",
        *_prose(ctx.command.help or ""),
    ]
    if options := list(_options(ctx)):
        lines += [".SH OPTIONS", *options]
    inside = list(below(ctx))
    if inside:
        lines.append(".SH COMMANDS")
    for sub in inside:
        lines += _command(sub) if deep else [".TP", f"\\fB{_plain(str(sub.info_name))}\\fR", _short(sub)]
    if ctx.parent is not None:
        lines += [".SH SEE ALSO", f"\\fB{_plain(str(ctx.parent.info_name))}\\fR(1)"]
    return "\n".join(lines) + "\n"


def _command(ctx: click.Context) -> Iterator[str]:
    """A command of a page, in full, and the commands below it."""
    yield f'.SS "{_plain(ctx.command_path)}"'
    yield _synopsis(ctx)
    yield ".PP"
    yield from _prose(ctx.command.help or "")
    yield from _options(ctx)
    for sub in below(ctx):
        yield from _command(sub)


def below(ctx: click.Context) -> Iterator[click.Context]:
    """The commands of a group, in the order of its help."""
    group = ctx.command
    if isinstance(group, click.Group):
        for name in group.list_commands(ctx):
            command = group.get_command(ctx, name)
            if command is not None and not command.hidden:
                yield click.Context(command, parent=ctx, info_name=name)


def _synopsis(ctx: click.Context) -> str:
    pieces = " ".join(ctx.command.collect_usage_pieces(ctx))
    return f"\\fB{_plain(ctx.command_path)}\\fR {_plain(pieces)}".rstrip()


def _options(ctx: click.Context) -> Iterator[str]:
    """The options of a command; those that all commands have stand in the program's own page alone."""
    for parameter in ctx.command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        shared = ctx.parent is not None and not parameter.expose_value
        if record is not None and record[1] and not shared:
            yield from (".TP", f"\\fB{_plain(record[0])}\\fR", _plain(record[1]))


def _short(ctx: click.Context) -> str:
    return _plain(ctx.command.get_short_help_str(200))


def _prose(text: str) -> Iterator[str]:
    """The paragraphs of a help text; click's ``\\b`` at the beginning of one keeps its lines."""
    for paragraph in text.split("\n\n"):
        kept, words = paragraph.strip().startswith("\b"), paragraph.replace("\b", "").strip("\n")
        if kept:
            yield from (".nf", *(_plain(line) for line in words.splitlines()), ".fi")
        elif words.strip():
            yield _plain(" ".join(words.split()))
        yield ".PP"


def _plain(text: str) -> str:
    """Text that roff takes as it is, in ASCII."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    letters = "".join(c if c.isascii() else f"\\[u{ord(c):04X}]" for c in escaped)
    return f"\\&{letters}" if letters.startswith((".", "'")) else letters
