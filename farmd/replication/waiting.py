"""Waiting until a controller is what somebody asked for: converged, or gone."""

from __future__ import annotations

from farmd import overview
from farmd.commands.mutation import Call
from farmd.commands.waiting import Look, Report, Spells, seen, until_converged, until_gone


async def look(call: Call, rc_id: str, spells: Spells) -> Look:
    """How a controller stands now.

    Raises:
        NotFound: it is gone.
    """
    row = await overview.controller(call.client, call.keys, rc_id)
    rc = row.record
    pods = (await overview.pods(call.client, call.keys, rc)).placed
    return seen("rc", rc.replicas_desired, row, pods, spells)


async def convergence(call: Call, rc_id: str, timeout: float, report: Report) -> Look:
    """Wait until a controller is converged (``farmd.commands.waiting.until_converged``)."""
    spells = Spells(call.clock)
    return await until_converged(call, lambda: look(call, rc_id, spells), timeout, report)


async def deletion(call: Call, rc_id: str, timeout: float, report: Report) -> None:
    """Wait until a controller that is being deleted is gone (``farmd.commands.waiting.until_gone``)."""
    spells = Spells(call.clock)
    await until_gone(call, rc_id, lambda: look(call, rc_id, spells), timeout, report)
