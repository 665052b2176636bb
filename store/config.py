"""Config keys: values that people keep below ``config/`` for the manifests of pods, and their last versions.

The value is stored raw, so ``consul kv get`` and ``consul kv put`` work with it. The version of a value is
the ModifyIndex of its key. ``config-history/`` holds one record per version that farmctl wrote, under a hash
of the path, so that the history of ``shop`` is never mixed with that of ``shop/db_url``. Both keys are
written in one transaction, so they have the same ModifyIndex.
"""

from __future__ import annotations

import hashlib
import re

import msgspec

from store import codec
from store.entry import Entry
from store.errors import NotFound, RecordInvalid, refuse
from store.keys import SENTINEL, Keys
from store.mistakes import shown
from store.named import Listing, records
from store.ports import KeyReader, Mode
from store.times import Time

FAMILY, HISTORY = "config", "config-history"
PREFIX = "config/"
MOST_VERSIONS = 10
MAX_BYTES = 64 * 1024
MAX_PATH = 200
_PATH = re.compile(
    r"[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_-])?(/[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_-])?)*"
)


class ConfigVersion(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One version of a config key: its value, who wrote it and why; ``deleted``: the key was deleted."""

    path: str
    at: Time
    by: str
    value: str = ""
    reason: str = ""
    deleted: bool = False


def valid_path(path: str, field: str = "key", *, foreign: bool = False) -> str:
    """A config key's path below ``config/``, which people may write in front of it. With ``foreign`` also any
    other key of Consul: ``/shared/db_url``.

    Raises:
        InputInvalid: it cannot be a path.
    """
    if foreign and path.startswith("/"):
        if len(path) > MAX_PATH or not path.strip("/") or not _plain(path):
            refuse(field, shown(path), f"a key of Consul after a slash, of {MAX_PATH} characters at most")
        return path
    found = path.removeprefix(PREFIX)
    if not _PATH.fullmatch(found) or len(found) > MAX_PATH or ".." in found or found.endswith(SENTINEL):
        expected = (
            f"names of letters, digits, '.', '_' and '-', with '/' between them, of {MAX_PATH} characters"
        )
        refuse(field, shown(path), f"{expected} at most, such as shop/db_url")
    return found


def _plain(path: str) -> bool:
    """Whether no server would take a path for another one."""
    return path.isprintable() and {"", ".", ".."}.isdisjoint(
        path.removeprefix("/").removesuffix("/").split("/")
    )


def valid_value(value: str, field: str = "value") -> str:
    """A value that fits into a config key.

    Raises:
        InputInvalid: it is too long or has a NUL character.
    """
    if (size := len(value.encode("utf-8", "surrogatepass"))) > MAX_BYTES:
        refuse(field, f"{size} bytes", f"at most {MAX_BYTES}")
    if "\0" in value:
        refuse(field, "a NUL character", "text without NUL characters")
    return value


def key_of(keys: Keys, path: str) -> str:
    """The key of a path."""
    return path[1:] if path.startswith("/") else f"{keys.tree(FAMILY)}{path}"


def told(path: str) -> str:
    """A path for people: ``config/shop/db_url``, or the key of Consul."""
    return path[1:] if path.startswith("/") else f"{PREFIX}{path}"


def history_of(keys: Keys, path: str, family: str = HISTORY) -> str:
    """The prefix of a path's versions, of config keys or of a family that keeps its versions alike."""
    return f"{keys.tree(family)}{hashlib.sha256(path.encode()).hexdigest()[:40]}/"


def text_of(entry: Entry) -> str:
    """The value of a config key.

    Raises:
        RecordInvalid: it is not text.
    """
    try:
        return entry.value.decode()
    except UnicodeDecodeError as error:
        raise RecordInvalid(f"{entry.key}: found bytes that are not valid UTF-8, expected text") from error


def missing(path: str) -> NotFound:
    """The error for a path without a value."""
    return NotFound(
        f"{PREFIX}{path} does not exist",
        kind=FAMILY,
        id=path,
        hint=f"set it: farmctl config set {path} VALUE",
    )


async def existing(client: KeyReader, keys: Keys, path: str, mode: Mode = "consistent") -> Entry:
    """The entry of a config key.

    Raises:
        NotFound: it does not exist.
    """
    entry = await client.read(key_of(keys, path), mode=mode)
    if entry is None:
        raise missing(path)
    return entry


async def versions(client: KeyReader, keys: Keys, path: str) -> Listing[ConfigVersion]:
    """The versions of a path that are kept, oldest first."""
    return await records(client, history_of(keys, path), ConfigVersion, mode="consistent")


async def value_at(client: KeyReader, keys: Keys, path: str, version: int) -> str:
    """The value that a path had at a version; 0: has now.

    Raises:
        NotFound: it has no value, or the version is not kept. RecordInvalid: it is not text.
    """
    if not version:
        return text_of(await existing(client, keys, path))
    current = await client.read(key_of(keys, path), mode="consistent")
    if current is not None and current.modify_index == version:
        return text_of(current)
    kept = await versions(client, keys, path)
    for each in kept.items:
        if each.index == version:
            return each.record.value
    raise NotFound(
        f"{PREFIX}{path} has no version {version}",
        kind=FAMILY,
        id=path,
        hint=f"farmctl config history {path} lists the {MOST_VERSIONS} versions that are kept",
    )


def encoded(version: ConfigVersion) -> bytes:
    """The record of a version."""
    return codec.encode(version)
