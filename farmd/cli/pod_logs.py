"""``farmctl pod logs``: what a pod wrote."""

from __future__ import annotations

from typing import Any

import click

from farmd.cli import log_stream
from farmd.cli.invocation import Invocation
from farmd.cli.names import pods
from farmd.cli.options import command
from store import families
from store.errors import Ambiguous, NotFound
from store.keys import valid_instance, valid_segment


@command("logs")
@click.argument("pod", metavar="NODE/INSTANCE", shell_complete=pods)
@log_stream.options
async def logs(invocation: Invocation, pod: str, **options: Any) -> None:
    """What a pod wrote. The node may be left out where only one node has that instance.

    The end of a removed pod's output is kept for an hour: name its node, too.
    """
    node, instance = await locate(invocation, pod)
    await log_stream.stream(invocation, node, instance, log_stream.LogChoice(**options))


async def locate(invocation: Invocation, text: str) -> tuple[str, str]:
    """The node and the instance that a name means.

    Raises:
        InputInvalid: no such name can be. NotFound: no node has it. Ambiguous: several nodes have it.
    """
    if text.count("/") == 2:
        text = text.removeprefix("pod/")  # as -o name prints it
    node, slash, instance = text.rpartition("/")
    if slash:
        return valid_segment(node, "node"), valid_instance(instance)
    valid_instance(instance)
    keys = invocation.keys
    page = await invocation.client.keys(keys.tree("intent"))
    found = [place for place in families.intent_places(keys, page.items) if place[1] == instance]
    if not found:
        hint = "farmctl pod list shows them as NODE/INSTANCE"
        raise NotFound(f"pod {instance!r} does not exist", kind="pods", id=instance, hint=hint)
    if len(found) > 1:
        shown = ", ".join(f"{name}/{instance}" for name, _ in found[:5])
        raise Ambiguous(f"pod {instance!r} stands on {len(found)} nodes, name one: {shown}", kind="pods")
    return found[0]
