"""The ways in which a worker ends, apart from cancellation, and the errors that a farm outlives."""

from __future__ import annotations

from store.errors import (
    AccessDenied,
    NotRegistered,
    OutcomeUnknown,
    RecordInvalid,
    SessionGone,
    StoreUnavailable,
    TransactionRejected,
    UnexpectedAnswer,
)

# NotRegistered is here, too: a farm that finds the store wiped stays, frozen, and never registers it anew
# (R18, R20). A token or a record that a person has to mend does not end the process either.
TRANSIENT = (
    StoreUnavailable,
    OutcomeUnknown,
    UnexpectedAnswer,
    SessionGone,
    NotRegistered,
    AccessDenied,
    RecordInvalid,
    TransactionRejected,
)


class ClaimLost(Exception):
    """The claim's lock is gone or another session's: the worker must end without another write."""

    code = "claim_lost"


class AnotherCluster(Exception):
    """The store holds another cluster than the one the farm was built for. The farm must be built again."""

    code = "another_cluster"


class WorkerEnded(Exception):
    """A worker returned. Workers end only by cancellation, so this is a bug."""
