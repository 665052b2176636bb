"""Findings about items that lie outside of Consul: what their kinds of work see where they lie."""

from __future__ import annotations

from typing import Any

from farmd.commands.mutation import Call
from farmd.doctor.model import Finding, Report
from farmd.kinds import KINDS, load


async def examine(call: Call, transport: Any) -> Report:
    """What each kind finds behind a transport to where its items lie.

    Raises:
        StoreError: there is no answer, or this person may not read something there.
    """
    found = [await load(kind.examined)(call, transport) for kind in KINDS.values() if kind.examined]
    facts = {name: text for each in found for name, text in each.facts.items()}
    return Report(facts, tuple(Finding(*fault) for each in found for fault in each.faults))
