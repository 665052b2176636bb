"""The session table: the sessions, which may hold locks, and their deadlines without a renewal.

A session ends after twice its TTL (measured: a TTL of 10 s ends after 20 s), and its lock-delay is
limited to a minute when it applies, not when it is stored. Deadlines are not persistent: after a
restart every session has its full time again, as after a change of Consul's leader.
"""

from __future__ import annotations

import heapq
from typing import Any

import msgspec

TTL_MULTIPLIER = 2
MAX_LOCK_DELAY = 60.0
NANOSECONDS = 1_000_000_000


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """One session, with Consul's order of fields; ``LockDelay`` is in nanoseconds."""

    id: str = msgspec.field(name="ID")
    name: str = msgspec.field(name="Name", default="")
    node: str = msgspec.field(name="Node")
    lock_delay: int = msgspec.field(name="LockDelay", default=15 * NANOSECONDS)
    behavior: str = msgspec.field(name="Behavior", default="release")
    ttl: str = msgspec.field(name="TTL", default="")
    node_checks: list[str] = msgspec.field(name="NodeChecks", default_factory=list)
    service_checks: list[dict[str, Any]] | None = msgspec.field(name="ServiceChecks", default=None)
    create_index: int = msgspec.field(name="CreateIndex", default=0)
    modify_index: int = msgspec.field(name="ModifyIndex", default=0)

    def lock_delay_seconds(self) -> float:
        """How long the session's keys cannot be locked after its end."""
        return min(self.lock_delay / NANOSECONDS, MAX_LOCK_DELAY)


class Sessions:
    """The table. ``index`` is that of the last creation or destruction."""

    def __init__(self) -> None:
        self.index = 0
        self._sessions: dict[str, Session] = {}
        self._deadlines: dict[str, float] = {}
        self._queue: list[tuple[float, str]] = []

    def table_index(self) -> int:
        """The table's index, at least 1, because a query with index 0 does not block."""
        return max(self.index, 1)

    def get(self, session_id: str) -> Session | None:
        """One session, or None."""
        return self._sessions.get(session_id)

    def all(self) -> list[Session]:
        """All sessions, by id."""
        return sorted(self._sessions.values(), key=lambda session: session.id)

    def add(self, index: int, session: Session) -> Session:
        """Store a new session at an index."""
        session = msgspec.structs.replace(session, create_index=index, modify_index=index)
        self._sessions[session.id] = session
        self.index = index
        return session

    def remove(self, index: int, session_id: str) -> None:
        """Remove a session, which must exist."""
        del self._sessions[session_id]
        self._deadlines.pop(session_id, None)
        self.index = index

    def load(self, sessions: list[Session]) -> None:
        """Fill an empty table."""
        self._sessions = {session.id: session for session in sessions}

    def renew(self, session_id: str, now: float, ttl: float) -> None:
        """Set the deadline ``ttl`` and its multiplier after ``now``; a ``ttl`` of 0 s sets none."""
        if ttl <= 0:
            return
        deadline = now + ttl * TTL_MULTIPLIER
        self._deadlines[session_id] = deadline
        heapq.heappush(self._queue, (deadline, session_id))

    def next_deadline(self) -> float | None:
        """The earliest deadline of a session; None if there is none."""
        while self._queue:
            deadline, session_id = self._queue[0]
            if self._deadlines.get(session_id) == deadline:
                return deadline
            heapq.heappop(self._queue)
        return None

    def expired(self, now: float) -> list[str]:
        """The sessions whose deadline is over, earliest first."""
        over = [(deadline, each) for each, deadline in self._deadlines.items() if deadline <= now]
        return [each for _, each in sorted(over)]
