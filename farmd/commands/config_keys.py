"""Sets and deletes config keys: the value, its version and the audit record are one transaction (R12)."""

from __future__ import annotations

import hashlib

import msgspec

from farmd.commands.mutation import Call, Change, Mutation, Scalar, registered
from store import config, operations
from store.config import ConfigVersion
from store.entry import Entry, RawEntry, Stored
from store.operations import Operation
from store.times import Time


class ConfigRow(msgspec.Struct, frozen=True):
    """One config key in a list."""

    key: str
    version: int
    bytes: int


class VersionRow(msgspec.Struct, frozen=True):
    """One version of a config key; one that farmctl did not write has neither a time nor an author."""

    version: int
    at: Time
    by: str
    bytes: int
    state: str
    reason: str


async def rows(call: Call, prefix: str = "") -> list[ConfigRow]:
    """The config keys below a prefix, by key."""
    tree = call.keys.tree(config.FAMILY)
    page = await call.client.list(f"{tree}{prefix.removeprefix(config.PREFIX)}", mode="consistent")
    return [_row(tree, raw) for raw in page.items]


def _row(tree: str, raw: RawEntry) -> ConfigRow:
    return ConfigRow(raw.key.removeprefix(tree), raw.modify_index, len(raw.decoded()))


async def history(call: Call, path: str) -> tuple[list[VersionRow], list[str]]:
    """The versions of a config key that are kept, newest first, and a line for each that does not decode.

    Raises:
        NotFound: it never had a value.
    """
    kept = await config.versions(call.client, call.keys, path)
    current = await call.client.read(config.key_of(call.keys, path), mode="consistent")
    if current is None and not kept.items:
        raise config.missing(path)
    at = current.modify_index if current is not None else 0
    found = [_version_row(each, at) for each in reversed(kept.items)]
    if current is not None and all(row.version != at for row in found):
        found.insert(0, VersionRow(at, 0.0, "", len(current.value), "current", "not written by farmctl"))
    return found, kept.mistakes


def _version_row(stored: Stored[ConfigVersion], current: int) -> VersionRow:
    record = stored.record
    state = "deleted" if record.deleted else "current" if stored.index == current else "old"
    return VersionRow(stored.index, record.at, record.by, len(record.value.encode()), state, record.reason)


async def set_value(call: Call, path: str, value: str, read: Entry | None = None) -> Mutation:
    """Set a config key; nothing if it has the value already. ``read``: the entry that the caller saw.

    Raises:
        InputInvalid: the path or the value cannot be. NotRegistered: there is no cluster.
    """
    path, value = config.valid_path(path), config.valid_value(value)
    entry = read or await call.client.read(config.key_of(call.keys, path), mode="consistent")
    body = value.encode()
    change = _change(path, "set", entry, _told(body))
    if entry is not None and entry.value == body:
        return Mutation(change)
    index = entry.modify_index if entry is not None else 0
    write = operations.cas(config.key_of(call.keys, path), body, index)
    return Mutation(change, await _kept(call, write, _version(call, path, value=value)))


async def delete(call: Call, path: str) -> Mutation:
    """Delete a config key; its last versions are kept. Pods keep the values that their manifests have.

    Raises:
        NotFound: it does not exist. NotRegistered: there is no cluster.
    """
    path = config.valid_path(path)
    entry = await config.existing(call.client, call.keys, path)
    change = _change(path, "delete", entry, {}, destructive=True)
    gone = operations.delete_cas(entry.key, entry.modify_index)
    # Else a missing key, which delete_cas accepts, would be deleted once more.
    check = operations.check_index(entry.key, entry.modify_index)
    return Mutation(change, (check, *await _kept(call, gone, _version(call, path, deleted=True))))


def _version(call: Call, path: str, *, value: str = "", deleted: bool = False) -> ConfigVersion:
    return ConfigVersion(
        path=path, at=call.clock.now(), by=call.actor, value=value, reason=call.reason, deleted=deleted
    )


async def _kept(call: Call, write: Operation, version: ConfigVersion) -> tuple[Operation, ...]:
    """A write with the record of its version; the oldest ones make room."""
    prefix = config.history_of(call.keys, version.path)
    numbers = await kept_numbers(call, prefix)
    number = numbers[-1] + 1 if numbers else 1
    return (
        await registered(call),
        write,
        operations.create(f"{prefix}{number:08}", config.encoded(version)),
        *room(prefix, numbers, config.MOST_VERSIONS),
    )


async def kept_numbers(call: Call, prefix: str) -> list[int]:
    """The numbers of the versions below a prefix, also of the mark of what was deleted."""
    found = (await call.client.keys(prefix, mode="consistent")).items
    return sorted(int(last) for key in found if (last := call.keys.last_part(key)).isdecimal())


def room(prefix: str, numbers: list[int], most: int) -> list[Operation]:
    """Deletes the oldest versions, so that one more fits: at most ``most`` of them in one transaction."""
    old = numbers[: max(0, len(numbers) + 1 - most)][:most]
    return [operations.delete(f"{prefix}{each:08}") for each in old]


def _change(
    path: str, verb: str, entry: Entry | None, after: dict[str, Scalar], *, destructive: bool = False
) -> Change:
    before = _told(entry.value) if entry is not None else {}
    return Change(config.FAMILY, path, path, f"config.{verb}", before, after, destructive=destructive)


def _told(value: bytes) -> dict[str, Scalar]:
    """What people and the audit see of a value: never the value itself."""
    return {"bytes": len(value), "sha256": hashlib.sha256(value).hexdigest()[:12]}
