"""The root of the errors of ``farmd``; the store's own errors pass through unchanged.

Each class fixes a stable ``code``. Messages are one line; ``hint`` says what to do next.
"""

from __future__ import annotations

from typing import Any, ClassVar


class FarmdError(Exception):
    """Root of all errors of ``farmd``; ``fields`` hold the details for logs and JSON output."""

    code: ClassVar[str] = "farmd_error"

    def __init__(self, message: str, *, hint: str = "", **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.fields = fields


class WaitTimeout(FarmdError):
    """The change is written, but did not take effect in time."""

    code = "timeout"


class EndedOtherwise(FarmdError):
    """What was waited for came to another end."""

    code = "ended_otherwise"


class Stale(EndedOtherwise):
    """The present state changed between the plan and its start; nothing was touched."""

    code = "stale"


class Declined(FarmdError):
    """A person declined the change; nothing was written."""

    code = "declined"


class Unconfirmed(FarmdError):
    """A destructive change without ``-y`` and without a terminal; nothing was written."""

    code = "unconfirmed"


class AgentUnavailable(FarmdError):
    """A node's agent is not connected, or does not answer."""

    code = "agent_unavailable"
