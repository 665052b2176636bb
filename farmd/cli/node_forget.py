"""``farmctl node forget``."""

from __future__ import annotations

from farmd.cli.changes import apply
from farmd.cli.invocation import Invocation
from farmd.cli.names import nodes, targets
from farmd.cli.options import command
from farmd.nodes import forgetting


@command("forget", mutates=True)
@targets("node", nodes)
async def forget(invocation: Invocation, names: tuple[str, ...]) -> None:
    """Forget nodes that are gone for good: their records, registrations and what they last said.

    Refused while a node's agent is there, while pods, reserved room or moves refer to it, while it has
    volumes, or while it is neither lost nor cordoned. A machine that comes back registers anew, as a new node
    without labels; where pods outlived that, its agent leaves them alone until farmctl node register.
    """
    await apply(invocation, [await forgetting.forget(invocation.call, name) for name in names])
