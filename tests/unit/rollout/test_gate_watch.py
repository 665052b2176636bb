"""The gates of one rollout: asked as long as it holds them, counted anew where they begin anew."""

from __future__ import annotations

import asyncio

import pytest

from farmd.rollout.gates import GateWatch
from farmd.rollout.judgement import GateAnswer
from farmd.runtime.wake import Wake
from store.policies import Gate
from tests.fleet import in_time
from tests.recorders import CountingRecorder
from tests.still_clock import StillClock

ERRORS, SMOKE = Gate(name="errors", prometheus="errs", max=0.5), Gate(name="smoke", http="http://web/")


class Said:
    """Answers one question after the other, each when the test gives the answer."""

    def __init__(self) -> None:
        self.answers: asyncio.Queue[str] = asyncio.Queue()
        self.wake = Wake()
        self.watch = GateWatch(self.ask, StillClock(), CountingRecorder(), self.wake)

    async def ask(self, _: Gate) -> GateAnswer:
        result = await self.answers.get()
        if result == "bug":
            raise RuntimeError("a bug")
        return GateAnswer(result, "so it is")  # type: ignore[arg-type]

    async def says(self, *results: str) -> None:
        for result in results:
            self.wake.clear()
            self.answers.put_nowait(result)
            await in_time(self.wake.wait())


async def test_passes_count_from_when_the_stage_was_reached_and_failures_from_the_beginning() -> None:
    said = Said()
    said.watch.hold([ERRORS], (0, 0.0))
    await said.says("pass", "pass")
    assert said.watch.hold([ERRORS], (0, 0.0))["errors"].passes == 2
    assert said.watch.hold([ERRORS], (0, 50.0))["errors"].passes == 0
    await said.says("fail")
    assert said.watch.hold([ERRORS], (0, 60.0))["errors"].failures == 1
    said.watch.stop()


async def test_a_gate_that_is_not_held_any_more_is_not_asked_and_begins_anew() -> None:
    said = Said()
    said.watch.hold([ERRORS], (0, 0.0))
    await said.says("fail", "fail")
    told = said.watch.hold([], (0, 0.0))
    assert (said.watch.asking, told["errors"].failures) == (False, 2)  # what it said last is still told
    assert said.watch.hold([ERRORS, SMOKE], (1, 0.0))["errors"].failures == 0
    said.watch.stop()


async def test_another_gate_of_the_same_name_begins_anew() -> None:
    said = Said()
    said.watch.hold([ERRORS], (0, 0.0))
    await said.says("fail", "fail")
    other = Gate(name="errors", prometheus="errs", max=5)
    assert said.watch.hold([other], (0, 0.0))["errors"].failures == 0
    said.watch.stop()


async def test_r10_a_bug_in_asking_reaches_the_worker_at_once() -> None:
    said = Said()
    said.watch.hold([ERRORS], (0, 0.0))
    await said.says("bug")
    with pytest.raises(RuntimeError, match="a bug"):
        said.watch.hold([ERRORS], (0, 0.0))
