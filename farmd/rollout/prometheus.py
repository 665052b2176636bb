"""What Prometheus' answer to an instant query says of a gate: pure.

One number is data. An empty result, several series, NaN and an error are none: they tell nothing of the new
version, and neither pass nor fail.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from farmd.rollout.verdict import GateAnswer
from store.policies import Gate


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
