"""What a text names is linked where it has a page, and empty lists say a command that exists."""

from __future__ import annotations

import shlex

import click
import pytest

from farmd import kinds
from farmd.__main__ import main as farmd
from farmd.cli.main import farmctl
from farmd.kinds import KINDS, OTHERS
from farmd.web import html

PROGRAMS: dict[str, click.Command] = {"farmctl": farmctl, "farmd": farmd}
FIRST = [kinds.first(family) for family in (*KINDS, *OTHERS) if kinds.first(family)]


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("web", "/controllers/web"),
        ("rc/web", "/controllers/web"),
        ("daemonset/logs", "/daemonsets/logs"),
        ("ds/logs", "/daemonsets/logs"),
        ("node/n1", "/nodes/n1"),
        ("service/front", "/services/front"),
        ("job/<script>", "/jobs/%3Cscript%3E"),
        ("4f8be7be (gone)", ""),
        ("manifest/4f8b", ""),
        ("", ""),
        ("-", ""),
    ],
)
def test_an_item_is_linked_where_it_has_a_page(text: str, address: str) -> None:
    assert html.of_item(text) == address


@pytest.mark.parametrize("typed", FIRST)
def test_the_first_command_of_an_empty_list_exists(typed: str) -> None:
    program, *words = shlex.split(typed)
    command, context = PROGRAMS[program], None
    while isinstance(command, click.Group):
        context = click.Context(command, parent=context, info_name=command.name)
        _, found, words = command.resolve_command(context, words)
        assert found is not None, typed
        command = found
    values, over, _ = command.make_parser(click.Context(command, parent=context)).parse_args(args=words)
    missing = [
        each.name
        for each in command.params
        if each.required and each.value_is_missing(values.get(each.name or ""))
    ]
    assert (over, missing) == ([], [])
