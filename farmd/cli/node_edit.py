"""``farmctl node register | label | taint | untaint | cordon | uncordon``."""

from __future__ import annotations

import click

from farmd.cli.changes import apply
from farmd.cli.invocation import Invocation
from farmd.cli.names import nodes, taints_of_node, target, targets
from farmd.cli.options import command
from farmd.nodes import attributes, commands
from store.errors import InputInvalid

_NODES = targets("node", nodes)


@command("register", mutates=True)
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
async def register(invocation: Invocation, names: tuple[str, ...]) -> None:
    """Make nodes known before their agents start: where agents share a token that may not do so."""
    await apply(invocation, [await commands.register(invocation.call, name) for name in names])


@command("label", mutates=True)
@target("node", nodes)
@click.argument("labels", nargs=-1, required=True, metavar="KEY=VALUE | KEY- ...")
async def label(invocation: Invocation, name: str, labels: tuple[str, ...]) -> None:
    """Set labels of a node (KEY=VALUE), or remove them (KEY-). They win over the agent's facts."""
    wanted: dict[str, str] = {}
    remove: list[str] = []
    for text in labels:
        key, equals, value = text.partition("=")
        if equals:
            if wanted.get(key, value) != value:
                raise InputInvalid(f"labels: found {key!r} twice with different values", field="labels")
            wanted[key] = value
        elif text.endswith("-"):
            remove.append(text[:-1])
        else:
            raise InputInvalid(
                f"labels: found {text!r}, expected KEY=VALUE to set or KEY- to remove", field="labels"
            )
    await apply(invocation, [await commands.label(invocation.call, name, wanted, remove)])


@command("taint", mutates=True)
@target("node", nodes)
@click.argument("taints", nargs=-1, required=True, metavar="KEY[=VALUE][:EFFECT]...")
async def taint(invocation: Invocation, name: str, taints: tuple[str, ...]) -> None:
    """Keep new pods that do not tolerate it off a node; what runs there keeps running.

    EFFECT is no-schedule (the default) or prefer-no-schedule, which takes such pods only where no other node
    can.
    """
    wanted = [attributes.parse_taint(text) for text in taints]
    await apply(invocation, [await attributes.taint(invocation.call, name, wanted)])


@command("untaint", mutates=True)
@target("node", nodes)
@click.argument(
    "taints",
    nargs=-1,
    required=True,
    metavar="KEY[=VALUE][:EFFECT]...",
    shell_complete=taints_of_node,
)
async def untaint(invocation: Invocation, name: str, taints: tuple[str, ...]) -> None:
    """Remove taints of a node: all with this key, or only those with this value or effect."""
    await apply(invocation, [await attributes.untaint(invocation.call, name, taints)])


@command("cordon", mutates=True)
@_NODES
async def cordon(invocation: Invocation, names: tuple[str, ...]) -> None:
    """Keep new pods away from nodes; what runs there keeps running."""
    await apply(invocation, [await commands.cordon(invocation.call, name) for name in names])


@command("uncordon", mutates=True)
@_NODES
async def uncordon(invocation: Invocation, names: tuple[str, ...]) -> None:
    """Let pods onto nodes again; a drain ends."""
    await apply(invocation, [await commands.uncordon(invocation.call, name) for name in names])
