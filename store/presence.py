"""Presence of a process under its name: a key that its session holds (R7, R21).

The key vanishes with the session, so its existence means "alive, or dead for less than twice the TTL".
A second live process under one name is refused. A leftover of a process that died on this very machine
is recognised by boot id, process id and start time, and its session is destroyed; so is a session of this
very process that lives on, or came back with a snapshot of Consul.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec

from store import codec, operations
from store.consul.client import ConsulClient
from store.errors import Conflict, TransactionRejected
from store.ports import Clock
from store.process import boot_id, start_ticks

ATTEMPTS = 4
PAUSE = 0.02
LOOK_SECONDS = 30.0


class _Process(msgspec.Struct):
    """The part of a presence record that tells which process wrote it."""

    host: str = ""
    boot: str = ""
    pid: int = 0
    ticks: int = 0


def this_process() -> dict[str, Any]:
    """The fields of a presence record by which this process knows its own again."""
    pid = os.getpid()
    return {"boot": boot_id(), "pid": pid, "ticks": start_ticks(pid) or 0}


async def announce(
    client: ConsulClient,
    key: str,
    record: msgspec.Struct,
    session: str,
    *,
    clock: Clock,
) -> int:
    """Take the presence key for a session and return its ModifyIndex; a session that holds it rewrites it.

    Raises:
        Conflict: another live process bears this name; the message says where it runs.
        RecordInvalid: another session holds the key with a record that does not tell which process that is.
        TransactionRejected: each attempt met a change: by another process, or the session has ended.
    """
    value = codec.encode(record)
    for attempt in range(ATTEMPTS):
        found = await client.read(key)
        if found is not None and found.session not in ("", session):
            _require_replaceable(key, found.value)
            await client.destroy_session(found.session)
            found = await client.read(key)
        if found is None:
            guard = [operations.check_not_exists(key)]
        else:
            guard = [operations.check_index(key, found.modify_index)]
        try:
            entries = await client.transaction([*guard, operations.lock(key, value, session)])
        except TransactionRejected as error:
            # Somebody was faster, or the lock-delay of an ended session is not over yet (R5).
            rejected = error
            await clock.sleep(PAUSE * 2**attempt)
            continue
        return max(entry.modify_index for entry in entries)
    raise rejected


async def stands(client: ConsulClient, key: str, record: msgspec.Struct, session: str) -> bool:
    """Whether the key still holds what this process announced; asked every ``LOOK_SECONDS``."""
    found = await client.read(key)
    return found is not None and (found.session, found.value) == (session, codec.encode(record))


def _require_replaceable(key: str, value: bytes) -> None:
    """Refuse to take the name from any process but this one and those that died on this machine."""
    other = codec.decode(_Process, value, key)
    if other.boot and other.boot == boot_id():
        mine = other.ticks and (other.pid, other.ticks) == (os.getpid(), start_ticks(os.getpid()))
        if mine or not _alive(other):
            return
    name = key.rsplit("/", 1)[1]
    raise Conflict(
        f"{name!r} is already alive on host {other.host or 'unknown'} (process {other.pid}): choose another"
        " name, or wait until that session expires",
        key=key,
        host=other.host,
        pid=other.pid,
    )


def _alive(other: _Process) -> bool:
    try:
        os.kill(other.pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # another user's, whose start may be hidden
    return not other.ticks or start_ticks(other.pid) in (None, other.ticks)
