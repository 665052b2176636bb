"""The server's state: every change is a command that is applied at the next raft index; without await.

It also holds what Consul keeps outside of its replicated tables: lock-delays, the deadlines of
sessions and the age of tombstones, all by the injected clock. A table must never change outside of
``apply`` (the log would miss the change), and a watch must never wake before a change is complete.
"""

from __future__ import annotations

import fcntl
import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

import msgspec

from store.embedded import verbs
from store.embedded.answers import TableWatches
from store.embedded.catalog import ANYTHING, Catalog, CatalogOperation, Content, Entry
from store.embedded.dialects import Dialect
from store.embedded.encoding import parse
from store.embedded.kv import KeyValues, Pair
from store.embedded.verbs import NANOSECONDS, KvOperation, Refused, Session, Sessions, Tables
from store.errors import StoreError

TOMBSTONE_SECONDS = 900.0
TOMBSTONE_GRANULARITY = 30.0


class Timer(Protocol):
    """The part of ``store.ports.Clock`` that the server needs: deadlines, no wall clock."""

    def mono(self) -> float:
        """Monotonic seconds."""

    async def sleep(self, seconds: float) -> None:
        """Return after that many seconds of this clock."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of the server; the defaults are those of Consul 1.8."""

    operations: int = 64
    value_bytes: int = 512 * 1024
    transaction_bytes: int = 512 * 1024
    session_ttl_min: float = 10.0
    session_ttl_max: float = 86_400.0


Operation = KvOperation | CatalogOperation
Result = Pair | Entry


class Transaction(msgspec.Struct, tag="txn", frozen=True):
    """Operations that are applied together or not at all; a plain write is one with one operation."""

    operations: list[Operation]


class CreateSession(msgspec.Struct, tag="session", frozen=True):
    """A checked session, complete but for its indexes."""

    session: Session


class DestroySession(msgspec.Struct, tag="destroy", frozen=True):
    """A session that was destroyed or has expired: its behaviour frees its locks, lock-delay starts."""

    session_id: str


class Reap(msgspec.Struct, tag="reap", frozen=True):
    """Drops the tombstones up to an index."""

    up_to: int


Command = Transaction | CreateSession | DestroySession | Reap


class Failure(msgspec.Struct, frozen=True):
    """One refused operation of a transaction."""

    place: int
    what: str
    quiet: bool = False


