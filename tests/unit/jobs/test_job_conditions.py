"""A job's status in Kubernetes: the state machine of its conditions, counters, and patches."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farmd.jobs.facts import Count, JobSummary
from farmd.kubernetes.jobs.report import (
    JobCondition,
    ReplicaStatus,
    ResourceStatus,
    counts_of,
    is_failed,
    is_succeeded,
    patch_of,
    run_of,
    status_of,
    update_job_conditions,
)
from farmd.work.model import Blocked
from store.jobs import Run, SlotRun

NOW = "2026-01-01T00:00:00Z"


def conditions(*kinds: str) -> tuple[JobCondition, ...]:
    """Conditions added one after the other."""
    found: tuple[JobCondition, ...] = ()
    for kind in kinds:
        found = update_job_conditions(found, JobCondition(type=kind, reason=f"Job{kind}"), NOW)
    return found


def shown(found: tuple[JobCondition, ...]) -> list[str]:
    return [each.type if each.status == "True" else f"no {each.type}" for each in found]


@pytest.mark.parametrize(
    ("added", "expected"),
    [
        ("Created", "Created"),
        ("Created Running", "Created Running"),
        ("Created Running Running", "Created Running"),
        ("Created Running Restarting", "Created Restarting"),
        ("Created Running Restarting Running", "Created Running"),
        ("Created Running Failed", "Created,no Running,Failed"),
        ("Created Running Succeeded", "Created,no Running,Succeeded"),
        ("Created Restarting Succeeded", "Created Succeeded"),  # Kubeflow: Restarting stays true
        ("Created Restarting Failed", "Created Failed"),  # D30
        ("Created Failed Succeeded", "Created Failed"),  # D29
        ("Created Failed Running", "Created Failed"),
        ("Created Succeeded Running", "Created Succeeded"),  # Kubeflow: Running is true again
        ("Created Succeeded Failed", "Created Succeeded"),  # Kubeflow: both are true
        ("Created Running Suspended", "Created,no Running,Suspended"),
    ],
)
def test_conditions_follow_their_state_machine(added: str, expected: str) -> None:
    separator = "," if "," in expected else " "

    assert shown(conditions(*added.split())) == expected.split(separator)


def test_a_message_alone_changes_nothing_and_a_reason_keeps_the_transition() -> None:
    before = conditions("Created", "Running")

    same = update_job_conditions(
        before, JobCondition(type="Running", reason="JobRunning", message="new"), "later"
    )
    other = update_job_conditions(before, JobCondition(type="Running", reason="Other"), "later")

    assert same == before
    assert (other[-1].last_transition_time, other[-1].last_update_time) == (NOW, "later")


def test_what_an_end_turns_off_says_why() -> None:
    running = conditions("Created", "Running", "Failed")[1]

    assert (running.status, running.reason) == ("False", "JobFailed")


def status(state: str, before: ResourceStatus | None = None, **fields: Any) -> ResourceStatus:
    run = fields.pop("run", Run(started=60.0))
    blocked = fields.pop("blocked", None)
    standing = JobSummary(state=state, **fields)  # type: ignore[arg-type]
    return status_of(before or ResourceStatus(), "bert", run, standing, blocked, 100.0)


def test_the_first_status_says_created_and_when_the_job_began() -> None:
    found = status("waiting")

    assert shown(found.conditions) == ["Created"]
    assert found.start_time == "1970-01-01T00:01:00Z"


def test_a_failure_names_the_job_and_the_limit() -> None:
    found = status("failed", status("running"), reason="BackoffLimitExceeded", message="3 restarts, limit 3")

    assert is_failed(found)
    assert found.conditions[-1].reason == "JobFailed"
    assert found.conditions[-1].message == "job bert failed: BackoffLimitExceeded: 3 restarts, limit 3"
    invalid = status("failed", reason="FailedValidation", message="no container")
    assert invalid.conditions[-1].reason == "JobFailedValidation"


def test_a_resumed_job_is_not_suspended_and_began_anew() -> None:
    stopped = status("suspended", status("running"), run=Run())
    resumed = status("running", stopped, run=Run(started=100.0))

    assert stopped.start_time is None
    assert shown(stopped.conditions) == ["Created", "no Running", "Suspended"]
    assert shown(resumed.conditions) == ["Created", "no Suspended", "Running"]
    assert resumed.start_time == "1970-01-01T00:01:40Z"


def test_what_holds_a_job_is_a_condition_while_it_lasts() -> None:
    held = status("waiting", blocked=Blocked("no_room", "quota is full"))
    free = status("running", held)

    assert shown(held.conditions) == ["Created", "Blocked"]
    assert (held.conditions[-1].reason, held.conditions[-1].message) == ("NoRoom", "quota is full")
    assert shown(free.conditions) == ["Created", "no Blocked", "Running"]


def test_counters_are_those_of_the_spelling_of_the_spec() -> None:
    found = status("running", counts={"Worker": Count(starting=1, running=1, succeeded=3, failed=3)})

    assert found.replica_statuses == {"Worker": ReplicaStatus(active=1, succeeded=3, failed=3)}


def test_members_that_run_on_when_a_job_succeeded_count_once_as_ended_well() -> None:
    counts = {"Master": Count(succeeded=1), "Worker": Count(running=2)}
    over = Run(started=60.0, finished=100.0, outcome="succeeded")
    first = status("succeeded", status("running", counts=counts), counts=counts, run=over)

    second = status("succeeded", first, run=over)
    third = status("succeeded", second, run=over)

    assert is_succeeded(first)
    assert first.replica_statuses["Worker"].active == 2
    assert second.replica_statuses["Worker"] == ReplicaStatus(succeeded=2)
    assert third == second


def test_an_equal_status_is_no_patch_and_a_patch_has_what_changed_alone() -> None:
    before = status("running", counts={"Worker": Count(running=2, failed=1), "PS": Count()})
    after = status("running", before, counts={"Worker": Count(running=1)})

    assert patch_of(before, before) is None
    assert patch_of(before, after) == {
        "status": {"replicaStatuses": {"Worker": {"active": 1, "failed": None}, "PS": None}}
    }


def test_the_run_is_made_of_the_status_and_the_store_without_loss() -> None:
    run = Run(attempt=2, restarts=3, slots={"Worker": {"0": SlotRun(3, 9.0)}}, done={"Worker": "1"})
    whole = msgspec.structs.replace(run, started=60.0, finished=100.0, outcome="succeeded")
    written = status("succeeded", status("running"), run=whole)

    assert run_of(written, run) == whole
    assert counts_of(whole) == run


@given(st.lists(st.sampled_from(("Created", "Running", "Restarting", "Suspended", "Succeeded", "Failed"))))
def test_a_job_never_both_succeeds_and_fails_and_its_first_end_stays(added: list[str]) -> None:
    found = conditions(*added)
    ends = [kind for kind in added if kind in ("Succeeded", "Failed")]

    assert [each for each in shown(found) if each in ("Succeeded", "Failed")] == ends[:1]
    assert not (ends and {"Running", "Restarting"} & set(shown(found)))
    assert len({each.type for each in found}) == len(found)


def test_a_status_without_a_time_of_completion_ended_with_its_condition() -> None:
    end = JobCondition(type="Failed", last_transition_time="1970-01-01T00:01:40Z")
    running = JobCondition(type="Running", status="False", last_transition_time="1970-01-01T00:02:00Z")
    found = run_of(ResourceStatus(conditions=(running, end)), Run())
    assert (found.outcome, found.finished) == ("failed", 100.0)
