"""Presence of a process under its name: a key that its session holds (R7, R21).

The key vanishes with the session, so its existence means "alive, or dead for less than twice the TTL".
A second live process under one name is refused. A leftover of a process that died on this very machine
is recognised by boot id and process id, and its session is destroyed.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Protocol

import msgspec

from store import codec, operations
from store.consul.client import ConsulClient
from store.errors import Conflict, StoreError, TransactionRejected
from store.ports import Clock

ATTEMPTS = 4
PAUSE = 0.02
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class _Process(msgspec.Struct):
    """The part of a presence record that tells which process wrote it."""

    host: str = ""
    boot: str = ""
    pid: int = 0


class Present(Protocol):
    """A presence record: ``farms.Member`` or ``nodes.Agent``."""

    host: str
    boot: str
    pid: int


def boot_id() -> str:
    """This boot of this machine; empty where the kernel does not tell."""
    return BOOT_ID.read_text().strip() if BOOT_ID.exists() else ""


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


async def announce(
    client: ConsulClient,
    key: str,
    record: msgspec.Struct,
    session: str,
    *,
    clock: Clock,
    former: Collection[str] = (),
) -> int:
    """Take the presence key for a session and return its ModifyIndex; a session that holds it rewrites it.

    ``former`` are earlier sessions of this very process, which may live on if they could not be ended.

    Raises:
        Conflict: another live process bears this name; the message says where it runs.
    """
    value = codec.encode(record)
    for attempt in range(ATTEMPTS):
        found = await client.read(key)
        if found is not None and found.session not in ("", session):
            if found.session in former:
                await client.destroy_session(found.session)
            else:
                await _evict(client, key, found.value, found.session)
            found = await client.read(key)
        if found is None:
            guard = [operations.check_not_exists(key)]
        else:
            guard = [operations.check_index(key, found.modify_index)]
        try:
            entries = await client.transaction([*guard, operations.lock(key, value, session)])
        except TransactionRejected:
            # Somebody was faster, or the lock-delay of an ended session is not over yet (R5).
            await clock.sleep(PAUSE * 2**attempt)
            continue
        return max(entry.modify_index for entry in entries)
    raise Conflict(f"{key}: taken by another process at the same moment", key=key)


async def _evict(client: ConsulClient, key: str, value: bytes, session: str) -> None:
    try:
        other = codec.decode(_Process, value, key)
    except StoreError:
        other = _Process()
    if other.boot and other.boot == boot_id() and not _alive(other.pid):
        await client.destroy_session(session)
        return
    name = key.rsplit("/", 1)[1]
    raise Conflict(
        f"{name!r} is already alive on host {other.host or 'unknown'} (process {other.pid}): choose another"
        " name, or wait until that session expires",
        key=key,
        host=other.host,
        pid=other.pid,
    )
