"""How long the agent has had no contact with the store; ``stop_after`` is measured by this (R27).

Contact is a good renewal of the session that holds the node's presence, at the time when it was sent. The
count begins when a renewal is overdue, so not between two regular renewals, and long before
the TTL is over and farms may replace the pod. Shims and guards read it in the agent's ``Leases``. For pods of
earlier versions, which have neither, the last contact is saved from time to time, so that a restart of the
agent does not reset the count.
"""

from __future__ import annotations

from farmd.agent.lease import Leases
from farmd.agent.state import StateDirectory
from store.ports import Clock

SAVE_SECONDS = 5.0
FIRST_CHANCE = 10.0


class Contact:
    """Remembers the last contact; ``overdue`` is the seconds after it when the next one is overdue."""

    def __init__(
        self, clock: Clock, state: StateDirectory, overdue: float, leases: Leases | None = None
    ) -> None:
        self._leases = leases or Leases()
        self._clock = clock
        self._state = state
        self._overdue = overdue
        self._began = self._last = clock.mono()
        self._made = False
        self._saved = float("-inf")

    def load(self) -> None:
        """Continue from the contact that an earlier agent of this node saved."""
        at = self._state.saved_contact()
        self._began = self._clock.mono()
        self._last = self._began - (max(0.0, self._clock.now() - at) if at is not None else 0.0)

    def made(self, age: float = 0.0) -> None:
        """Record a contact ``age`` seconds ago."""
        self._made = True
        self._leases.renewed(self._overdue - age)
        self._last = max(self._last, self._clock.mono() - age)

    def age(self) -> float:
        """Seconds since contact became overdue; 0 in a new agent's first ``FIRST_CHANCE`` seconds."""
        now = self._clock.mono()
        if not self._made and now < self._began + FIRST_CHANCE:
            return 0.0
        return max(0.0, now - self._last - self._overdue)

    def save(self) -> None:
        """Save the last contact, at most every ``SAVE_SECONDS``."""
        if self._last >= self._saved + SAVE_SECONDS:
            self._saved = self._last
            self._state.save_contact(self._clock.now() - (self._clock.mono() - self._last))
