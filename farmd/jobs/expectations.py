"""What a controller still expects to see of its own writes: creations and deletions, by job, type and
resource.

A watch lags behind the writes. A job is not looked at again while an expectation of it is open, or the
controller would create a second time what it does not see yet. An expectation older than five minutes counts
as met, so that a lost event cannot stop a job.
"""

from __future__ import annotations

from dataclasses import dataclass

from store.ports import Clock

EXPIRE_SECONDS = 300.0


def gen_expectation_pods_key(job_key: str, replica_type: str) -> str:
    """``ns/bert/worker/pods``."""
    return f"{job_key}/{replica_type.lower()}/pods"


def gen_expectation_services_key(job_key: str, replica_type: str) -> str:
    """``ns/bert/worker/services``."""
    return f"{job_key}/{replica_type.lower()}/services"


@dataclass(slots=True)
class Expectation:
    """How many creations and deletions are still to be seen, since a monotonic time; both may be negative."""

    add: int
    delete: int
    since: float


class ControllerExpectations:
    """The open expectations of one kind of job; two kinds never share one, because keys name no kind."""

    def __init__(self, clock: Clock, expire: float = EXPIRE_SECONDS) -> None:
        self._clock = clock
        self._expire = expire
        self._open: dict[str, Expectation] = {}

    def get(self, key: str) -> Expectation | None:
        """What is expected; None: nothing was."""
        return self._open.get(key)

    def set(self, key: str, add: int, delete: int) -> None:
        """Expect that many from now on, and forget what was expected before."""
        self._open[key] = Expectation(add, delete, self._clock.mono())

    def expect_creations(self, key: str, count: int) -> None:
        """Expect creations alone."""
        self.set(key, count, 0)

    def expect_deletions(self, key: str, count: int) -> None:
        """Expect deletions alone."""
        self.set(key, 0, count)

    def raise_by(self, key: str, add: int, delete: int) -> None:
        """Expect more; the time begins anew, because this is a later write.

        What counted as met, or was seen and not expected, is forgotten: else an event that was lost once
        would delay the job after each later write, and a foreign deletion would hide one of our own.
        """
        before = self._open.get(key)
        if before is None or self.satisfied(key):
            before = Expectation(0, 0, 0.0)
        self.set(key, max(0, before.add) + add, max(0, before.delete) + delete)

    def lower(self, key: str, add: int, delete: int) -> None:
        """Expect less; nothing where nothing was expected."""
        if (known := self._open.get(key)) is not None:
            known.add -= add
            known.delete -= delete

    def creation_observed(self, key: str) -> None:
        """One creation was seen, or did not happen."""
        self.lower(key, 1, 0)

    def deletion_observed(self, key: str) -> None:
        """One deletion was seen."""
        self.lower(key, 0, 1)

    def satisfied(self, key: str) -> bool:
        """Whether nothing is open, or it is too old to wait for."""
        known = self._open.get(key)
        if known is None or (known.add <= 0 and known.delete <= 0):
            return True
        return self._clock.mono() - known.since > self._expire

    def delete(self, key: str) -> None:
        """Forget a key."""
        self._open.pop(key, None)

    def forget_job(self, job_key: str) -> None:
        """Forget all keys of a job that is gone."""
        for key in [key for key in self._open if key.startswith(f"{job_key}/")]:
            del self._open[key]

    def clear(self) -> None:
        """Forget everything: the server went back to an earlier state."""
        self._open.clear()
