"""The pods of both versions of an owner while a new one comes step by step."""

from __future__ import annotations

from typing import Any

from farmd import overview
from farmd.commands.mutation import Call
from farmd.commands.noun import Noun
from farmd.commands.outlook import T
from farmd.overview import Pods


async def pods(call: Call, noun: Noun[Any, T], owner: T) -> Pods:
    """The pods of an owner; during a rollout, also those of the owner with the other version."""
    manager = getattr(owner, "managed_by", "")
    owners = [owner]
    if noun.words.gradual and manager.startswith(f"{noun.words.gradual}/"):
        others = (await noun.records(call.client, call.keys).list()).items
        beside = (each.record for each in others if each.record.id != owner.id)
        owners += [each for each in beside if getattr(each, "managed_by", "") == manager]
    found = [await overview.pods(call.client, call.keys, each) for each in owners]
    rows = [row for each in found for row in each.rows]
    return Pods(rows, [text for each in found for text in each.broken])
