"""Optional durability for one machine: a snapshot and a log of commands, so that a restart keeps data.

Each committed command is appended before its answer is sent, so it survives the end of the process.
It is not synced to the disk: a power failure may lose the last commands, which is one reason why this
server is never presented as production. A cut last line is the result of a crash and is dropped; any
other damage is an error at the start, because dropping more could lose data.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO

import msgspec

from store.embedded.catalog import Content
from store.embedded.kv import Pair
from store.embedded.sessions import Session
from store.embedded.state import Command, Limits, State, Timer
from store.errors import StoreError

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
        """The stored state, with the TTL of every session started anew; further commands are appended.

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
