"""How a worker can end other than by being cancelled."""

from __future__ import annotations


class ClaimLost(Exception):
    """The lock of this claim is gone or somebody else's: the worker must end without another write."""

    code = "claim_lost"


class WorkerEnded(Exception):
    """A worker returned: workers end by cancellation only, so this is a bug of the worker."""
