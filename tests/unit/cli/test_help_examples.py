"""Each command's help has an example, which the command takes."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from farmd.__main__ import main as farmd
from farmd.cli.help_examples import example
from farmd.cli.main import farmctl


def commands(group: click.Group, path: str) -> Iterator[str]:
    context = click.Context(group, info_name=path)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}"


@pytest.mark.parametrize("path", list(commands(farmctl, "farmctl")))
def test_each_command_has_an_example_that_it_takes(path: str) -> None:
    found = example(path)
    words = shlex.split(found.partition(" > ")[0])
    assert words[: len(path.split())] == path.split()
    command: click.Command = farmctl
    context, args = click.Context(farmctl, info_name="farmctl"), words[1:]
    while isinstance(command, click.Group):
        name, made, args = command.resolve_command(context, args)
        assert made is not None
        context, command = click.Context(made, parent=context, info_name=name), made
    taken = command.make_context(context.info_name, args, parent=context.parent)
    # Behind an image, an option would be one of the words of its command.
    words = [word for value in taken.params.values() if isinstance(value, tuple) for word in value]
    assert not [word for word in words if str(word).startswith("-")]
    assert found in CliRunner().invoke(farmctl, [*path.split()[1:], "--help"]).output


@pytest.mark.parametrize("program", [farmctl, farmd], ids=["farmctl", "farmd"])
def test_help_cuts_no_line_of_a_command_on_a_terminal_of_80_columns(program: click.Group) -> None:
    groups = [[]]
    context = click.Context(program)
    found = ((name, program.get_command(context, name)) for name in program.list_commands(context))
    groups += [[name] for name, command in found if isinstance(command, click.Group)]
    for words in groups:
        shown = CliRunner().invoke(program, [*words, "--help"], terminal_width=80).output
        assert [line for line in shown.splitlines() if line.endswith("...") and "Usage" not in line] == []
