"""``farmctl node``: register, change, cordon, drain and forget nodes."""

from __future__ import annotations

from collections.abc import Sequence

import click

from farmd.cli.changes import apply
from farmd.cli.invocation import Invocation
from farmd.cli.names import all_checked, nodes, taints_of_node, target, targets
from farmd.cli.noun_edit import going_on
from farmd.cli.options import Duration, command
from farmd.cli.progress import ProgressLine, shown
from farmd.nodes import attributes, commands, forgetting
from farmd.nodes.commands import Look
from store import quantities
from store.errors import InputInvalid

# ``farmctl node drain | undrain``: move all pods off a node, and show the progress.

_NODES = targets("node", nodes)


@command("drain", mutates=True, waits=True)
@_NODES
@click.option(
    "--deadline",
    type=Duration(),
    default="1h",
    show_default=True,
    help="Time after which the drain is reported as late; with --force, health floors are then ignored.",
)
async def drain(invocation: Invocation, names: tuple[str, ...], deadline: float) -> None:
    """Move all pods off nodes, system pods last, and keep new ones away until undrain.

    Controllers move their pods one by one and keep their health floor. With --force (and --reason) the
    pods that remain at the deadline are removed nevertheless. A repeated drain sets a new deadline.
    """
    prepared = [await commands.drain(invocation.call, name, deadline) for name in names]
    await apply(invocation, prepared)
    if invocation.settings.wait is not True or invocation.settings.dry_run:
        return
    with going_on(invocation, prepared), shown(invocation, _step) as report:
        for name in names:
            await commands.drained(invocation.call, name, invocation.settings.timeout, report)


@command("undrain", mutates=True)
@_NODES
async def undrain(invocation: Invocation, names: tuple[str, ...]) -> None:
    """End drains; pods may come again, unless the node was cordoned before."""
    await apply(invocation, [await commands.undrain(invocation.call, name) for name in names])


def _step(look: Look) -> ProgressLine:
    left = 0 if look.stage == "done" else look.left
    return ProgressLine(f"node/{look.name}", commands.describe(look), left, max(left, 1))


# ``farmctl node register | label | taint | untaint | capacity | set | cordon | uncordon | forget``.


@command("register", mutates=True)
@click.argument("names", nargs=-1, required=True, metavar="NAME...", callback=all_checked)
async def register(invocation: Invocation, names: tuple[str, ...]) -> None:
    """Register nodes before their agents start, if the agents share a token that may not register them."""
    await apply(invocation, [await commands.register(invocation.call, name) for name in names])


@command("label", mutates=True)
@target("node", nodes)
@click.argument("labels", nargs=-1, required=True, metavar="KEY=VALUE | KEY- ...")
async def label(invocation: Invocation, name: str, labels: tuple[str, ...]) -> None:
    """Set labels of a node (KEY=VALUE), or remove them (KEY-). They win over the agent's facts."""
    wanted, remove = _assignments(labels, "labels", "KEY")
    await apply(invocation, [await commands.label(invocation.call, name, wanted, remove)])


@command("taint", mutates=True)
@target("node", nodes)
@click.argument("taints", nargs=-1, required=True, metavar="KEY[=VALUE][:EFFECT]...")
async def taint(invocation: Invocation, name: str, taints: tuple[str, ...]) -> None:
    """Keep new pods off a node unless they tolerate the taint; running pods stay.

    EFFECT is no-schedule (the default) or prefer-no-schedule: pods that do not tolerate it then come to the
    node only if no other node can take them.
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


@command("capacity", mutates=True)
@target("node", nodes)
@click.argument("amounts", nargs=-1, required=True, metavar="RESOURCE=AMOUNT | RESOURCE- ...")
async def capacity(invocation: Invocation, name: str, amounts: tuple[str, ...]) -> None:
    """Set what the pods of a node may request in total, such as cpu=4 memory=8Gi gpu=2.

    RESOURCE- removes an amount; the amount that the node's agent reports applies again. Running pods stay.
    """
    texts, remove = _assignments(amounts, "capacity", "RESOURCE")
    wanted = {resource: _amount(resource, text) for resource, text in texts.items()}
    await apply(invocation, [await attributes.capacity(invocation.call, name, wanted, remove)])


@command("set", mutates=True)
@target("node", nodes)
@click.option(
    "--address", help="Host at which others reach the node, instead of what its agent reports; '' undoes it."
)
@click.option(
    "--signatures",
    type=click.Choice(["none", "warn", "enforce", ""]),
    help="Signature policy that farmctl assumes for the node; '' restores what its agent reports.",
)
async def set_(invocation: Invocation, name: str, address: str | None, signatures: str | None) -> None:
    """Override what a node's agent reports: its address and its signature policy.

    Endpoints of services, members of jobs and farmctl use the address. The policy is only what
    farmctl checks before it writes a change; the node's own configuration decides what starts there.
    """
    if address is None and signatures is None:
        raise InputInvalid("node set: found nothing to set, expected --address or --signatures", field="node")
    await apply(invocation, [await attributes.told(invocation.call, name, address, signatures)])


def _amount(resource: str, text: str) -> float:
    try:
        return quantities.amount(text)
    except InputInvalid as error:
        raise InputInvalid(f"capacity.{resource}: {error.message}", field=f"capacity.{resource}") from error


def _assignments(texts: Sequence[str], field: str, key_word: str) -> tuple[dict[str, str], list[str]]:
    """The values that ``KEY=VALUE`` sets and the keys that ``KEY-`` removes.

    Raises:
        InputInvalid: something else, or one key with two values.
    """
    wanted: dict[str, str] = {}
    remove: list[str] = []
    for text in texts:
        key, equals, value = text.partition("=")
        if equals:
            if wanted.get(key, value) != value:
                raise InputInvalid(f"{field}: found {key!r} twice with different values", field=field)
            wanted[key] = value
        elif text.endswith("-"):
            remove.append(text[:-1])
        else:
            expected = f"{key_word}=VALUE to set or {key_word}- to remove"
            raise InputInvalid(f"{field}: found {text!r}, expected {expected}", field=field)
    return wanted, remove


@command("cordon", mutates=True)
@_NODES
async def cordon(invocation: Invocation, names: tuple[str, ...]) -> None:
    """Keep new pods away from nodes; running pods stay."""
    await apply(invocation, [await commands.cordon(invocation.call, name) for name in names])


@command("uncordon", mutates=True)
@_NODES
async def uncordon(invocation: Invocation, names: tuple[str, ...]) -> None:
    """Let pods onto nodes again; a drain ends."""
    await apply(invocation, [await commands.uncordon(invocation.call, name) for name in names])


@command("forget", mutates=True)
@_NODES
async def forget(invocation: Invocation, names: tuple[str, ...]) -> None:
    """Forget nodes that are gone for good: their records, registrations and last reports.

    Refused while the node's agent is present, while the node has pods, reservations, moves or volumes, or
    while it is neither lost nor cordoned. A machine that returns registers as a new node without labels. If
    pods are still running there, its agent leaves them alone until farmctl node register.
    """
    await apply(invocation, [await forgetting.forget(invocation.call, name) for name in names])
