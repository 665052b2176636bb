"""``farmctl volume list | create | delete``."""

from __future__ import annotations

import click

from farmd.cli.changes import apply
from farmd.cli.invocation import Invocation
from farmd.cli.names import nodes, objects, target, targets
from farmd.cli.options import command
from farmd.cli.output import show
from farmd.nodes import volumes
from farmd.tables.model import Column, Table, pairs
from store.errors import refuse
from store.nodes import KIND, LOCAL, NOUN, NodeVolume
from store.times import plain


@command("list", lists=True)
async def list_(invocation: Invocation) -> None:
    """All volumes, and the nodes that have them, absent and lost nodes included."""

    async def read() -> Table:
        rows, broken = await volumes.rows(invocation.call)
        columns = (
            Column("NAME", lambda row: row.name),
            Column("NODE", lambda row: row.node),
            Column("STATE", lambda row: row.state),
            Column("DRIVER", lambda row: row.driver),
            Column("SERVICE", lambda row: row.service or "-"),
            Column("OPTIONS", lambda row: pairs(row.options), wide=True),
            Column("LABELS", lambda row: pairs(row.labels), wide=True),
        )
        return Table(
            kind="Volume",
            rows=rows,
            columns=columns,
            name=lambda row: f"{NOUN}/{row.name}",
            plain=plain,
            broken=broken,
            empty="no volumes",
        )

    await show(invocation, read)


@command("create", mutates=True)
@target(NOUN, objects(KIND))
@click.option("--node", required=True, shell_complete=nodes, help="The node that has it.")
@click.option("--driver", default="", help=f"The engine's driver for it.  [default: {LOCAL}]")
@click.option("--opt", "options", multiple=True, metavar="KEY=VALUE", help="An option of the driver.")
@click.option("--beside", is_flag=True, help="Allow it although other nodes have a volume of this name.")
async def create(
    invocation: Invocation, name: str, node: str, driver: str, options: tuple[str, ...], beside: bool
) -> None:
    """Record that a node has a volume, so that services that mount it are placed there.

    The node's engine creates it, if it does not exist, at the first start of a pod that mounts it.
    """
    wanted = dict[str, str]()
    for text in options:
        key, equals, wanted[key] = text.partition("=")
        if not (key and equals):
            refuse("opt", repr(text), "KEY=VALUE")
    made = NodeVolume(driver=driver, options=wanted)
    await apply(invocation, [await volumes.create(invocation.call, name, node, made, beside=beside)])


@command("delete", mutates=True)
@targets(NOUN, objects(KIND))
@click.option("--node", default="", shell_complete=nodes, help="The node, if several have the volume.")
async def delete(invocation: Invocation, names: tuple[str, ...], node: str) -> None:
    """Forget that a node has volumes. Their data stays there until the node's engine removes it.

    Refused while anything mounts it. A deployment may then create an empty volume of that name on any node.
    """
    await apply(invocation, [await volumes.delete(invocation.call, name, node) for name in names])
