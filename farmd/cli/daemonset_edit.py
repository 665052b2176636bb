"""``farmctl daemonset create | update | enable | disable | delete``."""

from __future__ import annotations

import click

from farmd.cli import owners
from farmd.cli.changes import apply
from farmd.cli.invocation import Invocation
from farmd.cli.names import daemonsets
from farmd.cli.options import command
from farmd.daemonset import commands, waiting
from farmd.daemonset.spec import parse_file
from farmd.mutation import Mutation

_TARGET = click.argument("name", shell_complete=daemonsets)
_FILE = click.option(
    "-f", "--file", "path", required=True, type=click.Path(), help="YAML or JSON; - reads stdin."
)


@command("create", mutates=True, waits=True)
@_FILE
async def create(invocation: Invocation, path: str) -> None:
    """Create daemon sets from a file.

    All documents are checked before anything is written. Creating an equal daemon set again changes
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


@command("update", mutates=True, waits=True)
@_FILE
@click.option("--now", is_flag=True, help="Replace pods in place, as min_health and rate allow.")
async def update(invocation: Invocation, path: str, now: bool) -> None:
    """Change daemon sets to what a file says.

    Pods are replaced in place: min_health of them stay healthy, and at most rate nodes a minute are
    changed. Gated rollouts are not there yet: without --now this is refused.
    """
    mutations = [
        await commands.update(invocation.call, spec, now=now) for spec in owners.specs(path, parse_file)
    ]
    await apply(invocation, mutations)
    await owners.converge(invocation, mutations, waiting.convergence)


@command("enable", mutates=True, waits=True)
@_TARGET
async def enable(invocation: Invocation, name: str) -> None:
    """Let the farms add and remove pods of a daemon set again."""
    mutation = await commands.enable(invocation.call, name)
    await apply(invocation, [mutation])
    await owners.converge(invocation, [mutation], waiting.convergence)


@command("disable", mutates=True)
@_TARGET
async def disable(invocation: Invocation, name: str) -> None:
    """Keep the farms from adding and removing pods of a daemon set; its pods keep running."""
    await apply(invocation, [await commands.disable(invocation.call, name)])


@command("delete", mutates=True, waits=True)
@click.argument("names", nargs=-1, required=True, shell_complete=daemonsets)
@click.option("--cascade", is_flag=True, help="Remove the pods first; waits for it unless --no-wait.")
async def delete(invocation: Invocation, names: tuple[str, ...], cascade: bool) -> None:
    """Delete daemon sets. Refused while pods remain, unless --cascade removes them first."""
    mutations = [await commands.delete(invocation.call, name, cascade=cascade) for name in names]
    await apply(invocation, mutations)
    await owners.finish_deletions(invocation, commands.NOUN, mutations, waiting.deletion)
