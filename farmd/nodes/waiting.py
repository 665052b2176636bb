"""Waits until a node is drained: reads its pods, and the worker's status for why they stay."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from farmd import overview
from farmd.commands.mutation import Call
from farmd.commands.waiting import until
from farmd.nodes import leftovers
from farmd.runtime.errors import WaitTimeout
from store.errors import Conflict, NotRegistered
from store.nodes import NodeStore


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """One look at a drain; ``stage`` is empty where there is none."""

    name: str
    stage: str = ""
    left: int = 0
    left_system: int = 0
    overdue: bool = False
    waiting: list[str] = []


Report = Callable[[Look], None]


async def look(call: Call, name: str, system: leftovers.SystemPods) -> Look:
    """The present state of a node's drain.

    Raises:
        NotFound: there is no such node.
    """
    store = NodeStore(call.client, call.keys)
    view = await store.get(name)
    drain = view.record.drain
    if drain is None or drain.stage == "done":
        return Look(name=name, stage=drain.stage if drain is not None else "")
    condition = await store.condition(name)
    status = condition.status
    try:
        running = not condition.lost_since
        left = await leftovers.read(call.client, call.keys, name, system, running=running)
    except NotRegistered:
        left = ()
    return Look(
        name=name,
        stage=drain.stage,
        left=len(left),
        left_system=sum(pod.system for pod in left),
        overdue=drain.overdue,
        waiting=status.waiting if status is not None and not condition.outdated(view) else [],
    )


async def drained(call: Call, name: str, timeout: float, report: Report) -> None:
    """Wait until a drain is done, at most ``timeout`` seconds.

    Raises:
        WaitTimeout: it is not; the message says what is left and why.
        Conflict: somebody ended the drain meanwhile.
    """
    system = leftovers.SystemPods(call.client, call.keys)

    def done(now: Look, _: bool) -> bool:
        if not now.stage:
            raise Conflict(f"node {name!r}: its drain was ended by somebody else", id=name)
        return now.stage == "done"

    async def late(now: Look) -> WaitTimeout:
        text = f"node {name!r} is not drained after {timeout:g} s: {describe(now)}"
        return WaitTimeout(text, hint=await _why(call, name), look=msgspec.to_builtins(now))

    await until(call, lambda: look(call, name, system), done, late, timeout, report)


def describe(now: Look) -> str:
    """One line: ``3 pods left, 1 of them the system's; past its deadline; rc/web: …``."""
    if now.stage == "done":
        return "drained"
    text = f"{now.left} {'pod' if now.left == 1 else 'pods'} left"
    if now.left_system:
        text += f", {now.left_system} of them the system's"
    return "; ".join([text, *(["past its deadline"] if now.overdue else []), *now.waiting])


async def _why(call: Call, name: str) -> str:
    farms = await overview.farms(call.client, call.keys)
    if not any("nodes" in farm.kinds for farm in farms):
        return (
            "no farm claims nodes, so no drain advances: start a farm with farmd run; the drain goes on then"
        )
    return f"the drain goes on: farmctl node describe {name} tells more, farmctl node undrain {name} ends it"
