"""Whether gates let a rollout go on: pure.

What must never break: without data a gate neither passes nor fails, so a rollout turns back only after
answers that say so; and a rollout that waits for a gate says for which, and not for ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from store.policies import Gate

Result = Literal["pass", "fail", "none"]


@dataclass(frozen=True, slots=True)
class GateAnswer:
    """What a gate says when it is asked; ``none``: it has no data. ``text`` is one line for people."""

    result: Result
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GateJudgement:
    """What a gate said since one claim began to ask it: its last answer, at ``at``, and how many passes or
    failures are the last in a row. ``heard`` is when it last had data, or was begun to be asked. Passes count
    from when the stage was reached. Times are seconds since the epoch.
    """

    began: float
    heard: float
    at: float = 0.0
    answer: GateAnswer = GateAnswer("none", "no answer yet")
    passes: int = 0
    failures: int = 0

    def after(self, gate: Gate, answer: GateAnswer, now: float) -> GateJudgement:
        """The standing with one more answer; counts end at what a verdict needs."""
        told = replace(self, at=now, answer=answer)
        if answer.result == "none":
            return told
        if answer.result == "pass":
            return replace(told, heard=now, failures=0, passes=min(self.passes + 1, gate.passes))
        return replace(told, heard=now, passes=0, failures=min(self.failures + 1, gate.failures))


Standings = Mapping[str, GateJudgement]


def passed(gates: Sequence[Gate]) -> Standings:
    """The standings of gates that have passed: what a dry run supposes."""
    return {gate.name: GateJudgement(began=0.0, heard=0.0, passes=gate.passes) for gate in gates}


def failed(gates: Sequence[Gate], standings: Standings) -> str:
    """Which gate said often enough that the new version is bad, and how; empty: none did."""
    for gate in gates:
        standing = standings.get(gate.name)
        if standing is not None and standing.failures >= gate.failures:
            times = "once" if gate.failures == 1 else f"{gate.failures} times in a row"
            return f"gate {gate.name} failed {times}: {standing.answer.text}"
    return ""


def pending(gates: Sequence[Gate], standings: Standings) -> str:
    """Which gate did not pass often enough yet; empty: all did."""
    for gate in gates:
        standing = standings.get(gate.name)
        if standing is None:
            return f"gate {gate.name} is not asked yet"
        if standing.passes < gate.passes:
            return f"gate {gate.name} passed {standing.passes} of {gate.passes}: {standing.answer.text}"
    return ""


def limits(
    gates: Sequence[Gate], standings: Standings, reached: float, bake: float, deadline: float
) -> list[tuple[float, str]]:
    """When waiting for each gate that has not passed is over, and what is said then, the soonest first.

    A gate may be without data for ``deadline`` seconds, and take as long to pass once the rest is over.
    """
    found = []
    for gate in gates:
        standing = standings.get(gate.name)
        if standing is None or standing.passes >= gate.passes:
            continue
        said = f"{deadline:g} s: {standing.answer.text}"
        silent = (max(reached, standing.heard) + deadline, f"gate {gate.name} has had no data for {said}")
        often = f"{gate.passes} times in a row" if gate.passes > 1 else "once"
        late = max(reached + bake, standing.began) + deadline
        found += [silent, (late, f"gate {gate.name} has not passed {often} within {said}")]
    return sorted(found)
