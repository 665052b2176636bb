"""How long the store has been out of reach: what ``stop_after`` is measured by (R27).

Contact is a proven answer to the intent watch or a good renewal of the session, on the monotonic
clock. Between two renewals nobody is out of contact: the count begins when one is overdue, long before
the TTL is over and with it anybody's right to replace the pod. It is written down from time to time, so
that restarting the agent does not start the count anew.
"""

from __future__ import annotations

from farmd.agent.state import StateDirectory
from store.ports import Clock

SAVE_SECONDS = 5.0
FIRST_CHANCE = 10.0


class Contact:
    """Remembers the last contact; the next one is ``overdue`` that many seconds later."""

    def __init__(self, clock: Clock, state: StateDirectory, overdue: float) -> None:
        self._clock = clock
        self._state = state
        self._overdue = overdue
        self._began = self._last = clock.mono()
        self._made = False
        self._saved = float("-inf")

    def load(self) -> None:
        """Go on from what an earlier agent of this node wrote down."""
        at = self._state.saved_contact()
        self._began = self._clock.mono()
        self._last = self._began - (max(0.0, self._clock.now() - at) if at is not None else 0.0)

    def made(self, age: float = 0.0) -> None:
        """There was contact ``age`` seconds ago."""
        self._made = True
        self._last = max(self._last, self._clock.mono() - age)

    def age(self) -> float:
        """Seconds since contact was overdue; 0 while a new agent has not had its chance to make any."""
        now = self._clock.mono()
        if not self._made and now < self._began + FIRST_CHANCE:
            return 0.0
        return max(0.0, now - self._last - self._overdue)

    def save(self) -> None:
        """Write the last contact down, now and then."""
        if self._last >= self._saved + SAVE_SECONDS:
            self._saved = self._last
            self._state.save_contact(self._clock.now() - (self._clock.mono() - self._last))
