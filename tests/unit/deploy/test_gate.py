"""When a pod that a deployment placed has proven itself, and when it has failed."""

from __future__ import annotations

from typing import Any

import pytest

from farmd.deploy.gate import Attempt, Gate, gate_of, judge
from store.manifests import Manifest, Restart
from store.services import Version

JOB = Gate(once=True)


@pytest.mark.parametrize(
    ("gate", "attempt", "verdict", "why"),
    [
        (Gate(), Attempt(available=True), "proven", ""),
        (Gate(), Attempt(), "unproven", ""),
        (Gate(), Attempt(critical=True, waited=5.0), "unproven", ""),
        (Gate(), Attempt(critical=True, waited=5.1), "failed", "its check still fails after 5 s"),
        (Gate(monitor=60.0), Attempt(critical=True, waited=59.0), "unproven", ""),
        (Gate(), Attempt(ends=1, code=1), "unproven", ""),
        (Gate(), Attempt(ends=2, code=1), "failed", "ended 2 times, the last time with code 1"),
        (Gate(), Attempt(ends=2, refused="no such file"), "failed", "failed to start 2 times: no such file"),
        (Gate(), Attempt(refused="no runtime", refused_for=29.0), "unproven", "no runtime"),
        (
            Gate(),
            Attempt(refused="no runtime", refused_for=30.0),
            "failed",
            "its agent refuses it: no runtime",
        ),
        (Gate(deadline=60.0), Attempt(waited=61.0), "failed", "not healthy within 60 s"),
        (Gate(), Attempt(done=True, code=3), "failed", "exited with code 3"),
        (Gate(), Attempt(done=True), "failed", "exited with code 0"),
        (JOB, Attempt(done=True), "proven", ""),
        (JOB, Attempt(done=True, code=1), "failed", "exited with code 1"),
        (JOB, Attempt(), "unproven", ""),
    ],
)
def test_a_pod_proves_itself_or_fails(gate: Gate, attempt: Attempt, verdict: str, why: str) -> None:
    assert judge(gate, attempt) == (verdict, why)


@pytest.mark.parametrize(("policy", "once"), [("never", True), ("on-failure", True), ("always", False)])
def test_a_good_end_is_good_where_no_start_follows_it(policy: Any, once: bool) -> None:
    manifest = Manifest(id="migrate", command=["x"], restart=Restart(policy=policy))
    assert gate_of(manifest, Version(manifest="-")).once == once


@pytest.mark.parametrize(
    "attempt",
    [Attempt(ends=9), Attempt(critical=True, waited=1e9), Attempt(available=True), Attempt(done=True)],
)
def test_r21_a_pod_of_an_absent_agent_neither_fails_nor_proves_itself(attempt: Attempt) -> None:
    from dataclasses import replace

    assert judge(Gate(), replace(attempt, absent=True)) == ("unproven", "")
