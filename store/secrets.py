"""Secrets: values that no reader of the store can read, and the groups of recipients that they are sealed to.

``secrets/<path>`` holds the newest version of a secret: age ciphertext, made on a person's machine, and the
recipients that can open it. ``secret-versions/`` holds the same record per version, under a hash of the path.
``secret-groups/<name>`` holds the recipients of a group. A manifest that refers to a secret has the
ciphertext in ``sealed``, so neither farms nor agents read these keys. Nothing here encrypts or decrypts.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from store import config
from store.entry import Entry, Stored
from store.errors import NotFound, RecordInvalid, refuse
from store.keys import Keys, valid_segment
from store.mistakes import shown
from store.named import Listing, records
from store.ports import KeyReader
from store.times import Time

FAMILY, VERSIONS, GROUPS = "secrets", "secret-versions", "secret-groups"
PREFIX = "secrets/"
MOST_VERSIONS = 10
MAX_BYTES = 64 * 1024
MAX_SEALED_BYTES = MAX_BYTES + 32 * 1024
MOST_RECIPIENTS = 64
IN_A_FILE = "a file (secrets): an engine keeps a container's variables on disk"
"""What is expected of a container instead of a variable with a secret."""
MAGIC = b"age-encryption.org/v1\n"
# The library reads a header in a time that grows with its square, and stops the whole process meanwhile. One
# for MOST_RECIPIENTS has at most 7 KiB in 140 lines.
MAX_HEADER_BYTES, MAX_HEADER_LINES = 8 * 1024, 160
_HEADER_END = b"\n--- "
_RECIPIENT = re.compile(r"age1[02-9ac-hj-np-z]{58}")
_REFERENCE = re.compile(r"(?P<path>[^@]+)(@(?P<version>[1-9][0-9]{0,7}))?")


class Sealed(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A secret in a manifest: its ciphertext in base64, and the recipients of ``group`` that can open it.

    ``pinned``: the person's file named the version.
    """

    version: int
    group: str
    recipients: list[str]
    body: str
    pinned: bool = False


