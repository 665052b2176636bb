"""``farmctl schema KIND[.FIELD]`` and ``farmctl example KIND``; neither asks the store."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterator

import click

from farmd.cli.options import Exampled
from farmd.cli.output import as_json, as_yaml
from farmd.commands import schema as fields
from farmd.commands.schema import EXAMPLES
from farmd.tables.model import clean
from store.errors import InputInvalid


def _kinds(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    return [noun for noun in fields.nouns() if noun.startswith(incomplete)]


@click.command("schema", cls=Exampled)
@click.argument("path", metavar="[KIND[.FIELD]]", default="", shell_complete=_kinds)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json", "yaml"]),
    default="table",
    show_default=True,
    help="json and yaml: a JSON Schema.",
)
def schema(path: str, output: str) -> None:
    """The fields of a kind's document: type, default, limits and a sentence for each.

    farmctl schema rc.pod.health shows a mapping inside. -o json prints a JSON Schema, for editors. Without
    an argument the kinds are listed.
    """
    if path.partition(".")[0] == "pod":  # which is no document, but a field of each owner's
        path = f"{next(noun for noun in fields.nouns())}.{path}"
    if not path:
        for noun in fields.nouns():
            click.echo(f"{noun:<11}farmctl schema {noun}, farmctl example {noun}")
    elif output == "table":
        for line in _lines(fields.page(path)):
            click.echo(clean(line))
    else:
        made = fields.json_schema(path)
        click.echo(as_json(made) if output == "json" else as_yaml(made), nl=output == "json")


@click.command("example", cls=Exampled)
@click.argument("kind", shell_complete=_kinds)
def example(kind: str) -> None:
    """A commented example document of a kind: farmctl example rc > web.yaml."""
    if kind not in EXAMPLES:
        raise InputInvalid(f"kind: found {kind!r}, expected one of {', '.join(EXAMPLES)}", field="kind")
    click.echo(EXAMPLES[kind], nl=False)


def _lines(page: fields.FieldPage) -> Iterator[str]:
    width = min(100, shutil.get_terminal_size().columns) if sys.stdout.isatty() else 100
    yield page.path
    yield from textwrap.wrap(page.about, width, initial_indent="  ", subsequent_indent="  ")
    for each in page.lines:
        need = f"default {each.default}" if each.default else each.need
        told = ", ".join(part for part in (each.type, need, each.limits) if part)
        yield ""
        yield from textwrap.wrap(f"{each.name}: {told}", width, subsequent_indent="    ")
        yield from textwrap.wrap(each.words, width, initial_indent="    ", subsequent_indent="    ")
