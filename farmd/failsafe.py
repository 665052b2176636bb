"""Clearing a freeze: a person's word that this very evidence is understood (R18).

It names the evidence, gives a reason and expires; the freeze itself stays on record, and holds again
when the word runs out or the evidence is another one.
"""

from __future__ import annotations

from datetime import UTC, datetime

from farmd.mutation import Call, Change, Mutation
from store.errors import Conflict, InputInvalid, NotFound
from store.failsafe import Acknowledgement, FailsafeStore
from store.keys import valid_segment

LONGEST_SECONDS = 24 * 3600.0


async def clear(call: Call, kind: str, evidence: str, seconds: float) -> Mutation:
    """Acknowledge the evidence that freezes a kind of work, for so many seconds.

    Raises:
        InputInvalid: no reason, or a time that is not above 0 and at most a day.
        NotFound: the kind is not frozen.
        Conflict: it is frozen for another reason than the one that was named.
    """
    if not call.reason:
        raise InputInvalid("reason: missing, expected why removals may go on (--reason)", field="reason")
    if not 0 < seconds <= LONGEST_SECONDS:
        raise InputInvalid(
            f"for: found {seconds:g} seconds, expected more than 0 and at most {LONGEST_SECONDS:g}",
            field="for",
        )
    store = FailsafeStore(call.client, call.keys)
    stored = await store.get(valid_segment(kind, "kind"))
    if stored is None:
        raise NotFound(f"failsafe {kind!r} is not set", kind="failsafe", id=kind)
    record = stored.record
    if evidence != record.evidence:
        raise Conflict(
            f"failsafe {kind!r}: found the evidence {record.evidence!r}, expected {evidence!r}",
            id=kind,
            evidence=record.evidence,
            hint="look at farmctl failsafe status, and name that very evidence if it is understood",
        )
    until = call.clock.now() + seconds
    word = Acknowledgement(evidence, call.actor, until, call.reason)
    change = Change(
        "failsafe",
        kind,
        kind,
        "failsafe.clear",
        before={"frozen": True},
        after={"frozen": False, "until": datetime.fromtimestamp(until, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")},
        details=(f"evidence: {record.evidence}", f"detail: {record.detail}"),
        destructive=True,
    )
    return Mutation(change, (store.acknowledge(stored, word),))