class SecretVersion(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One version of a secret, sealed to the recipients of a group; ``body`` is age ciphertext in base64.

    ``resealed``: when its value was last encrypted again. ``deleted``: the secret was deleted.
    """

    path: str
    version: int
    at: Time
    by: str
    group: str = ""
    recipients: list[str] = []
    body: str = ""
    reason: str = ""
    resealed: Time = 0.0
    deleted: bool = False


class SecretGroup(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The age recipients that the secrets of a group are sealed to."""

    name: str
    recipients: list[str] = []


def valid_path(path: str, field: str = "secret") -> str:
    """A secret's path, which people may write with ``secrets/`` in front of it.

    Raises:
        InputInvalid: it cannot be a path.
    """
    return config.valid_path(path.removeprefix(PREFIX), field)


def parsed(reference: str, field: str) -> tuple[str, int]:
    """The path and version of ``shop/db@3``; version 0: the newest.

    Raises:
        InputInvalid: it is no reference.
    """
    found = _REFERENCE.fullmatch(reference)
    if found is None:
        refuse(field, shown(reference), "NAME or NAME@VERSION, such as shop/db or shop/db@3")
    return valid_path(found["path"], field), int(found["version"] or 0)


def reference(path: str, version: int) -> str:
    """``shop/db@3``."""
    return f"{path}@{version}"


def valid_recipients(recipients: Sequence[str], field: str = "recipient") -> list[str]:
    """Recipients of the age format, X25519, each once and in order.

    Raises:
        InputInvalid: one is none, there is none, or there are too many.
    """
    for each in recipients:
        if not _RECIPIENT.fullmatch(each):
            what = "an identity, which is secret" if "AGE-SECRET-KEY" in each.upper() else shown(each)
            refuse(field, what, "an X25519 recipient of age, age1…: farmctl secret keygen prints one")
    found = sorted(set(recipients))
    if not 1 <= len(found) <= MOST_RECIPIENTS:
        refuse(field, f"{len(found)} recipients", f"1 to {MOST_RECIPIENTS}")
    return found


def key_of(keys: Keys, path: str) -> str:
    """The key of a secret."""
    return f"{keys.tree(FAMILY)}{path}"


def versions_of(keys: Keys, path: str) -> str:
    """The prefix of a secret's versions."""
    return config.history_of(keys, path, VERSIONS)


def group_key(keys: Keys, name: str) -> str:
    """The key of a group."""
    return f"{keys.tree(GROUPS)}{valid_segment(name, 'group')}"


def missing(path: str) -> NotFound:
    """The error for a path without a secret."""
    return NotFound(
        f"{PREFIX}{path} does not exist",
        kind=FAMILY,
        id=path,
        hint=f"set it: farmctl secret set {path} --from-file FILE --group GROUP",
    )


async def newest(client: KeyReader, keys: Keys, path: str) -> Stored[SecretVersion] | None:
    """The newest version of a secret; None: there is no such secret.

    Raises:
        RecordInvalid: its record does not decode, or is another secret's.
    """
    entry = await client.read(key_of(keys, path), mode="consistent")
    return None if entry is None else _stored(entry, path)


async def existing(client: KeyReader, keys: Keys, path: str) -> Stored[SecretVersion]:
    """The newest version of a secret.

    Raises:
        NotFound: there is no such secret. RecordInvalid: as ``newest``.
    """
    found = await newest(client, keys, path)
    if found is None:
        raise missing(path)
    return found


def _stored(entry: Entry, path: str, version: int = 0) -> Stored[SecretVersion]:
    """Decode an entry, and check that it belongs to this secret and, unless 0, to this version.

    The ciphertext does not name its secret, so only this check finds a record that was moved to another key.
    """
    from store import codec

    stored = codec.stored(SecretVersion, entry)
    found = stored.record
    if found.path != path or version not in (0, found.version):
        expected = reference(path, version) if version else f"a version of {path}"
        text = f"{entry.key}: found {shown(reference(found.path, found.version))}, expected {expected}"
        raise RecordInvalid(text, key=entry.key)
    return stored


async def versions(client: KeyReader, keys: Keys, path: str) -> Listing[SecretVersion]:
    """The versions of a secret that are kept, oldest first."""
    return await records(client, versions_of(keys, path), SecretVersion, mode="consistent")


async def version_of(client: KeyReader, keys: Keys, path: str, version: int) -> SecretVersion | None:
    """A version of a secret; 0: the newest. None: it does not exist, or is not kept any more.

    Raises:
        RecordInvalid: its record does not decode, or is another secret's or another version's.
    """
    if not version:
        found = await newest(client, keys, path)
        return None if found is None else found.record
    entry = await client.read(f"{versions_of(keys, path)}{version:08}", mode="consistent")
    record = None if entry is None else _stored(entry, path, version).record
    return None if record is None or record.deleted else record


def sealed(version: SecretVersion, *, pinned: bool) -> Sealed:
    """A version as a manifest has it."""
    return Sealed(
        version=version.version,
        group=version.group,
        recipients=version.recipients,
        body=version.body,
        pinned=pinned,
    )


def stale(found: SecretVersion | Sealed, groups: Mapping[str, Sequence[str]]) -> list[str]:
    """The recipients that can open a version although its group, by name, does not have them any more."""
    current = groups.get(found.group, ())
    return [each for each in found.recipients if each not in current]


Mistake = tuple[str, object, str]


def mistakes(found: Mapping[str, Sealed], used: Sequence[tuple[str, str]]) -> Iterator[Mistake]:
    """What cannot work of a manifest's secrets; ``used`` are the fields that refer to one, and to which."""
    for field, name in used:
        if name not in found:
            yield field, name, f"one of the manifest's sealed secrets ({', '.join(found) or 'none'})"
    for name, each in found.items():
        where = f"sealed.{name}"
        if not each.recipients or not all(map(_RECIPIENT.fullmatch, each.recipients)):
            yield f"{where}.recipients", each.recipients, "recipients of age, age1…"
        if name not in {other for _, other in used}:
            yield where, "no variable and no file that refers to it", "at least one"
        if each.version < 1 or not name.endswith(f"@{each.version}"):
            yield f"{where}.version", each.version, "the version in its name"
        if why := _flaw(each.body):
            yield f"{where}.body", why, f"age ciphertext in base64, at most {MAX_SEALED_BYTES} bytes"


def _flaw(body: str) -> str:
    try:
        found = base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError):
        return "no base64"
    if len(found) > MAX_SEALED_BYTES:
        return f"{len(found)} bytes"
    header, end, _ = found.partition(_HEADER_END)
    if not (header.startswith(MAGIC) and end):
        return "no age ciphertext"
    if len(header) > MAX_HEADER_BYTES or header.count(b"\n") > MAX_HEADER_LINES:
        return f"a header for more than {MOST_RECIPIENTS} recipients"
    return ""
