"""What people say of a deployment while it lasts.

A word is a compare-and-set of the record, which every transaction of the worker names: what was planned
before the word is refused (R12, R13).
"""

from __future__ import annotations

from typing import Any

from farmd.commands.mutation import Call, Mutation
from farmd.deploy.noun import DEPLOYMENT
from store.deployments import Deployment
from store.entry import Stored
from store.errors import Conflict


async def pause(call: Call, target: str) -> Mutation:
    """Stop where it is: pods neither come nor go, and nothing heals."""
    return _said(call, await DEPLOYMENT.find(call, target), "pause", ask="pause")


async def resume(call: Call, target: str) -> Mutation:
    """Go on after a pause, or try again after a failure that halted it."""
    stored = await DEPLOYMENT.find(call, target)
    record = stored.record
    ask = "run" if record.ask == "pause" else record.ask
    return _said(call, stored, "resume", ask=ask, resumed=record.resumed + 1)


async def rollback(call: Call, target: str) -> Mutation:
    """Turn back: each service that has changed becomes what it was."""
    return _said(call, await DEPLOYMENT.find(call, target), "rollback", ask="rollback")


def _said(call: Call, stored: Stored[Deployment], word: str, **fields: Any) -> Mutation:
    record = stored.record
    if record.draft:
        raise Conflict(f"deployment {record.name!r} is submitted right now", id=record.id, hint="try again")
    return DEPLOYMENT.command(call, stored, word, destructive=word == "rollback", **fields)
