"""The operations of a Consul transaction, as values (Consul ``/v1/txn``).

msgspec encodes an operation, with ``bytes`` as base64. A fence consists of operations too
(``check_session`` and ``check_index``), which are part of the transaction that they guard.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec

MAX_OPERATIONS = 64
"""So many operations in a transaction every Consul takes; what belongs together fits into them (R25)."""
MORE_OPERATIONS = 128
"""What newer ones take; the client asks."""
MAX_BODY_BYTES = 512 * 1024


class Verb(enum.StrEnum):
    """The verbs of transactions that farmd uses."""

    SET = "set"
    CAS = "cas"
    LOCK = "lock"
    GET = "get"
    CHECK_INDEX = "check-index"
    CHECK_SESSION = "check-session"
    CHECK_NOT_EXISTS = "check-not-exists"
    DELETE = "delete"
    DELETE_TREE = "delete-tree"
    DELETE_CAS = "delete-cas"


class Operation(msgspec.Struct, rename="pascal", frozen=True, omit_defaults=True, gc=False):
    """One operation; fields that its verb does not use have their defaults and are not sent."""

    verb: Verb
    key: str
    value: bytes = b""
    index: int = 0
    session: str = ""
    flags: int = 0

    def size(self) -> int:
        """Bytes of this operation in a transaction's body, slightly overestimated."""
        return 96 + len(self.key) + (len(self.value) + 2) // 3 * 4 + len(self.session)


class CatalogOperation(Operation, frozen=True, gc=False):
    """One operation on Consul's catalogue; ``key`` names for people what it changes.

    ``table`` is ``Node``, ``Service`` or ``Check``, and ``body`` what Consul takes beside the verb.
    """

    table: str = ""
    body: dict[str, Any] = {}

    def size(self) -> int:
        """Bytes of this operation in a transaction's body, slightly overestimated."""
        return 64 + len(_encoder.encode(self.body))


class _Wire(msgspec.Struct, rename={"operation": "KV"}):
    operation: Operation


_encoder = msgspec.json.Encoder()


def _wire(operation: Operation) -> object:
    if isinstance(operation, CatalogOperation):
        return {operation.table: {"Verb": operation.verb, **operation.body}}
    return _Wire(operation)


def encode(operations: list[Operation]) -> bytes:
    """The body of ``PUT /v1/txn``."""
    return _encoder.encode([_wire(operation) for operation in operations])


def put(key: str, value: bytes, *, flags: int = 0) -> Operation:
    """Write unconditionally."""
    return Operation(Verb.SET, key, value=value, flags=flags)


def cas(key: str, value: bytes, index: int, *, flags: int = 0) -> Operation:
    """Write if the key's ModifyIndex is ``index``; 0 means that it must not exist."""
    return Operation(Verb.CAS, key, value=value, index=index, flags=flags)


def create(key: str, value: bytes, *, flags: int = 0) -> Operation:
    """Write if the key does not exist (CAS 0)."""
    return Operation(Verb.CAS, key, value=value, index=0, flags=flags)


def delete(key: str) -> Operation:
    """Delete unconditionally; a missing key is no error."""
    return Operation(Verb.DELETE, key)


def delete_cas(key: str, index: int) -> Operation:
    """Delete if the key's ModifyIndex is ``index``."""
    return Operation(Verb.DELETE_CAS, key, index=index)


def delete_tree(prefix: str) -> Operation:
    """Delete everything under a prefix.

    Never use it in one transaction with a write under that prefix: Consul 1.8.7 then wakes no watch on
    a single key there, and crashes at its next write if the prefix is empty (both measured).
    """
    return Operation(Verb.DELETE_TREE, prefix)


def lock(key: str, value: bytes, session: str) -> Operation:
    """Acquire a key for a session, which may lock it twice: add ``check_not_exists`` (R3)."""
    return Operation(Verb.LOCK, key, value=value, session=session)


def check_session(key: str, session: str) -> Operation:
    """Fail unless that session holds the key."""
    return Operation(Verb.CHECK_SESSION, key, session=session)


def check_index(key: str, index: int) -> Operation:
    """Fail unless the key's ModifyIndex is ``index``."""
    return Operation(Verb.CHECK_INDEX, key, index=index)


def check_not_exists(key: str) -> Operation:
    """Fail if the key exists."""
    return Operation(Verb.CHECK_NOT_EXISTS, key)


def get(key: str) -> Operation:
    """Read inside the transaction."""
    return Operation(Verb.GET, key)
