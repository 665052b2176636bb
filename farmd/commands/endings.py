"""How items ended that end by themselves, such as rollouts: their records are gone, and people still ask."""

from __future__ import annotations

from typing import NamedTuple

from farmd.commands.mutation import Call
from farmd.kinds import noun
from store.audit import AuditReader, Filter
from store.times import Time


class Ending(NamedTuple):
    """When and how an item ended, and the command that shows it; ``reason`` is empty where all went well."""

    at: Time
    how: str
    reason: str
    command: str


async def audited(call: Call, kind: str, target: str) -> Ending | None:
    """The end of the last item of a name or id, as the audit log tells it.

    The caller knows that no record bears the name or id, so the last entry of the log is the end.
    """
    found = await AuditReader(call.client, call.keys).read(Filter(kind=kind, item=target), 1)
    if not found:
        return None
    (last,) = found
    how = last.action.partition(".")[2]
    reason = "" if how == "done" else last.reason
    return Ending(
        last.at, how, reason, f"farmctl audit list --kind {noun(kind)} --item {last.name or last.id}"
    )
