"""The values that the decisions of all kinds share: outcome, blocked, ask and plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeVar

N = TypeVar("N")

Result = Literal["done", "after", "backoff", "blocked", "rejected", "frozen"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one cycle ended, and when to run again if nothing happens before (seconds; None: never)."""

    result: Result
    after: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Blocked:
    """Why an item cannot go on: a code from the kind's closed set, and one line for people.

    ``wanted``: people asked for it, so metrics do not count it as trouble.
    """

    code: str
    text: str
    wanted: bool = False

    @property
    def frozen(self) -> bool:
        """Whether a freeze is the reason (R18)."""
        return self.code == "frozen"


def blocked(code: str, text: str) -> Blocked | None:
    """``Blocked`` if the text is not empty, else None."""
    return Blocked(code, text) if text else None


def frozen(evidence: str) -> Blocked:
    """Blocked by a freeze with that evidence."""
    return Blocked("frozen", f"frozen: {evidence}")


@dataclass(frozen=True, slots=True)
class Ask(Generic[N]):
    """A decision that needs another fact: the reader answers ``need``, and ``decide`` is called again."""

    need: N


class Plan(Protocol):
    """What the frame needs of every kind's plan."""

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write except a status."""

    @property
    def blocked(self) -> Blocked | None:
        """What prevents the rest of the plan."""

    @property
    def after(self) -> float | None:
        """Seconds until time alone changes the plan; None: it does not."""
