"""Writes outside of Consul that were refused: when the same may be tried again, and one record of all tries.

What must never break: events do not cut a rest short, because most of them follow from the try itself, while
another plan is tried at once; and the audit log of an item that is refused for days stays as small as that of
one that was refused twice an hour.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from farmd.work.model import Outcome
from store import operations
from store.operations import Operation
from store.times import rfc3339

LONGEST_REASON = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A plan that was refused, and how many tries in a row were since ``first``.

    ``until`` is on the monotonic clock. ``record`` is the key of the audit record that counts the tries;
    empty: none does yet.
    """

    what: object
    text: str
    first: float
    last: float
    until: float
    many: int = 1
    record: str = ""

    def rests(self, what: object, now: float) -> float:
        """Seconds for which this is not tried again."""
        return max(0.0, self.until - now) if self.what == what else 0.0

    def outcome(self, now: float) -> Outcome:
        """How a cycle ends that waits for the next try."""
        return Outcome("blocked", max(0.0, self.until - now), self.text)

    @property
    def counted(self) -> bool:
        """Whether this try is written down: the first, the second, the fourth and so on are."""
        return self.many & (self.many - 1) == 0

    def counts(self) -> dict[str, int | str | bool]:
        """What the audit tells of the tries."""
        return {"tries": self.many, "first": rfc3339(self.first), "last": rfc3339(self.last)}

    def recorded(self, told: Operation) -> tuple[Refusal, Operation]:
        """The write of an audit record, in place of the one before it unless that is of another hour."""
        same_hour = self.record.rpartition("/")[0] == told.key.rpartition("/")[0]
        written = operations.put(self.record, told.value) if same_hour else told
        return replace(self, record=written.key), written


def again(before: Refusal | None, what: object, text: str, now: float, until: float) -> Refusal:
    """One more try that was refused, after those before it in a row."""
    if before is None:
        return Refusal(what=what, text=text, first=now, last=now, until=until)
    return replace(before, what=what, text=text, last=now, until=until, many=before.many + 1)
