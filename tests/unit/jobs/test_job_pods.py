"""What a pod tells of its member: phase, exit code, cause and restarts."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from farmd.jobs.facts import Member, Slot
from farmd.jobs.members import infrastructure
from farmd.kubernetes.jobs.pods import member_of
from farmd.kubernetes.objects import KubePod


def member(status: dict[str, Any], **meta: Any) -> Member:
    pod = msgspec.convert({"metadata": {"name": "p", "uid": "u", **meta}, "status": status}, KubePod)
    return member_of(pod, Slot("worker", 0), "pytorch")


def ended(name: str, code: int, **fields: Any) -> dict[str, Any]:
    return {"name": name, "state": {"terminated": {"exitCode": code, **fields}}}


@pytest.mark.parametrize(
    ("status", "exit_code", "cause", "own_doing"),
    [
        ({"containerStatuses": [ended("sidecar", 3), ended("pytorch", 137)]}, 137, "", True),
        ({"containerStatuses": [ended("sidecar", 0), ended("main", 1)]}, 1, "", True),
        ({"containerStatuses": [ended("pytorch", 0), ended("sidecar", 3)]}, 3, "", True),
        ({"initContainerStatuses": [ended("setup", 2)]}, 2, "", True),
        ({"containerStatuses": [ended("pytorch", 137, reason="OOMKilled")]}, 137, "oom", True),
        ({"reason": "Evicted"}, None, "evicted", False),
        ({"reason": "NodeLost"}, None, "lost", False),
        ({}, None, "", False),
        (
            {
                "conditions": [
                    {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
                ],
                "containerStatuses": [ended("pytorch", 143)],
            },
            143,
            "preempted",
            False,
        ),
        (
            {
                "conditions": [{"type": "DisruptionTarget", "status": "False", "reason": "DeletionByPodGC"}],
                "containerStatuses": [ended("pytorch", 143)],
            },
            143,
            "",
            True,
        ),
    ],
)
def test_a_failure_has_the_code_and_the_cause_of_what_ended(
    status: dict[str, Any], exit_code: int | None, cause: str, own_doing: bool
) -> None:
    found = member({"phase": "Failed", **status})

    assert (found.phase, found.exit, found.cause) == ("failed", exit_code, cause)
    assert infrastructure(found) is not own_doing


@pytest.mark.parametrize(
    ("phase", "expected"),
    [
        ("Pending", "starting"),
        ("", "starting"),
        ("Running", "running"),
        ("Succeeded", "succeeded"),
        ("Unknown", "unknown"),
        ("Paused", "unknown"),
    ],
)
def test_phases_are_those_of_the_pod(phase: str, expected: str) -> None:
    assert member({"phase": phase}).phase == expected


def test_restarts_of_all_containers_count() -> None:
    statuses = {
        "initContainerStatuses": [{"name": "a", "restartCount": 1}],
        "containerStatuses": [{"name": "b", "restartCount": 2}, {"name": "c", "restartCount": 4}],
    }

    assert member({"phase": "Running", **statuses}).restarts == 7


def test_identity_attempt_and_times_come_from_the_metadata() -> None:
    found = member(
        {"phase": "Running"},
        resourceVersion="17",
        annotations={"farmd.io/attempt": "3"},
        creationTimestamp="1970-01-01T00:01:00Z",
        deletionTimestamp="2026-01-01T00:00:00Z",
    )

    assert (found.id, found.version, found.attempt, found.at) == ("u", "17", 3, 60.0)
    assert found.leaving


@pytest.mark.parametrize("text", ["", "-1", "x", "9" * 40, "٣"])
def test_an_attempt_that_is_no_number_is_the_first(text: str) -> None:
    assert member({"phase": "Running"}, annotations={"farmd.io/attempt": text}).attempt == 0
