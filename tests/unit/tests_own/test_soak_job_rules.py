"""The soak notices a slot that runs twice, a member after the verdict and a second one, and nothing else."""

from __future__ import annotations

from store.audit import Audit
from store.jobs import Job, Run, Type
from tests.soak import jobs
from tests.soak.processes import Workload
from tests.unit.tests_own.test_soak_rules import KEYS, OLD, World

ID = "0b"


def world(*running: Workload, run: Run | None = None) -> World:
    """A job of four slots, and the members that run."""
    made = World()
    types = [Type(name="worker", manifest=OLD, replicas=4)]
    made.put(KEYS.record("jobs", ID), Job(id=ID, name="batch", types=types), 3)
    if run is not None:
        made.put(KEYS.record("runs", ID), run, 4)
    made.running += running
    return made


def member(pid: int, node: str, slot: int = 0, attempt: int = 0) -> Workload:
    return Workload(pid, 1, (node, f"batch-worker-{slot}~{attempt}"), "1")


def audit(action: str, *placed: str) -> Audit:
    return Audit(
        at=200.0, actor="farm/f1", action=action, kind="jobs", id=ID, name="batch", placed=list(placed)
    )


def test_a_slot_that_runs_twice_is_noticed_where_both_nodes_are_well() -> None:
    both = world(member(1, "n1"), member(2, "n2", attempt=1), member(3, "n3", slot=1))
    (found,) = jobs.twice(both.look(200.0))
    assert found.startswith("job batch: worker/0 runs twice")
    both.well_for["n1"] = 5.0  # its agent was away, so the member may have been given up
    assert list(jobs.twice(both.look(200.0))) == []


def test_a_member_that_begins_after_the_verdict_is_noticed() -> None:
    over = Run(outcome="failed")
    late = world(member(1, "n1"), run=over).look(201.0)
    assert len(list(jobs.revived(world(run=over).look(200.0), late))) == 1
    assert list(jobs.revived(world(member(1, "n1"), run=over).look(200.0), late)) == []
    assert list(jobs.revived(world(run=Run(started=1.0)).look(200.0), late)) == []


def test_a_second_verdict_and_a_member_placed_after_the_first_are_noticed() -> None:
    made = world()
    records = [
        audit("job.start", "n1/batch-worker-0~0"),
        audit("job.succeeded"),
        audit("job.retry", "n1/batch-worker-1~1"),
        audit("job.failed"),
    ]
    for number, each in enumerate(records[:2]):
        made.put(f"{KEYS.audit_hour('2026-11-22T00')}{number}", each, 10 + number)
    assert list(jobs.judged_once(made.look(200.0).dump)) == []
    for number, each in enumerate(records):
        made.put(f"{KEYS.audit_hour('2026-11-22T00')}{number}", each, 10 + number)
    told = list(jobs.judged_once(made.look(200.0).dump))
    assert [line.partition(":")[0] for line in told] == ["job batch", "job 0b has 2 verdicts"]


def test_jobs_and_runs_are_gone_once_people_deleted_them() -> None:
    assert list(jobs.left(World().look(200.0).dump)) == []
    assert len(list(jobs.left(world(run=Run()).look(200.0).dump))) == 2
