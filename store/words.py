"""Words of messages that depend on a number."""

from __future__ import annotations


def count_of(count: int, noun: str) -> str:
    """``1 pod``, ``2 pods``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def share(count: int, total: int, noun: str) -> str:
    """``1 of 1 pod``, ``1 of 2 pods``."""
    return f"{count} of {count_of(total, noun)}"