class State:
    """Tables, raft index, deadlines and watches of one server.

    Args:
        timer: the clock of the deadlines.
        limits: larger requests are refused.
    """

    def __init__(self, timer: Timer, limits: Limits | None = None) -> None:
        self.timer = timer
        self.limits = limits or Limits()
        self.raft_index = 4  # a fresh Consul has elected itself by then
        self.kv = KeyValues()
        self.sessions = Sessions()
        self.catalog = Catalog()
        self.kv_watches = TableWatches()
        self.session_watches = TableWatches()
        self.catalog_watches = TableWatches()
        self.committed: Callable[[int, Command], None] | None = None
        self._tables = Tables(self.kv, self.sessions)
        self._delays: dict[str, float] = {}
        self._graves: deque[tuple[float, int]] = deque()

    @property
    def dialect(self) -> Dialect:
        """The version whose answers are given."""
        return self._tables.dialect

    def speak(self, dialect: Dialect) -> None:
        """Answer as another version does."""
        self._tables.dialect = dialect
        self.catalog.later = dialect.later

    # Commands

    def commit(self, command: Command) -> tuple[list[Result], list[Failure]]:
        """Apply a command at the next raft index, log it, and wake the watches of its keys.

        Returns:
            The results, and the failures: with a failure nothing was changed.
        """
        self.raft_index += 1
        outcome = self.apply(self.raft_index, command)
        if self.committed is not None and not outcome[1]:
            self.committed(self.raft_index, command)
        return outcome

    def apply(self, index: int, command: Command) -> tuple[list[Result], list[Failure]]:
        """Apply a command at ``index``; also used to replay a log."""
        self.raft_index = index
        match command:
            case Transaction(operations):
                return self._transaction(index, operations)
            case CreateSession(session):
                self._create(index, session)
            case DestroySession(session_id):
                self._destroy(index, session_id)
            case Reap(up_to):
                self.kv.reap(up_to)
        return [], []

    def read(self, operations: Sequence[Operation]) -> tuple[list[Result], list[Failure]]:
        """Run operations that write nothing; no raft index is used."""
        return self._run(self.raft_index, operations)

    # Lock-delay, deadlines

    def lock_delay(self, key: str) -> float:
        """Seconds until the key can be locked again."""
        until = self._delays.get(key)
        if until is None:
            return 0.0
        left = until - self.timer.mono()
        if left <= 0:
            del self._delays[key]
        return max(0.0, left)

    def renew(self, session: Session) -> None:
        """Renew the session's TTL."""
        ttl = parse(session.ttl) / NANOSECONDS if session.ttl else 0.0
        self.sessions.renew(session.id, self.timer.mono(), ttl)

    def next_deadline(self) -> float | None:
        """The time of the next expiry of a session or tombstone; None if there is none."""
        graves = self._graves[0][0] if self._graves else None
        sessions = self.sessions.next_deadline()
        both = [each for each in (graves, sessions) if each is not None]
        return min(both) if both else None

    def expire(self) -> None:
        """End the sessions that were not renewed in time, and drop old tombstones."""
        now = self.timer.mono()
        deadline = self.next_deadline()
        if deadline is None or deadline > now:
            return
        for session_id in self.sessions.expired(now):
            self.commit(DestroySession(session_id))
        while self._graves and self._graves[0][0] <= now:
            self.commit(Reap(self._graves.popleft()[1]))

    def restart_deadlines(self) -> None:
        """Give every session its full TTL and drop lock-delays, as after a change of the leader."""
        self._delays.clear()
        for session in self.sessions.all():
            self.renew(session)

    # The commands

    def _transaction(self, index: int, operations: Sequence[Operation]) -> tuple[list[Result], list[Failure]]:
        self.kv.begin()
        before = self._catalog_before(operations)
        results, failures = self._run(index, operations)
        if failures:
            self.kv.rollback()
            self.catalog.content = before or self.catalog.content
            return [], failures
        self._finish(index)
        if before is not None:
            self.catalog_watches.changed([ANYTHING])
        return results, []

    def _catalog_before(self, operations: Sequence[Operation]) -> Content | None:
        """The catalogue as it is, for a transaction that may change it."""
        touched = any(isinstance(operation, CatalogOperation) for operation in operations)
        return self.catalog.content.copy() if touched else None

    def _run(self, index: int, operations: Sequence[Operation]) -> tuple[list[Result], list[Failure]]:
        """Each operation sees the effects of those before it; a failing one changes nothing."""
        results: list[Result] = []
        failures: list[Failure] = []
        for place, operation in enumerate(operations):
            try:
                if isinstance(operation, CatalogOperation):
                    results += self.catalog.apply(index, operation)
                    continue
                pairs = verbs.apply(self._tables, index, operation)
            except Refused as refused:
                failures.append(Failure(place, refused.what, refused.quiet))
                continue
            if operation.verb in {"get", "get-tree"}:
                results += pairs
            else:
                results += [msgspec.structs.replace(pair, value=None) for pair in pairs]
        return ([] if failures else results), failures

    def _create(self, index: int, session: Session) -> None:
        self.renew(self.sessions.add(index, session))
        self.session_watches.changed([session.id])

    def _destroy(self, index: int, session_id: str) -> None:
        session = self.sessions.get(session_id)
        if session is None:
            return
        self.kv.begin()
        delay = session.lock_delay_seconds()
        for key in self.kv.held_by(session.id):
            pair = self.kv.get(key)
            if pair is not None and session.behavior == "delete":
                self.kv.delete(index, key)
            elif pair is not None:
                self.kv.write(index, msgspec.structs.replace(pair, session=""))
            if delay > 0:
                self._delays[key] = self.timer.mono() + delay
        self.sessions.remove(index, session_id)
        self._finish(index)
        self.session_watches.changed([session_id])

    def _finish(self, index: int) -> None:
        """End a complete change: note its tombstones, then wake the watches."""
        if self.kv.buried():
            self._note_grave(index)
        self.kv_watches.changed(self.kv.commit())

    def _note_grave(self, index: int) -> None:
        """Group the tombstones of half a minute; a group is dropped when its last one is old enough."""
        until = self.timer.mono() + TOMBSTONE_SECONDS + TOMBSTONE_GRANULARITY
        if self._graves and until - self._graves[-1][0] < TOMBSTONE_GRANULARITY:
            self._graves[-1] = (self._graves[-1][0], index)
        else:
            self._graves.append((until, index))


