"""Whether gates let a rollout go on, from their answers: pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec

from store.policies import Gate

# Whether gates let a rollout go on: pure.
#
# What must never break: without data a gate neither passes nor fails, so a rollout turns back only after
# answers that say so; and a rollout that waits for a gate says for which, and not for ever.

Result = Literal["pass", "fail", "none"]


@dataclass(frozen=True, slots=True)
class GateAnswer:
    """A gate's answer; ``none``: it has no data. ``text`` is one line for people."""

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


# What Prometheus' answer to an instant query says of a gate: pure.
#
# One number is data. An empty result, several series, NaN and an error are none: they tell nothing of the
# new version, and neither pass nor fail.


class NoData(Exception):
    """There is no number; the message says why."""


class _Result(msgspec.Struct, rename="camel"):
    result_type: str = ""
    result: Any = None


class _Reply(msgspec.Struct):
    status: str = ""
    error: str = ""
    data: _Result = msgspec.field(default_factory=_Result)


def value(status: int, body: bytes) -> float:
    """The number in an answer of ``/api/v1/query``: a scalar, or a vector of one element.

    Raises:
        NoData: there is none, or more than one.
    """
    try:
        reply = msgspec.json.decode(body, type=_Reply)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NoData(f"Prometheus: HTTP {status}, not its JSON") from error
    if status != 200 or reply.status != "success":
        raise NoData(f"Prometheus: {reply.error or f'HTTP {status}'}")
    kind, result = reply.data.result_type, reply.data.result
    if kind not in ("scalar", "vector"):
        raise NoData(f"Prometheus: found a {kind or 'nameless'} result, expected a number")
    if kind == "vector" and isinstance(result, list) and len(result) != 1:
        found = f"{len(result)} series" if result else "no series"
        raise NoData(f"Prometheus: found {found}, expected one")
    return _number(result)


def _number(result: Any) -> float:
    try:
        _, text = result[0]["value"] if isinstance(result[0], dict) else result
        found = float(text)
    except (TypeError, ValueError, KeyError, IndexError, OverflowError) as error:
        raise NoData("Prometheus: its answer has no number") from error
    if math.isnan(found):
        raise NoData("Prometheus: found NaN, expected a number")
    return found


def judged(gate: Gate, found: float) -> GateAnswer:
    """Whether a number is within a gate's limits."""
    if gate.max is not None and found > gate.max:
        return GateAnswer("fail", f"{found:.10g} > {gate.max:.10g}")
    if gate.min is not None and found < gate.min:
        return GateAnswer("fail", f"{found:.10g} < {gate.min:.10g}")
    least = f"{gate.min:.10g} <= " if gate.min is not None else ""
    most = f" <= {gate.max:.10g}" if gate.max is not None else ""
    return GateAnswer("pass", f"{least}{found:.10g}{most}")
