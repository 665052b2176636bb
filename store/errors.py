"""The store's error tree. Each class has a stable ``code`` and tells whether trying again can help.

After ``StoreUnavailable`` nothing was written. After ``OutcomeUnknown`` the write may have happened:
read, then plan again (R12). A transaction that was rejected is never repeated unchanged. Messages are
one line.
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

if TYPE_CHECKING:
    from store.operations import Operation


class Retry(enum.Enum):
    """Whether the same call can succeed later."""

    NEVER = "never"
    BACKOFF = "backoff"
    REPLAN = "replan"


class StoreError(Exception):
    """Root of all errors of ``store``; ``fields`` hold the details for logs and JSON output."""

    code: ClassVar[str] = "store_error"
    retry: ClassVar[Retry] = Retry.NEVER

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.fields = fields


class StoreUnavailable(StoreError):
    """Consul cannot be reached and the request never left, or a read was not answered."""

    code = "store_unavailable"
    retry = Retry.BACKOFF


class NoLeader(StoreUnavailable):
    """Consul answers but has no leader, so nothing consistent can be read or written."""

    code = "no_leader"


class Throttled(StoreUnavailable):
    """429, or a disconnect without any status: the connection limit of the server (R23)."""

    code = "throttled"


class CredentialInvalid(StoreUnavailable):
    """A credential's file has unusable content: names the field, what was found and expected."""

    code = "credential_invalid"


class UnexpectedAnswer(StoreError):
    """The answer is not Consul's: HTML, cut JSON, a proxy's page, an undocumented status."""

    code = "unexpected_answer"
    retry = Retry.BACKOFF


class OutcomeUnknown(StoreError):
    """A write was sent and not answered, or answered 500: it may or may not have happened (R12)."""

    code = "outcome_unknown"
    retry = Retry.REPLAN


class SessionGone(StoreError):
    """The session does not exist, or not any more."""

    code = "session_gone"


class SessionSuspended(StoreError):
    """This process may not write now: by its own clock the session might have expired (R2)."""

    code = "session_suspended"
    retry = Retry.BACKOFF


class InvalidTTL(StoreError):
    """Consul refused the session's TTL."""

    code = "invalid_ttl"


class AccessDenied(StoreError):
    """Permission denied by ACL, also for an operation of a rejected transaction."""

    code = "access_denied"


class TooLarge(StoreError):
    """413: too many operations, or a value or body over Consul's limit; or more than this process reads."""

    code = "too_large"


class OperationError(StoreError):
    """One failed operation of a transaction: ``index`` is its place, ``what`` is Consul's text.

    ``operation`` is the operation as it was sent; None if the answer names a place that was not sent.
    """

    code = "operation_failed"

    def __init__(self, index: int, what: str, operation: Operation | None = None) -> None:
        super().__init__(f"operation {index}: {what}", index=index, what=what)
        self.index = index
        self.what = what
        self.operation = operation


class TransactionRejected(StoreError):
    """409: nothing was written; ``errors`` lists every failing operation."""

    code = "transaction_rejected"
    retry = Retry.REPLAN

    def __init__(self, errors: tuple[OperationError, ...]) -> None:
        first = errors[0].what if errors else "no reason given"
        super().__init__(f"transaction rejected: {first}", failed=[e.index for e in errors])
        self.errors = errors

    def refused(self, operations: Collection[Operation]) -> bool:
        """Whether one of these operations is among those that failed."""
        return any(error.operation in operations for error in self.errors)


class RecordInvalid(StoreError):
    """A stored record does not decode: names the key, the field, what was found and expected."""

    code = "record_invalid"


class InputInvalid(StoreError):
    """A person's input is unusable: names the field, what was found and expected."""

    code = "input_invalid"


def refuse(where: str, found: str, expected: str, *, field: str = "") -> NoReturn:
    """Refuse a field of a person's input.

    ``where`` names the field; if it also names the file, ``field`` is the field alone.

    Raises:
        InputInvalid: always.
    """
    raise InputInvalid(f"{where}: found {found}, expected {expected}", field=field or where)


class NotFound(StoreError):
    """The named object does not exist."""

    code = "not_found"


class Ambiguous(StoreError):
    """A prefix or name matches more than one object."""

    code = "ambiguous"


class Conflict(StoreError):
    """The object exists and differs, or changed since it was read."""

    code = "conflict"
    retry = Retry.REPLAN


class Locked(Conflict):
    """The object's mutation lock is held; ``fields`` name the holder (R13)."""

    code = "locked"


class NotRegistered(StoreError):
    """The cluster, a tree or a node has no sentinel, or its sentinel has another cluster's id (R20)."""

    code = "not_registered"
    retry = Retry.BACKOFF


class SchemaTooNew(StoreError):
    """The cluster's schema no longer allows this version of farmd, which must be upgraded."""

    code = "schema_too_new"
