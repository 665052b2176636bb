"""``farmctl rc create | set-replicas | update | enable | disable | delete``."""

from __future__ import annotations

import click

from farmd.cli import owners
from farmd.cli.changes import apply
from farmd.cli.invocation import Invocation
from farmd.cli.names import controllers
from farmd.cli.options import command
from farmd.mutation import Mutation
from farmd.replication import commands, waiting
from farmd.replication.spec import parse_file

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
    specs = owners.specs(path, parse_file)
    prepared = [(await commands.create(invocation.call, spec), spec) for spec in specs]
    by_id = {mutation.change.id: spec for mutation, spec in prepared}

    async def write(mutation: Mutation) -> None:
        await commands.commit_create(invocation.call, mutation, by_id[mutation.change.id])

    mutations = [mutation for mutation, _ in prepared]
    await apply(invocation, mutations, write)
    await owners.converge(invocation, mutations, waiting.convergence)


@command("set-replicas", mutates=True, waits=True, negative_numbers=True)
@_TARGET
@click.argument("replicas", type=int)
async def set_replicas(invocation: Invocation, name: str, replicas: int) -> None:
    """Set how many pods a controller should have. Fewer than now asks first."""
    mutation = await commands.set_replicas(invocation.call, name, replicas)
    await apply(invocation, [mutation])
    await owners.converge(invocation, [mutation], waiting.convergence)


@command("update", mutates=True, waits=True)
@_FILE
@click.option("--now", is_flag=True, help="Replace pods in place, at most max_unavailable at a time.")
async def update(invocation: Invocation, path: str, now: bool) -> None:
    """Change controllers to what a file says.

    Gated rollouts are not there yet: without --now this is refused. What the file leaves out of
    replicas and disabled stays as it is.
    """
    mutations = [
        await commands.update(invocation.call, spec, now=now) for spec in owners.specs(path, parse_file)
    ]
    await apply(invocation, mutations)
    await owners.converge(invocation, mutations, waiting.convergence)


@command("enable", mutates=True, waits=True)
@_TARGET
async def enable(invocation: Invocation, name: str) -> None:
    """Let the farms add and remove pods of a controller again."""
    mutation = await commands.enable(invocation.call, name)
    await apply(invocation, [mutation])
    await owners.converge(invocation, [mutation], waiting.convergence)


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
    await owners.finish_deletions(invocation, "rc", mutations, waiting.deletion)
