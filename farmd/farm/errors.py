"""The ways in which a worker ends, apart from cancellation."""

from __future__ import annotations


class ClaimLost(Exception):
    """The claim's lock is gone or another session's: the worker must end without another write."""

    code = "claim_lost"


class WorkerEnded(Exception):
    """A worker returned. Workers end only by cancellation, so this is a bug."""
