"""Waiting until a daemon set is what somebody asked for: converged, or gone."""

from __future__ import annotations

import msgspec

from farmd import overview
from farmd.commands.mutation import Call
from farmd.commands.waiting import Look, Report, Spells, seen, until_converged, until_gone
from farmd.daemonset import commands
from store import codec
from store.errors import RecordInvalid
from store.work import Work


async def look(call: Call, target: str, spells: Spells) -> Look:
    """How a daemon set stands now; only its owner knows how many nodes are eligible.

    Raises:
        NotFound: it is gone.
    """
    row = await overview.daemonset(call.client, call.keys, target)
    daemonset = row.record
    lost = await _lost(call)
    pods = [
        pod
        for pod in (await overview.pods(call.client, call.keys, daemonset)).placed
        if pod.node not in lost or daemonset.deleting
    ]
    desired = row.status.desired if row.status is not None and row.reported else -1
    if daemonset.deleting:
        desired = 0
    found = seen(commands.NOUN, desired, row, pods, spells)
    # With no eligible node, or behind an older one, all pods that there should be are there: none.
    return msgspec.structs.replace(found, stuck=row.state == "blocked")


async def _lost(call: Call) -> set[str]:
    """Nodes that the fleet has given up: what stands there is neither wanted nor missed (R21)."""
    page = await call.client.list(call.keys.work("nodes", ""))
    lost = set()
    for raw in page.items:
        try:
            if codec.decode(Work, raw.decoded(), raw.key).lost_since > 0:
                lost.add(call.keys.last_part(raw.key))
        except RecordInvalid:
            continue  # nobody knows; its pod counts until somebody does
    return lost


async def convergence(call: Call, target: str, timeout: float, report: Report) -> Look:
    """Wait until a daemon set is converged (``farmd.commands.waiting.until_converged``)."""
    spells = Spells(call.clock)
    return await until_converged(call, lambda: look(call, target, spells), timeout, report)


async def deletion(call: Call, daemonset_id: str, timeout: float, report: Report) -> None:
    """Wait until a daemon set that is being deleted is gone (``farmd.commands.waiting.until_gone``)."""
    spells = Spells(call.clock)
    await until_gone(call, daemonset_id, lambda: look(call, daemonset_id, spells), timeout, report)
