"""``farmctl job start``, and ``farmctl job template starts | explain``."""

from __future__ import annotations

import click

from farmd.cli import noun_show
from farmd.cli.invocation import Invocation
from farmd.cli.job_run import parameters
from farmd.cli.names import objects, target
from farmd.cli.noun_edit import bytes_of
from farmd.cli.options import Duration, command
from farmd.cli.output import document, emit, show
from farmd.jobtemplates import commands
from farmd.jobtemplates.commands import JOB_TEMPLATE
from farmd.runtime.errors import EndedOtherwise
from farmd.tables import jobtemplates as tables
from farmd.tables.model import Explained, Table, clean
from store.errors import InputInvalid
from store.jobtemplates import KIND, MAX_INPUT, Started, StartKey
from store.times import plain


@command("start")
@target("job-template", objects(KIND), "TEMPLATE")
@click.option("--param", "given", multiple=True, metavar="NAME=VALUE", help="A parameter of the template.")
@click.option("--input", "path", type=click.Path(), help="Send this file as the input; - is stdin.")
@click.option("--id", "key", metavar="KEY", help="Start once per KEY, however often this is repeated.")
@click.option("--wait/--no-wait", default=True, help="Wait until a farm has accepted or refused it.")
@click.option("--timeout", type=Duration(), default="60s", help="How long to wait.  [default: 60s]")
async def start(
    invocation: Invocation,
    name: str,
    given: tuple[str, ...],
    path: str | None,
    key: str | None,
    wait: bool,
    timeout: float,
) -> None:
    """Start a job of a template; prints the job's name, or exits with 9 if the start is refused.

    A token with acl/starter.hcl is enough. Without --id each call starts another job; with it, a repeated
    call returns the job of the first one. A farm checks the parameters. farmctl job template describe shows
    which ones a template has.
    """
    call = invocation.call
    place = StartKey(name, call.ids.new() if key is None else key)
    asked = commands.start_of(call, parameters(given), _input(path))
    answer, refused = await commands.begin(call, place, asked)
    if answer is None and wait:
        answer = await commands.answered(call, place, refused, timeout)
    _tell(invocation, place, answer)


def _input(path: str | None) -> bytes:
    if path is None:
        return b""
    found = bytes_of(path, MAX_INPUT)
    if len(found) > MAX_INPUT:
        raise InputInvalid(f"{path}: found more than {MAX_INPUT} bytes, expected fewer", field="input")
    return found


def _tell(invocation: Invocation, place: StartKey, answer: Started | None) -> None:
    """Show what came of a start.

    Raises:
        EndedOtherwise: it was refused.
    """
    output = invocation.settings.output
    if answer is not None and answer.refused:
        text = f"start {place.key!r} of {place.template} was refused: {clean(answer.refused)}"
        raise EndedOtherwise(text, hint="correct it, and repeat the command")
    if output in {"json", "yaml"}:
        known = {} if answer is None else plain(answer)
        emit(invocation, document("Start", {"template": place.template, "key": place.key, **known}))
    elif output == "name":
        click.echo(f"job/{place.job}")
    elif answer is None:
        click.echo(f"start {place.key} of {place.template} waits for a farm")
    else:
        click.echo(f"job/{answer.name} started ({place.template}, {place.key})")


@command("starts", lists=True)
@target("job-template", objects(KIND), "TEMPLATE")
async def starts(invocation: Invocation, name: str) -> None:
    """The starts of a template: those that wait, and the answers that are kept, the newest first."""

    async def read() -> Table:
        rows, broken = await tables.starts(invocation.call, StartKey(name, "x").checked().template)
        return tables.starts_table(invocation.call, rows)._replace(broken=broken)

    await show(invocation, read)


@command("explain")
@target("job-template", objects(KIND), "TEMPLATE")
async def explain(invocation: Invocation, name: str) -> None:
    """How to start a job of a template, and whether its starts are answered now."""
    row = await JOB_TEMPLATE.row(invocation.call, name)
    rows, _ = await tables.starts(invocation.call, row.record.name)
    waiting = sum(each.state == "waiting" for each in rows)
    told = [f"{row.record.name} is {row.state}", f"start it: {tables.usage(row.record)}"]
    told.append(f"starts: {waiting} waiting, {len(rows) - waiting} answered")
    if waiting:
        told.append(await commands.unanswered(invocation.call))
    of = {"name": row.record.name, "id": row.record.id, "told": told}
    noun_show.explain(invocation, Explained(told, of, told))
