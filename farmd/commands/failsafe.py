"""Clears a freeze by a person's acknowledgement of its very evidence (R18).

An acknowledgement names the evidence, gives a reason and expires; one covers every kind that the evidence
freezes. The freeze itself stays recorded, and is in force again when the acknowledgement expires or the
evidence changes.
"""

from __future__ import annotations

from farmd.commands.mutation import Call, Change, Mutation
from farmd.kinds import KINDS, family_of
from store.entry import Stored
from store.errors import Conflict, InputInvalid, NotFound
from store.failsafe import Acknowledgement, Failsafe, FailsafeStore
from store.keys import valid_segment
from store.mistakes import nearest
from store.times import rfc3339

LONGEST_SECONDS = 24 * 3600.0
ALL = "all"


async def clear(call: Call, kind: str, evidence: str, seconds: float) -> Mutation:
    """Acknowledge the evidence that freezes a kind of work, or ``all`` that it freezes, for so many seconds.

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
    frozen = await _frozen(store, valid_segment(kind, "kind"), evidence)
    until = call.clock.now() + seconds
    word = Acknowledgement(evidence, call.actor, until, call.reason)
    kinds = [f"kinds: {' '.join(sorted(frozen))}"] if kind == ALL else []
    details = dict.fromkeys(f"detail: {stored.record.detail}" for stored in frozen.values())
    change = Change(
        "failsafe",
        kind,
        kind,
        "failsafe.clear",
        before={"frozen": True},
        after={"frozen": False, "until": rfc3339(until)},
        details=(*kinds, f"evidence: {evidence}", *details),
        destructive=True,
    )
    return Mutation(change, tuple(store.acknowledge(stored, word) for stored in frozen.values()))


async def _frozen(store: FailsafeStore, kind: str, evidence: str) -> dict[str, Stored[Failsafe]]:
    """The chosen freezes with this very evidence, by kind of work."""
    if kind != ALL:
        stored = await store.get(family_of(kind))
        if stored is None and family_of(kind) not in KINDS:
            known = sorted(one.family for one in KINDS.values() if one.guarded)
            raise InputInvalid(f"kind: found {kind!r}{nearest(kind, [*known, ALL])}", field="kind")
        found = {} if stored is None else {family_of(kind): stored}
    else:
        found = await store.list()
    if not found:
        raise NotFound(f"failsafe {kind!r} is not set", kind="failsafe", id=kind)
    meant = {each: stored for each, stored in found.items() if stored.record.evidence == evidence}
    if not meant:
        others = sorted({stored.record.evidence for stored in found.values()})
        raise Conflict(
            f"failsafe {kind!r}: found the evidence {' and '.join(map(repr, others))}, expected {evidence!r}",
            id=kind,
            evidence="; ".join(others),
            hint="run farmctl failsafe status, and pass exactly that evidence once you understand it",
        )
    return meant
