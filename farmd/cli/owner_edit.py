"""Changing everything that owns pods: ``create | update | enable | disable | delete``, one way for all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import click

from farmd.cli import owners
from farmd.cli.changes import apply
from farmd.cli.invocation import Invocation
from farmd.cli.names import target, targets
from farmd.cli.options import command
from farmd.commands.mutation import Call, Mutation

S = TypeVar("S")
Spec_contra = TypeVar("Spec_contra", contravariant=True)
_FILE = click.option(
    "-f", "--file", "path", required=True, type=click.Path(), help="YAML or JSON; - reads stdin."
)


class Commands(Protocol[Spec_contra]):
    """What people may ask of one family: its module ``commands``."""

    async def create(self, call: Call, spec: Spec_contra) -> Mutation:
        """Prepare a creation."""

    async def commit_create(self, call: Call, mutation: Mutation, spec: Spec_contra) -> Mutation:
        """Write it; an equal one that somebody else created meanwhile is as good."""

    async def update(self, call: Call, spec: Spec_contra, *, now: bool) -> Mutation:
        """Prepare a change to what a file says."""

    async def enable(self, call: Call, target: str) -> Mutation:
        """Prepare its end of being disabled."""

    async def disable(self, call: Call, target: str) -> Mutation:
        """Prepare it to be left alone."""

    async def delete(self, call: Call, target: str, *, cascade: bool) -> Mutation:
        """Prepare its end."""


@dataclass(frozen=True, slots=True)
class Family(Generic[S]):
    """One family of such records: its commands and the words for it; ``pace``: how ``update --now`` goes."""

    noun: str
    one: str
    many: str
    pace: str
    complete: Callable[[click.Context, click.Parameter, str], list[str]]
    commands: Commands[S]
    parse: Callable[[str, str], Sequence[tuple[str, S]]]
    convergence: owners.Waiting
    deletion: owners.Waiting


def creating(family: Family[S]) -> click.Command:
    """``create``."""

    async def run(invocation: Invocation, path: str) -> None:
        specs = owners.specs(path, family.parse)
        prepared = [(await family.commands.create(invocation.call, spec), spec) for spec in specs]
        by_id = {mutation.change.id: spec for mutation, spec in prepared}

        async def write(mutation: Mutation) -> None:
            await family.commands.commit_create(invocation.call, mutation, by_id[mutation.change.id])

        mutations = [mutation for mutation, _ in prepared]
        await apply(invocation, mutations, write)
        await owners.converge(invocation, mutations, family.convergence)

    run.__doc__ = (
        f"Create {family.many} from a file.\n\n"
        "All documents are checked before anything is written. Creating an equal one again changes nothing; "
        "a different one under the same name is a conflict."
    )
    return command("create", mutates=True, waits=True)(_FILE(run))


def updating(family: Family[S]) -> click.Command:
    """``update``."""

    async def run(invocation: Invocation, path: str, now: bool) -> None:
        specs = owners.specs(path, family.parse)
        mutations = [await family.commands.update(invocation.call, spec, now=now) for spec in specs]
        await apply(invocation, mutations)
        await owners.converge(invocation, mutations, family.convergence)

    run.__doc__ = (
        f"Change {family.many} to what a file says.\n\n"
        f"Pods are replaced in place, {family.pace}. Gated rollouts are not there yet: without --now this is "
        "refused. What counts and switches the file leaves out stay as they are."
    )
    option = click.option("--now", is_flag=True, help=f"Replace pods in place, {family.pace}.")
    return command("update", mutates=True, waits=True)(_FILE(option(run)))


def enabling(family: Family[S]) -> click.Command:
    """``enable``."""

    async def run(invocation: Invocation, name: str) -> None:
        mutation = await family.commands.enable(invocation.call, name)
        await apply(invocation, [mutation])
        await owners.converge(invocation, [mutation], family.convergence)

    run.__doc__ = f"Let the farms add and remove pods of a {family.one} again."
    return command("enable", mutates=True, waits=True)(target(family.noun, family.complete)(run))


def disabling(family: Family[S]) -> click.Command:
    """``disable``."""

    async def run(invocation: Invocation, name: str) -> None:
        await apply(invocation, [await family.commands.disable(invocation.call, name)])

    run.__doc__ = f"Keep the farms from adding and removing pods of a {family.one}; its pods keep running."
    return command("disable", mutates=True)(target(family.noun, family.complete)(run))


def deleting(family: Family[S]) -> click.Command:
    """``delete``."""

    async def run(invocation: Invocation, names: tuple[str, ...], cascade: bool) -> None:
        prepared = [await family.commands.delete(invocation.call, name, cascade=cascade) for name in names]
        # A name and an id may mean one and the same.
        mutations = list({mutation.change.id: mutation for mutation in prepared}.values())
        await apply(invocation, mutations)
        await owners.finish_deletions(invocation, family.noun, mutations, family.deletion)

    run.__doc__ = f"Delete {family.many}. Refused while pods remain, unless --cascade removes them first."
    option = click.option(
        "--cascade", is_flag=True, help="Remove the pods first; waits for it unless --no-wait."
    )
    return command("delete", mutates=True, waits=True)(targets(family.noun, family.complete)(option(run)))
