"""Runs the agent's disk calls in a thread of their own, each with a deadline (R26).

A frozen file system, or a file server that is gone, neither does what it is asked nor refuses it. The agent
must renew its session meanwhile, and check and stop its pods. So it waits for a call for a few seconds at
most, and for the calls that follow not at all, until the disk answers again. A call that was given up may
still be done then; calls never overtake one another.
"""

from __future__ import annotations

import errno
import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from farmd.agent.lease import now

T = TypeVar("T")

ANSWER_SECONDS = 3.0
SILENT = "the disk does not answer"


class DiskSilent(OSError):
    """The disk did not answer in time, so nobody knows whether it will do what it was asked."""

    def __init__(self) -> None:
        super().__init__(errno.ETIMEDOUT, SILENT)


class Disk:
    """The disk of one state directory. Its thread begins with the first call, and ends with this object."""

    def __init__(self) -> None:
        self._worker = _Worker()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        weakref.finalize(self, self._worker.calls.put, None)

    @property
    def silent(self) -> bool:
        """Whether a call is under way that has taken too long."""
        return self._worker.busy() >= ANSWER_SECONDS

    def call(self, work: Callable[[], T]) -> T:
        """What ``work`` returns or raises; it must only use the disk, because it may be done later.

        Raises:
            DiskSilent: the disk does not answer.
        """
        if threading.current_thread() is self._thread:
            return work()
        if self.silent:
            raise DiskSilent
        call = self.begin(work)
        while True:
            try:
                return call.result(max(0.0, ANSWER_SECONDS - self._worker.busy()))
            except TimeoutError:
                if call.done():
                    raise
                if call.running() and not self.silent:
                    continue  # its turn came after that of others, or late
                call.cancel()
                raise DiskSilent from None

    def begin(self, work: Callable[[], T]) -> Future[T]:
        """Do it without a wait, after all that was asked before."""
        self._ensure_thread()
        call: Future[T] = Future()
        self._worker.calls.put((call, work))
        return call

    def _ensure_thread(self) -> None:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._worker.run, name="disk", daemon=True)
                self._thread.start()


class _Worker:
    """What the thread does: one call after the other."""

    def __init__(self) -> None:
        self.calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._begun: float | None = None

    def busy(self) -> float:
        """For how many seconds the present call has been under way."""
        begun = self._begun
        return now() - begun if begun is not None else 0.0

    def run(self) -> None:
        """Make calls until there are no more."""
        while (given := self.calls.get()) is not None:
            call, work = given
            if call.set_running_or_notify_cancel():
                self._begun = now()
                self._do(call, work)
            del given, call, work

    def _do(self, call: Future[T], work: Callable[[], T]) -> None:
        try:
            found = work()
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            self._begun = None
            call.set_exception(error)
        else:
            self._begun = None
            call.set_result(found)
