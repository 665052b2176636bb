"""The error tree of ``alerting``. No delivery error reaches a worker: alerts are queued, not awaited."""

from __future__ import annotations

from typing import Any, ClassVar


class AlertingError(Exception):
    """Root of all errors of ``alerting``; ``fields`` hold the details for logs."""

    code: ClassVar[str] = "alerting_error"
    retry: ClassVar[bool] = False

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.fields = fields


class AlertInvalid(AlertingError):
    """A field of an alert is unusable; names the field, what was found and what was expected."""

    code = "alert_invalid"


class DeliveryRefused(AlertingError):
    """The receiver refused the alert (4xx): sending it again cannot help."""

    code = "delivery_refused"


class DeliveryFailed(AlertingError):
    """The receiver could not be reached, timed out or failed (5xx, 429): a later try may succeed.

    ``after``: seconds until the receiver accepts another try; 0: unknown.
    """

    code = "delivery_failed"
    retry = True

    def __init__(self, message: str, *, after: float = 0.0, **fields: Any) -> None:
        super().__init__(message, **fields)
        self.after = after
