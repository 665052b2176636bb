"""The effect of each verb on the tables, for single requests and transactions.

A verb returns the pairs that Consul reports, or raises ``Refused`` with Consul's text. A verb never
uses a clock: lock-delay is checked before (``kv_api.refusal``), because in Consul it is not part of
the replicated state.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable
from typing import Annotated, Any

import msgspec

from store.embedded.dialects import CONSUL_1_8, Dialect
from store.embedded.kv import KeyValues, Pair

# The session table: the sessions, which may hold locks, and their deadlines without a renewal.
#
# A session ends after twice its TTL (measured: a TTL of 10 s ends after 20 s), and its lock-delay is
# limited to a minute when it applies, not when it is stored. Deadlines are not persistent: after a
# restart every session has its full time again, as after a change of Consul's leader.

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


Unsigned = Annotated[int, msgspec.Meta(ge=0)]


class Refused(Exception):
    """The operation is refused; the text is Consul's. ``quiet``: a plain request answers ``false``."""

    def __init__(self, what: str, *, quiet: bool = False) -> None:
        super().__init__(what)
        self.what = what
        self.quiet = quiet


class KvOperation(
    msgspec.Struct, rename="pascal", omit_defaults=True, frozen=True, forbid_unknown_fields=True
):
    """One operation of a request; the verb may be any text, because an unknown verb has its own error."""

    verb: str = ""
    key: str = ""
    value: bytes | None = None
    flags: Unsigned = 0
    index: Unsigned = 0
    session: str = ""
    namespace: str = ""


class Tables(msgspec.Struct):
    """The tables that a verb reads and changes, and in which words it refuses."""

    kv: KeyValues
    sessions: Sessions
    dialect: Dialect = CONSUL_1_8


Verb = Callable[[Tables, int, KvOperation], list[Pair]]

WRITES = frozenset({"set", "cas", "lock", "unlock", "delete", "delete-cas", "delete-tree"})
UUID_LENGTH = 36


def apply(tables: Tables, index: int, operation: KvOperation) -> list[Pair]:
    """Apply one operation at a raft index.

    Returns:
        The pairs that a transaction reports: none for deletions, any number for ``get-tree``.

    Raises:
        Refused: nothing was changed by this operation.
    """
    verb = _VERBS.get(operation.verb)
    if verb is None:
        raise Refused(f"unknown KV verb {quoted(operation.verb)}")
    return verb(tables, index, operation)


def quoted(text: str) -> str:
    """Ordinary text as Go's ``%q`` prints it."""
    return json.dumps(text, ensure_ascii=False)


def check_session_id(session_id: str) -> None:
    """Refuse a text that cannot be a session's id, with Consul's error.

    Raises:
        Refused: the text is not 36 characters long.
    """
    if len(session_id) != UUID_LENGTH:
        raise Refused("failed session lookup: index error: UUID must be 36 characters")


def _pair(operation: KvOperation, before: Pair | None, *, session: str, lock_index: int) -> Pair:
    return Pair(
        lock_index=lock_index,
        key=operation.key,
        flags=operation.flags,
        value=operation.value or None,
        session=session,
        create_index=0 if before is None else before.create_index,
        modify_index=0,
    )


def _set(tables: Tables, index: int, operation: KvOperation) -> list[Pair]:
    """A plain write keeps the holder and sets the lock index to 0 (measured)."""
    before = tables.kv.get(operation.key)
    holder = "" if before is None else before.session
    return [tables.kv.write(index, _pair(operation, before, session=holder, lock_index=0))]


def _cas(tables: Tables, index: int, operation: KvOperation) -> list[Pair]:
    before = tables.kv.get(operation.key)
    if operation.index != (0 if before is None else before.modify_index):
        raise Refused(f"failed to set key {quoted(operation.key)}, index is stale", quiet=True)
    return _set(tables, index, operation)


def _lock(tables: Tables, index: int, operation: KvOperation) -> list[Pair]:
    if not operation.session:
        raise Refused("missing session")
    if tables.dialect.ids_are_uuids:
        check_session_id(operation.session)
    session = tables.sessions.get(operation.session.lower())
    if session is None:
        raise Refused(f"invalid session {quoted(operation.session)}")
    before = tables.kv.get(operation.key)
    if before is None:
        count = 1
    elif before.session == operation.session:
        count = before.lock_index
    elif before.session:
        raise Refused(f"failed to lock key {quoted(operation.key)}, lock is already held", quiet=True)
    else:
        count = before.lock_index + 1
    pair = _pair(operation, before, session=operation.session, lock_index=count)
    return [tables.kv.write(index, pair)]


def _unlock(tables: Tables, index: int, operation: KvOperation) -> list[Pair]:
    if not operation.session:
        raise Refused("missing session")
    before = tables.kv.get(operation.key)
    if before is None or before.session != operation.session:
        raise Refused(
            f"failed to unlock key {quoted(operation.key)}, lock isn't held, or is held by another session",
            quiet=True,
        )
    return [tables.kv.write(index, _pair(operation, before, session="", lock_index=before.lock_index))]


def _delete(tables: Tables, index: int, operation: KvOperation) -> list[Pair]:
    tables.kv.delete(index, operation.key)
    return []


def _delete_cas(tables: Tables, index: int, operation: KvOperation) -> list[Pair]:
    """The deletion of a missing key succeeds with any index."""
    before = tables.kv.get(operation.key)
    if before is not None and before.modify_index != operation.index:
        raise Refused(f"failed to delete key {quoted(operation.key)}, index is stale", quiet=True)
    return _delete(tables, index, operation)


def _delete_tree(tables: Tables, index: int, operation: KvOperation) -> list[Pair]:
    tables.kv.delete_under(index, operation.key)
    return []


def _get(tables: Tables, _index: int, operation: KvOperation) -> list[Pair]:
    pair = tables.kv.get(operation.key)
    if pair is None:
        raise Refused(f"key {quoted(operation.key)} doesn't exist")
    return [pair]


def _get_tree(tables: Tables, _index: int, operation: KvOperation) -> list[Pair]:
    return tables.kv.under(operation.key)


def _check_index(tables: Tables, _index: int, operation: KvOperation) -> list[Pair]:
    pair = tables.kv.get(operation.key)
    if pair is None:
        raise Refused(f"failed to check index, key {quoted(operation.key)} doesn't exist")
    if pair.modify_index != operation.index:
        raise Refused(
            f"failed index check for key {quoted(operation.key)}, "
            f"current modify index {pair.modify_index} != {operation.index}"
        )
    return [pair]


def _check_session(tables: Tables, _index: int, operation: KvOperation) -> list[Pair]:
    pair = tables.kv.get(operation.key)
    if pair is None:
        raise Refused(f"failed to check session, key {quoted(operation.key)} doesn't exist")
    if pair.session != operation.session:
        raise Refused(
            f"failed session check for key {quoted(operation.key)}, "
            f"current session {quoted(pair.session)} != {quoted(operation.session)}"
        )
    return [pair]


def _check_not_exists(tables: Tables, _index: int, operation: KvOperation) -> list[Pair]:
    if tables.kv.get(operation.key) is not None:
        raise Refused(f"key {quoted(operation.key)} exists")
    return []


_VERBS: dict[str, Verb] = {
    "set": _set,
    "cas": _cas,
    "lock": _lock,
    "unlock": _unlock,
    "delete": _delete,
    "delete-cas": _delete_cas,
    "delete-tree": _delete_tree,
    "get": _get,
    "get-tree": _get_tree,
    "check-index": _check_index,
    "check-session": _check_session,
    "check-not-exists": _check_not_exists,
}
