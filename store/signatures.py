"""Signatures of manifests: a person's permission for an owner's pods to run a manifest (R32).

A signature covers the manifest's digest, the owner as ``<family>/<name>``, the cluster, and from when until
when the manifest may start there for the first time. It lies at
``signatures/<digest>/<key id>/<family>/<name>``. What is signed are the bytes of ``payload``. Revocations
(``store.revocations``) lie below the same tree. This module knows no cryptography: ``farmd.signing`` makes
and checks the signatures.
"""

from __future__ import annotations

import hashlib
import re
from functools import partial
from typing import Annotated

import msgspec

from store import codec, operations
from store.entry import Entry
from store.errors import InputInvalid, RecordInvalid, refuse
from store.keys import Keys, valid_name
from store.mistakes import shown
from store.named import sifted
from store.operations import Operation
from store.ports import KeyReader

KIND = "signatures"
LONGEST = 400 * 86_400
"""The longest time, in seconds, for which a signature holds."""
LARGEST = 4096
"""How many bytes a record of a signature or a revocation may have; larger ones do not decode."""
MOST_BYTES = 8 * 1024 * 1024
"""How many bytes of such records, or of names, an agent reads at once: others than it write them."""
MOST_OF_ONE = 1000
"""How many signatures of one manifest an agent looks at."""
EARLY = 300
"""How many seconds before its time a signature counts, because the signer's clock may be ahead."""

UNSIGNED = "not signed: "
"""What the reason of a pod begins with that no signature permits to start."""

_DIGEST = re.compile(r"[0-9a-f]{64}")
_CLUSTER = re.compile(r"[!-~]{1,128}")
_OWNER = re.compile(r"[a-z]+/[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_BESIDE = re.compile(r"(?P<stem>.+)-[0-9a-f]{6}")
_CUT = 56  # what is left of a long name in front of the six digits

Second = Annotated[int, msgspec.Meta(ge=0, le=2**40)]


class Statement(msgspec.Struct, frozen=True, omit_defaults=True):
    """The signed statement: pods of ``owner`` may run the manifest with this ``digest``, and start it for
    the first time between ``begins`` and ``ends`` (seconds since the epoch), in the cluster with the id
    ``cluster``. Statements of version 1 name no cluster and hold in all of them.
    """

    digest: str
    owner: str
    begins: Second
    ends: Second
    cluster: str = ""


class Signature(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One statement with its signature and the public key, in hex. ``by`` is for people, and nothing proves
    it.
    """

    statement: Statement
    key: str
    signature: str
    by: str = ""

    @property
    def key_id(self) -> str:
        """The short name of its key."""
        return key_id(self.key)


def payload(statement: Statement) -> bytes:
    """The bytes that are signed: one line each, so that no two statements have the same.

    Raises:
        InputInvalid: the statement cannot be one.
    """
    check(statement)
    said = (statement.digest, statement.owner, statement.begins, statement.ends)
    bound = ("farmd manifest 2", *said, statement.cluster)
    lines = bound if statement.cluster else ("farmd manifest 1", *said)
    return "\n".join(map(str, (*lines, ""))).encode()


def check(statement: Statement) -> None:
    """Check the form of a statement.

    Raises:
        InputInvalid: one line with the field, what was found and what was expected.
    """
    valid_digest(statement.digest)
    if statement.cluster and not _CLUSTER.fullmatch(statement.cluster):
        refuse("cluster", shown(statement.cluster), "the id of a cluster")
    valid_owner(statement.owner)
    if not 0 < statement.ends - statement.begins <= LONGEST:
        refuse("ends", f"{statement.ends - statement.begins} s", f"1 to {LONGEST} s after its begin")


def valid_digest(digest: str) -> str:
    """Return the digest of a manifest.

    Raises:
        InputInvalid: it is not 64 hex digits.
    """
    if not _DIGEST.fullmatch(digest):
        refuse("digest", shown(digest), "64 hex digits")
    return digest


def valid_owner(owner: str) -> str:
    """Return an owner of pods as ``<family>/<name>``.

    Raises:
        InputInvalid: anything else.
    """
    if not _OWNER.fullmatch(owner):
        refuse("owner", shown(owner), "FAMILY/NAME of an owner of pods")
    valid_name(owner.partition("/")[2], "owner")
    return owner


def covers(signed: str, owner: str) -> bool:
    """Whether a signature for one owner is also one for another: for the one that a rollout puts in its
    place, which is called as it is, with six hex digits behind the name, until it takes the name over.
    """
    found = _BESIDE.fullmatch(owner)
    family, _, name = signed.partition("/")
    return signed == owner or (found is not None and found["stem"] == f"{family}/{stem(name)}")


def stem(name: str) -> str:
    """What a controller's name and that of the second one beside it begin with."""
    return name if len(name) <= _CUT else name[:_CUT].rstrip("-")


def key_id(key: str) -> str:
    """The short name of a public key: 16 hex digits of its SHA-256."""
    return hashlib.sha256(key.encode()).hexdigest()[:16]


def fits(entry: Entry) -> None:
    """Refuse a record that is larger than one may be.

    Raises:
        RecordInvalid: it is.
    """
    if len(entry.value) > LARGEST:
        text = f"{entry.key}: found {len(entry.value)} bytes, expected at most {LARGEST}"
        raise RecordInvalid(text, key=entry.key)


def decode(keys: Keys, entry: Entry) -> Signature:
    """One signature from its entry.

    Raises:
        RecordInvalid: it does not decode, states what nobody can sign, or its key is not that of its content.
    """
    fits(entry)
    found = codec.decode(Signature, entry.value, entry.key)
    try:
        check(found.statement)
    except InputInvalid as error:
        raise RecordInvalid(f"{entry.key}: statement: {error.message}", key=entry.key) from error
    own = keys.signature(found.statement.digest, found.key_id, found.statement.owner)
    if own != entry.key:
        raise RecordInvalid(f"{entry.key}: found the content of {own}", key=entry.key)
    return found


def put(keys: Keys, signature: Signature) -> Operation:
    """Store a signature in the place of an earlier one of this key for the same owner and manifest."""
    said = signature.statement
    return operations.put(keys.signature(said.digest, signature.key_id, said.owner), codec.encode(signature))


async def of(client: KeyReader, keys: Keys, digest: str) -> tuple[list[Signature], list[RecordInvalid]]:
    """All signatures of a manifest, and the errors of those that do not decode.

    Raises:
        RecordInvalid: there are more than anybody needs.
    """
    page = await client.list(keys.signatures(digest), mode="consistent", most=MOST_BYTES)
    if len(page.items) > MOST_OF_ONE:
        key, count = keys.signatures(digest), len(page.items)
        raise RecordInvalid(f"{key}: found {count} signatures, expected at most {MOST_OF_ONE}", key=key)
    return sifted(page.items, partial(decode, keys))
