"""What the decisions of all kinds have in common: a plan, why it is blocked, what it asks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeVar

N = TypeVar("N")

Result = Literal["done", "after", "backoff", "blocked", "rejected", "frozen"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one cycle ended, and when to look again if nothing happens before (seconds; None: never)."""

    result: Result
    after: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Blocked:
    """Why an item cannot go on: a code from its kind's closed set, and one line for people."""

    code: str
    text: str

    @property
    def frozen(self) -> bool:
        """Whether only a freeze stands in the way (R18)."""
        return self.code == "frozen"


def blocked(code: str, text: str) -> Blocked | None:
    """Blocked where there is something to say; else nothing stands in the way."""
    return Blocked(code, text) if text else None


def frozen(evidence: str) -> Blocked:
    """Held back by a freeze with that evidence."""
    return Blocked("frozen", f"frozen: {evidence}")


@dataclass(frozen=True, slots=True)
class Ask(Generic[N]):
    """A decision that lacks a fact: the reader answers ``need``, and ``decide`` is called again."""

    need: N


class Plan(Protocol):
    """What the frame's worker asks of every kind's plan."""

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write but a status."""

    @property
    def blocked(self) -> Blocked | None:
        """What stands in the way of the rest."""

    @property
    def after(self) -> float | None:
        """Seconds until time alone changes this plan; None: it does not."""
