"""``farmctl rc create | set-replicas | update | enable | disable | delete``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from farmd.cli.changes import apply
from farmd.cli.invocation import Invocation
from farmd.cli.names import controllers
from farmd.cli.options import command
from farmd.cli.progress import progress
from farmd.mutation import Mutation
from farmd.replication import commands, waiting
from farmd.replication.spec import ControllerSpec, parse_file
from store.errors import InputInvalid

_TARGET = click.argument("name", shell_complete=controllers)
_FILE = click.option(
    "-f", "--file", "path", required=True, type=click.Path(), help="YAML or JSON; - reads stdin."
)


@command("create", mutates=True, waits=True)
@_FILE
async def create(invocation: Invocation, path: str) -> None:
    """Create controllers from a file.

    All documents are checked before anything is written. Creating an equal controller again changes
    nothing; a different one under the same name is a conflict.
    """
    specs = _specs(path)
    prepared = [(await commands.create(invocation.call, spec), spec) for spec in specs]
    by_id = {mutation.change.id: spec for mutation, spec in prepared}

    async def write(mutation: Mutation) -> None:
        await commands.commit_create(invocation.call, mutation, by_id[mutation.change.id])

    mutations = [mutation for mutation, _ in prepared]
    await apply(invocation, mutations, write)
    await _converge(invocation, mutations)


@command("set-replicas", mutates=True, waits=True, negative_numbers=True)
@_TARGET
@click.argument("replicas", type=int)
async def set_replicas(invocation: Invocation, name: str, replicas: int) -> None:
    """Set how many pods a controller should have. Fewer than now asks first."""
    mutation = await commands.set_replicas(invocation.call, name, replicas)
    await apply(invocation, [mutation])
    await _converge(invocation, [mutation])


@command("update", mutates=True, waits=True)
@_FILE
@click.option("--now", is_flag=True, help="Replace pods in place, at most max_unavailable at a time.")
async def update(invocation: Invocation, path: str, now: bool) -> None:
    """Change controllers to what a file says.

    Gated rollouts are not there yet: without --now this is refused. What the file leaves out of
    replicas and disabled stays as it is.
    """
    mutations = [await commands.update(invocation.call, spec, now=now) for spec in _specs(path)]
    await apply(invocation, mutations)
    await _converge(invocation, mutations)


@command("enable", mutates=True, waits=True)
@_TARGET
async def enable(invocation: Invocation, name: str) -> None:
    """Let the farms add and remove pods of a controller again."""
    mutation = await commands.enable(invocation.call, name)
    await apply(invocation, [mutation])
    await _converge(invocation, [mutation])


@command("disable", mutates=True)
@_TARGET
async def disable(invocation: Invocation, name: str) -> None:
    """Keep the farms from adding and removing pods of a controller; its pods keep running."""
    await apply(invocation, [await commands.disable(invocation.call, name)])


@command("delete", mutates=True, waits=True)
@click.argument("names", nargs=-1, required=True, shell_complete=controllers)
@click.option("--cascade", is_flag=True, help="Remove the pods first; waits for it unless --no-wait.")
async def delete(invocation: Invocation, names: tuple[str, ...], cascade: bool) -> None:
    """Delete controllers. Refused while pods remain, unless --cascade removes them first."""
    mutations = [await commands.delete(invocation.call, name, cascade=cascade) for name in names]
    await apply(invocation, mutations)
    if invocation.settings.dry_run:
        return
    marked = [mutation for mutation in mutations if mutation.change.action != "rc.delete"]
    if invocation.settings.wait is False:
        for mutation in marked:
            invocation.say(f"rc/{mutation.change.name}: marked; delete it again once its pods are gone")
        return
    with progress(invocation) as report:
        for mutation in marked:
            await waiting.deletion(invocation.call, mutation.change.id, invocation.settings.timeout, report)
            if not invocation.settings.quiet and invocation.settings.output in {"table", "wide"}:
                click.echo(f"rc/{mutation.change.name} deleted ({mutation.change.id})")


async def _converge(invocation: Invocation, mutations: Sequence[Mutation]) -> None:
    if invocation.settings.wait is not True or invocation.settings.dry_run:
        return
    with progress(invocation) as report:
        for mutation in mutations:
            # A creation that somebody else won has another id: the name tells which one it is.
            await waiting.convergence(
                invocation.call, mutation.change.name, invocation.settings.timeout, report
            )


def _specs(path: str) -> list[ControllerSpec]:
    """The controllers of a file or of stdin.

    Raises:
        InputInvalid: it cannot be read, is no text, or something in it does not fit.
    """
    try:
        raw = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        text = raw.decode("utf-8")
    except OSError as error:
        raise InputInvalid(f"{path}: cannot be read: {error.strerror}", source=path) from error
    except UnicodeDecodeError as error:
        raise InputInvalid(f"{path}: found bytes that are no UTF-8, expected text", source=path) from error
    return [spec for _, spec in parse_file(text, "stdin" if path == "-" else path)]
