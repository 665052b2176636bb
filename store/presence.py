"""Presence of a process under its name, and the identity of a process on its node."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

import msgspec

from store import codec, operations
from store.consul.client import ConsulClient
from store.errors import Conflict, TransactionRejected
from store.ports import Clock

# The identity of a process: boot id, process id and start time, because process ids are used again.

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_ENDED = frozenset({b"Z", b"X"})


def boot_id() -> str:
    """The id of this machine's present boot; empty if the kernel does not tell."""
    return _BOOT_ID.read_text(encoding="ascii").strip() if _BOOT_ID.exists() else ""


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if it is gone, hidden or a zombie."""
    fields = _stat(pid)
    return None if not fields or fields[0] in _ENDED else int(fields[19])


def is_zombie(pid: int) -> bool:
    """Whether a process has ended, and its parent has not asked for its exit code yet."""
    fields = _stat(pid)
    return bool(fields) and fields[0] in _ENDED


def is_own(pid: int) -> bool:
    """Whether a process is of this process's own user and sees the same processes.

    Anybody may begin a process whose command line is that of a shim or a guard: a workload as its user, the
    root of a container in its namespace, and a set-user-ID program with another real user.

    Raises:
        OSError: it is gone, or hidden.
    """
    users, spaces = _status(pid)
    return set(users) == {str(os.geteuid())} and len(spaces) == len(_status(os.getpid())[1])


def user(pid: int) -> str:
    """The number of the user that a process began as.

    Raises:
        OSError: it is gone, or hidden.
    """
    return _status(pid)[0][0]


def _status(pid: int) -> tuple[list[str], list[str]]:
    """The users of a process, and its ids in this namespace of processes and in each below it."""
    # Only the kernel writes the ends of lines: it escapes them in names, but no other character.
    lines = Path(f"/proc/{pid}/status").read_bytes().decode("utf-8", "replace").split("\n")
    found = {name: rest.split() for name, _, rest in (line.partition(":") for line in lines)}
    return found.get("Uid", []), found.get("NSpid", [])


def _stat(pid: int) -> list[bytes]:
    """The kernel's fields of a process from its state on; empty if it is gone or hidden."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return []
    # The process name in parentheses may contain parentheses and spaces.
    return stat.rsplit(b")", 1)[1].split()


# Presence of a process under its name: a key that its session holds (R7, R21).
#
# Consul deletes the key with the session, so a key means that the process lives, or died less than twice
# the TTL ago. A second live process under one name is refused. The presence of a process that died on this
# machine is recognised by boot id, process id and start time, and its session is destroyed; so is an old
# session of this process, which may exist still, or again after Consul was restored from a snapshot.

ATTEMPTS = 4
PAUSE = 0.02
LOOK_SECONDS = 50.0
_NOWHERE = SplitResult("", "", "", "", "")


class _Process(msgspec.Struct):
    """The fields of a presence record that identify the process."""

    host: str = ""
    boot: str = ""
    pid: int = 0
    ticks: int = 0


def url(address: str) -> str:
    """The address of a process's HTTP from its record; old versions wrote no scheme."""
    return (address if "//" in address else f"http://{address}").rstrip("/")


def parts(address: str) -> SplitResult:
    """The parts of such an address, all empty if it is not one: a presence record may contain any text."""
    try:
        found = urlsplit(url(address))
        usable = found.port != 0  # also raises for what is no port
    except ValueError:
        return _NOWHERE
    return found if usable else _NOWHERE


def host(address: str) -> str:
    """The host of a process's HTTP address: where others reach its machine."""
    return parts(address).hostname or ""


def at_host(address: str, other: str) -> str:
    """The address of a process's HTTP at another name of its machine; empty keeps the one that it stated."""
    found = parts(address)
    if not (found.netloc and other):
        return url(address) if address else ""
    name = f"[{other}]" if ":" in other else other
    return f"{found.scheme}://{name}" + (f":{found.port}" if found.port else "")


def this_process() -> dict[str, Any]:
    """The fields that identify this process in its presence record."""
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
        Conflict: another live process has this name; the message says where it runs.
        RecordInvalid: another session holds the key, and its record does not decode.
        TransactionRejected: the key changed at each attempt, or the session has ended.
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
            if not found.session:
                # Somebody wrote over it. Farms keep what they saw at a creation, so it is created anew.
                guard.append(operations.delete(key))
        try:
            entries = await client.transaction([*guard, operations.lock(key, value, session)])
        except TransactionRejected as error:
            # Another process was faster, or the lock-delay of an ended session is not over yet (R5).
            rejected = error
            await clock.sleep(PAUSE * 2**attempt)
            continue
        return max(entry.modify_index for entry in entries)
    raise rejected


async def stands(client: ConsulClient, key: str, record: msgspec.Struct, session: str) -> bool:
    """Whether the key still has the session and record of this process; called every ``LOOK_SECONDS``."""
    found = await client.read(key)
    return found is not None and (found.session, found.value) == (session, codec.encode(record))


def _require_replaceable(key: str, value: bytes) -> None:
    """Raise ``Conflict`` unless the other process is this one, or died on this machine."""
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
        pass  # a process of another user, whose start may be hidden
    if is_zombie(other.pid):
        return False
    return not other.ticks or start_ticks(other.pid) in (None, other.ticks)
