"""What a worker can find out about its own claim."""

from __future__ import annotations


class ClaimLost(Exception):
    """The lock of this claim is gone or somebody else's: the worker must end without another write."""

    code = "claim_lost"
