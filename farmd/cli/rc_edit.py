"""``farmctl rc create | set-replicas | update | enable | disable | delete``."""

from __future__ import annotations

import click

from farmd.cli import owner_edit, owners
from farmd.cli.changes import apply
from farmd.cli.invocation import Invocation
from farmd.cli.names import objects, target
from farmd.cli.options import command
from farmd.replication import commands, waiting
from farmd.replication.spec import parse_file
from store.rcs import KIND

_FAMILY = owner_edit.Family(
    noun="rc",
    one="controller",
    many="controllers",
    pace="at most max_unavailable at a time",
    complete=objects(KIND),
    commands=commands,
    parse=parse_file,
    convergence=waiting.convergence,
    deletion=waiting.deletion,
)

create = owner_edit.creating(_FAMILY)
update = owner_edit.updating(_FAMILY)
enable = owner_edit.enabling(_FAMILY)
disable = owner_edit.disabling(_FAMILY)
delete = owner_edit.deleting(_FAMILY)


@command("set-replicas", mutates=True, waits=True, negative_numbers=True)
@target("rc", objects(KIND))
@click.argument("replicas", type=int)
async def set_replicas(invocation: Invocation, name: str, replicas: int) -> None:
    """Set how many pods a controller should have. Fewer than now asks first."""
    mutation = await commands.set_replicas(invocation.call, name, replicas)
    await apply(invocation, [mutation])
    await owners.converge(invocation, [mutation], waiting.convergence)
