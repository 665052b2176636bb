"""Whatever a person mistypes, the answer is one line that names it, and a hint at most."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from farmd.cli.main import farmctl
from farmd.cli.manual import below
from tests.farmctl import Farmctl
from tests.unit.cli.bad_inputs import DOCUMENTS, FIELDS, LINES, OTHER_COMMANDS, TEXTS, USAGE, VERBS, changed


def every(context: click.Context) -> Iterator[click.Context]:
    """The commands below a group that are no groups."""
    for each in below(context):
        yield from every(each) if isinstance(each.command, click.Group) else [each]


NOWHERE = Farmctl("127.0.0.1:1", inside=True, variables={"KUBECONFIG": "/nonexistent"})
"""Where nothing is configured, and no Consul answers."""


def refused(arguments: list[str], word: str, code: int) -> None:
    found = NOWHERE(*arguments)
    first, *more = found.err.splitlines()
    assert found.code == code, found
    assert first.startswith("farmctl: ")
    assert [line for line in more if not line.startswith("hint: ")] == []
    assert len(more) <= 1
    assert word in found.err
    assert max(map(len, found.err.splitlines())) < 1000
    assert found.out == ""


@pytest.mark.parametrize(("kind", "path", "value", "word"), FIELDS, ids=str)
def test_a_field_that_does_not_fit_is_named(
    tmp_path: Path, kind: str, path: str, value: Any, word: str
) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(changed(DOCUMENTS[kind], path, value), "utf-8")
    refused([*VERBS[kind], "-f", str(file)], word, USAGE)


@pytest.mark.parametrize(("text", "word"), TEXTS, ids=[str(number) for number in range(len(TEXTS))])
def test_a_file_that_is_no_document_is_named(tmp_path: Path, text: bytes, word: str) -> None:
    file = tmp_path / "f.yaml"
    file.write_bytes(text)
    refused(["rc", "create", "-f", str(file)], word, USAGE)


@pytest.mark.parametrize(("line", "text", "word"), OTHER_COMMANDS)
def test_a_file_for_another_command_is_refused_with_that_command(
    tmp_path: Path, line: str, text: str, word: str
) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(text, "utf-8")
    refused(shlex.split(line.replace("FILE", str(file))), word, USAGE)


@pytest.mark.parametrize(("line", "word", "code"), LINES, ids=[line for line, _, _ in LINES])
def test_a_command_line_that_cannot_work_is_one_line(line: str, word: str, code: int) -> None:
    refused(shlex.split(line), word, code)


def test_there_are_two_hundred_of_them() -> None:
    assert len(FIELDS) + len(TEXTS) + len(LINES) >= 250


COMMANDS = {context.command_path: context for context in every(click.Context(farmctl, info_name="farmctl"))}
"""Every command by its words."""


def words(path: str, name: str) -> list[str]:
    """A command with a name wherever it needs an argument, and with the options that it needs."""
    needed = [param for param in COMMANDS[path].command.params if param.required]
    options = [text for param in needed if isinstance(param, click.Option) for text in (param.opts[0], "x")]
    arguments = [
        name if param.name in NAMES else "1" for param in needed if isinstance(param, click.Argument)
    ]
    return [*path.split()[1:], *options, "--", *arguments]


NAMES = ("name", "names", "pod", "target", "job")


@pytest.mark.parametrize("path", COMMANDS)
def test_each_command_refuses_options_and_arguments_that_it_has_not(path: str) -> None:
    refused([*path.split()[1:], "--nosuch"], "--nosuch", USAGE)
    many = any(isinstance(each, click.Argument) and each.nargs < 0 for each in COMMANDS[path].command.params)
    if not many:
        refused([*words(path, "web"), "a", "b", "c", "d"], "", USAGE)


@pytest.mark.parametrize("path", COMMANDS)
def test_each_command_that_takes_a_name_refuses_one_that_no_object_can_have(path: str) -> None:
    if any(param.name in NAMES and param.required for param in COMMANDS[path].command.params):
        for name in ("a\nb", "\x1b[2J", "a/../b", "", "\u202eweb"):
            found = NOWHERE(*words(path, name))
            assert (found.code, found.out, len(found.err.splitlines()) <= 2) == (USAGE, "", True), (
                name,
                found,
            )
            assert all(letter.isprintable() for letter in found.err.replace("\n", "")), found.err
