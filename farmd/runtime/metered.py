"""Measures how much CPU time the steps of one coroutine take, without those of others while it waits."""

from __future__ import annotations

import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


@types.coroutine
def metered(work: Coroutine[Any, Any, T], cpu: Callable[[], float]) -> Generator[Any, Any, tuple[T, float]]:
    """The result of ``work``, and the seconds that its own steps took by ``cpu``, a clock of CPU time."""
    seconds = 0.0
    raised: BaseException | None = None
    while True:
        began = cpu()
        try:
            waits_for = work.send(None) if raised is None else work.throw(raised)
        except StopIteration as end:
            return end.value, seconds + cpu() - began
        seconds += cpu() - began
        try:
            raised = None
            yield waits_for
        except BaseException as error:  # noqa: BLE001 - all that ends the wait is for the work to handle
            raised = error
