"""The scheduler's error tree. ``code`` is stable: statuses, logs and JSON output show it.

A fleet without room is an answer (``Allocation.missing``) and not an error: an error means that there
is no trustworthy answer. A worker makes it its blocked reason and tries again later.
"""

from __future__ import annotations

from typing import Any, ClassVar


class SchedulerError(Exception):
    """Root of all errors of ``scheduler``; ``fields`` hold the details for logs and JSON output."""

    code: ClassVar[str] = "scheduler_error"
    retry: ClassVar[bool] = False

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.fields = fields


class PlacementInvalid(SchedulerError):
    """A placement block cannot work; names the field, what was found and what was expected."""

    code = "placement_invalid"


class RemoteUnavailable(SchedulerError):
    """The remote scheduler did not answer in time, or answered with a failure."""

    code = "remote_scheduler_unavailable"
    retry = True


class RemoteAnswerInvalid(SchedulerError):
    """The remote scheduler's answer has the wrong shape, or breaks a local rule."""

    code = "remote_scheduler_answer_invalid"
    retry = True


class ReservationContended(SchedulerError):
    """Another worker of this process is changing one of these nodes' reservations: plan again."""

    code = "reservation_contended"
    retry = True


class NoMachine(SchedulerError):
    """The rules of a service leave no machine; names the reasons of all machines."""

    code = "no_machine"


class VolumeRefused(SchedulerError):
    """The volumes of some services cannot be placed; ``why`` in the fields is one of a closed set."""

    code = "volume_refused"
