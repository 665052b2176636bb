"""Runs and ends tasks: cancels and awaits them, and loses no error.

No caller sees an error that a task raises while it is being cancelled, so it is logged here. The error of a
task that had ended before is not logged; the caller raises it.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any, TypeVar

import structlog

# Measures how much CPU time the steps of one coroutine take, without those of others while it waits.

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


log = structlog.get_logger()


async def end(*tasks: asyncio.Task[Any]) -> None:
    """Cancel those of the tasks that still run, and return when all have ended."""
    running = [task for task in tasks if not task.done()]
    for task in running:
        task.cancel()
    outcomes = await asyncio.gather(*running, return_exceptions=True)
    for task, outcome in zip(running, outcomes, strict=True):
        if isinstance(outcome, Exception):
            log.error("task.failed_at_end", task=task.get_name(), exc_info=outcome)


async def until_one_fails(work: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run all until the first fails; then cancel the others and await their ends (R2).

    ``gather`` would pass a second cancellation on to tasks that are ending. A ``TaskGroup`` takes a part that
    was cancelled for one that has ended, and the others would go on without it.

    Raises:
        RuntimeError: a part was cancelled, and not by its caller.
    """
    running = [asyncio.create_task(each) for each in work]
    left = set(running)
    try:
        while left:
            done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if task.cancelled():
                    raise RuntimeError(f"{task.get_coro()} was cancelled, and not by its caller")
                task.result()
    finally:
        await end(*running)


def cancelled() -> bool:
    """Whether the current task itself is cancelled, and not only a task that it waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
