"""The description of a job that both backends share."""

from __future__ import annotations

from farmd.jobs.facts import JobSpec, Member, Plan, Slot, attempt_of, described
from farmd.jobs.plan import told_end
from store.jobs import Job, Rule, Run, SlotRun, Success, Type


def test_every_limit_of_the_record_reaches_the_plan() -> None:
    job = Job(
        id="0a",
        name="bert",
        types=[Type(name="worker", manifest="m", replicas=8, parallelism=2, restart="exit-code")],
        gang=True,
        peers=True,
        success=Success(operator="any", types=["worker"]),
        rules=[Rule(action="restart-job", exit_codes=[42])],
        suspend=True,
        backoff_limit=3,
        active_deadline=60.0,
        ttl=None,
        clean="all",
        restart_scope="job",
        on_lost="wait",
        gang_timeout=5.0,
        deleting=True,
    )

    spec = described(job)

    shared = set(JobSpec.__dataclass_fields__) & set(Job.__struct_fields__) - {"types", "rules"}
    assert {name: getattr(spec, name) for name in shared} == {name: getattr(job, name) for name in shared}
    assert spec.rules == tuple(job.rules)
    assert spec.type("worker") is not None
    assert (spec.types[0].replicas, spec.types[0].parallelism, spec.types[0].restart) == (8, 2, "exit-code")
    assert spec.size == 8


def test_the_attempt_of_a_slot_is_never_below_that_of_the_job() -> None:
    run = Run(attempt=2, slots={"worker": {"0": SlotRun(3), "1": SlotRun(1)}})

    assert [attempt_of(run, Slot("worker", index)) for index in range(3)] == [3, 2, 2]


def test_a_plan_that_writes_nothing_needs_no_fence() -> None:
    assert Plan().empty
    assert not Plan(create=(Slot("worker", 0),)).empty
    assert Plan(run=Run()).fence


def test_what_a_member_said_of_its_end_is_told_in_one_line() -> None:
    member = Member(slot=Slot("worker", 3), phase="failed", exit=3, message="no data\n  at step 7\n")
    assert told_end(member) == "ended with exit code 3: no data at step 7"