# Optional durability for one machine: a snapshot and a log of commands, so that a restart keeps data.
#
# Each committed command is appended before its answer is sent, so it survives the end of the process.
# It is not synced to the disk: a power failure may lose the last commands, which is one reason why this
# server is never presented as production. A cut last line is the result of a crash and is dropped; any
# other damage is an error at the start, because dropping more could lose data.

SNAPSHOT_EVERY = 20_000


class DataDirectoryBroken(StoreError):
    """The data directory is in use, unreadable or damaged; the message names the file."""

    code = "data_directory_broken"


class _Line(msgspec.Struct):
    index: int
    command: Command


class _Snapshot(msgspec.Struct):
    index: int
    kv_index: int
    session_index: int
    pairs: list[Pair]
    tombstones: list[tuple[str, int]]
    sessions: list[Session]
    catalog: Content = msgspec.field(default_factory=Content)


_encoder = msgspec.json.Encoder()


class Log:
    """The data directory of one server; hold it open while the server runs, then ``close`` it."""

    def __init__(self, folder: Path, snapshot_every: int = SNAPSHOT_EVERY) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._snapshot = folder / "snapshot.json"
        self._log = folder / "log.jsonl"
        self._every = snapshot_every
        self._lines = 0
        self._file: IO[bytes] | None = None
        self._lock = (folder / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise DataDirectoryBroken(f"{folder}: another server uses this data directory") from error

    def load(self, timer: Timer, limits: Limits | None = None) -> State:
        """The stored state, with the TTL of each session renewed; further commands are appended.

        Raises:
            DataDirectoryBroken: a file in the folder cannot be read.
        """
        state = State(timer, limits)
        self._read_snapshot(state)
        self._replay(state)
        state.restart_deadlines()
        self._file = self._log.open("ab")
        state.committed = lambda index, command: self._append(state, index, command)
        return state

    def close(self) -> None:
        """Close the log and release the folder."""
        if self._file is not None:
            self._file.close()
        self._lock.close()

    def _append(self, state: State, index: int, command: Command) -> None:
        assert self._file is not None
        self._file.write(_encoder.encode(_Line(index, command)) + b"\n")
        self._file.flush()
        self._lines += 1
        if self._lines >= self._every:
            self._write_snapshot(state)

    def _write_snapshot(self, state: State) -> None:
        """Replace the snapshot by rename, then empty the log. A crash between the two is harmless,
        because a replay skips the lines up to the snapshot's index."""
        assert self._file is not None
        pairs, tombstones = state.kv.dump()
        snapshot = _Snapshot(
            state.raft_index,
            state.kv.index,
            state.sessions.index,
            pairs,
            tombstones,
            state.sessions.all(),
            state.catalog.content,
        )
        part = self._snapshot.with_suffix(".part")
        with part.open("wb") as file:
            file.write(_encoder.encode(snapshot))
            file.flush()
            os.fsync(file.fileno())
        part.rename(self._snapshot)
        self._file.truncate(0)
        self._lines = 0

    def _read_snapshot(self, state: State) -> None:
        if not self._snapshot.exists():
            return
        try:
            found = msgspec.json.decode(self._snapshot.read_bytes(), type=_Snapshot)
        except (msgspec.DecodeError, OSError) as error:
            raise DataDirectoryBroken(f"{self._snapshot}: {error}") from error
        state.raft_index = found.index
        state.kv.load(found.pairs, found.tombstones)
        state.kv.index = found.kv_index
        state.sessions.load(found.sessions)
        state.sessions.index = found.session_index
        state.catalog.content = found.catalog

    def _replay(self, state: State) -> None:
        if not self._log.exists():
            return
        whole = self._log.read_bytes()
        body, _, cut = whole.rpartition(b"\n")
        for number, text in enumerate(body.split(b"\n") if body else (), 1):
            try:
                line = msgspec.json.decode(text, type=_Line)
            except msgspec.DecodeError as error:
                raise DataDirectoryBroken(f"{self._log}, line {number}: {error}") from error
            if line.index > state.raft_index:
                state.apply(line.index, line.command)
                self._lines += 1
        if cut:
            with self._log.open("r+b") as file:
                file.truncate(len(whole) - len(cut))
