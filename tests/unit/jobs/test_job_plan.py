"""The plan of a job: a table of what follows from what (Kubeflow's vectors, and where this one differs)."""

from __future__ import annotations

import base64

import msgspec
import pytest

from farmd.jobs.facts import CONSUL, JobSpec, Member, Need, Plan, ReplicaType, Room, Slot, Snapshot
from farmd.jobs.plan import PACED_SLOTS, decide
from farmd.work.model import Ask, Blocked
from store import codec
from store.indexes import Indexes
from store.jobs import Rule, Run, SlotRun, Success
from store.operations import MAX_BODY_BYTES
from tests.unit.jobs.worlds import KUBERNETES, NOW, World, failed, member, plan, shot, spec, workers


def indexes(slots: tuple[Slot, ...]) -> list[int]:
    return [slot.index for slot in slots]


def removed(found: Plan) -> list[str]:
    return [each.id for each in found.remove]


@pytest.mark.parametrize(
    ("replicas", "present", "created", "gone"),
    [
        (3, [0, 1, 2], [], []),
        (4, [0, 1, 2], [3], []),
        (1, [0, 1, 2], [], [1, 2]),
        (3, [0, 4], [1, 2], [4]),  # Kubeflow creates 3, too
        (0, [], [], []),  # Kubeflow creates 0, and deletes it in the next pass, for ever (D13)
        (2, [-1], [0, 1], [-1]),  # Kubeflow crashes
        (3, [], [0, 1, 2], []),
    ],
)
def test_members_stand_in_the_slots_of_their_type_and_no_others(
    replicas: int, present: list[int], created: list[int], gone: list[int]
) -> None:
    others = ReplicaType(name="ps")  # keeps the job open where there are no workers
    found = plan(
        spec(others, workers(replicas), success=Success(types=["ps"])),
        member(0, kind="ps"),
        *[member(index) for index in present],
    )

    assert indexes(found.create) == created
    assert [each.slot.index for each in found.remove] == gone
    assert found.status.counts["worker"].running == len(set(present) & set(range(replicas)))  # D12


def test_creation_follows_the_order_of_types_and_indexes() -> None:
    job = spec(ReplicaType(name="ps", replicas=2), workers(2))

    found = plan(job, run=Run())

    assert [str(slot) for slot in found.create] == ["ps/0", "ps/1", "worker/0", "worker/1"]


def test_of_two_members_of_one_slot_the_oldest_stays() -> None:
    twins = member(0, at=NOW + 1, id="b"), member(0, at=NOW, id="a")

    assert removed(plan(spec(workers(1)), *twins)) == ["b"]


def test_of_two_members_of_one_slot_the_one_that_succeeded_counts() -> None:
    found = plan(spec(workers(2)), member(0, id="a"), member(0, "succeeded", at=NOW + 1, id="b"), member(1))

    assert found.run is not None
    assert found.run.done == {"worker": "0"}
    assert removed(found) == ["a"]


@pytest.mark.parametrize(
    ("restart", "code", "cause", "follows"),
    [
        ("exit-code", 137, "", "counted"),  # D14
        ("exit-code", 128, "", "counted"),
        ("exit-code", 1, "", "failed"),
        ("exit-code", 127, "", "failed"),
        ("exit-code", None, "", "uncounted"),  # Kubeflow takes a missing code for a retryable one
        ("exit-code", 1, "oom", "counted"),
        ("on-failure", 1, "", "counted"),
        ("on-failure", None, "evicted", "uncounted"),  # D15
        ("always", 2, "", "counted"),
        ("never", 1, "", "failed"),  # D16
        ("never", 137, "", "failed"),
        ("never", 137, "lost", "uncounted"),
        ("never", None, "preempted", "uncounted"),
    ],
)
def test_the_restart_policy_says_what_follows_a_failure(
    restart: str, code: int | None, cause: str, follows: str
) -> None:
    job = spec(workers(2, restart=restart))

    found = plan(job, failed(0, code, cause=cause), member(1))

    assert found.run is not None
    assert found.run.outcome == ("failed" if follows == "failed" else "")
    assert found.run.restarts == (1 if follows == "counted" else 0)
    retried = {} if follows == "failed" else {"worker": {"0": SlotRun(1, NOW, cause)}}
    assert found.run.slots == retried
    assert not found.remove


def test_a_failed_member_goes_only_once_its_retry_is_durable() -> None:
    job = spec(workers(1, restart="on-failure"))
    first = plan(job, failed(0))

    second = plan(job, failed(0), run=first.run)

    assert removed(first) == []
    assert removed(second) == ["worker-0~0"]
    assert second.run is None


def test_a_retry_waits_twice_as_long_each_time_and_six_minutes_at_most() -> None:
    world = World(spec(workers(1, restart="on-failure"), backoff_limit=None))
    waits = []
    for _ in range(8):
        world.settle()
        (current,) = world.members.values()
        world.change(current, phase="failed", exit=1)
        waits.append(world.settle().after)
        world.now += waits[-1] or 0

    assert waits == [10, 20, 40, 80, 160, 320, 360, 360]


def test_in_kubernetes_the_next_attempt_waits_for_the_name() -> None:
    job = spec(workers(1, restart="on-failure"))
    run = Run(started=NOW, slots={"worker": {"0": SlotRun(1, NOW - 60)}})
    leaving = failed(0, leaving=True)

    assert plan(job, leaving, run=run, traits=KUBERNETES).create == ()
    assert indexes(plan(job, leaving, run=run).create) == [0]


def test_no_attempt_begins_while_a_former_one_runs() -> None:
    run = Run(started=NOW, slots={"worker": {"0": SlotRun(1, NOW - 60)}})

    found = plan(spec(workers(1)), member(0, leaving=True), run=run)

    assert found.create == ()


@pytest.mark.parametrize(
    ("limit", "restarts", "phase", "over"),
    [
        (3, 3, "running", True),  # D17
        (3, 2, "running", False),
        (0, 0, "running", False),  # D18
        (0, 1, "running", True),
        (1, 1, "running", True),
        (None, 99, "running", False),
        (3, 9, "starting", False),
    ],
)
def test_restarts_in_place_count_against_the_limit(
    limit: int | None, restarts: int, phase: str, over: bool
) -> None:
    job = spec(workers(1), backoff_limit=limit)

    found = plan(job, member(0, phase, restarts=restarts))

    assert (found.run is not None and found.run.reason == "BackoffLimitExceeded") is over


def test_restarts_of_a_type_that_never_restarts_do_not_count() -> None:
    found = plan(spec(workers(1, restart="never"), backoff_limit=0), member(0, restarts=3))

    assert found.run is None


def test_retries_by_exit_code_reach_the_limit() -> None:
    world = World(spec(workers(1, restart="exit-code"), backoff_limit=3))
    for _ in range(3):
        world.settle()
        world.now += 400
        world.settle()
        (current,) = world.members.values()
        world.change(current, phase="failed", exit=137)
    world.settle()

    assert world.run.reason == "BackoffLimitExceeded"
    assert len(world.created) == 3


def test_evictions_never_reach_the_limit() -> None:
    world = World(spec(workers(1), backoff_limit=0))
    for _ in range(9):
        world.settle()
        world.now += 400
        world.settle()
        (current,) = world.members.values()
        world.change(current, phase="failed", cause="evicted")

    assert world.run.outcome == ""


@pytest.mark.parametrize(("elapsed", "over"), [(59.0, False), (60.0, True), (61.0, True)])  # D19
def test_the_deadline_counts_from_the_start(elapsed: float, over: bool) -> None:
    job = spec(active_deadline=60.0)
    workers3 = [member(index) for index in range(3)]

    found = plan(job, *workers3, run=Run(started=NOW - elapsed))

    assert (found.run is not None and found.run.reason == "DeadlineExceeded") is over
    assert found.after == (0.0 if over else 60.0 - elapsed)


def test_a_job_that_ended_well_is_not_failed_by_its_deadline() -> None:
    job = spec(workers(1), active_deadline=60.0)

    found = plan(job, member(0, "succeeded"), run=Run(started=NOW - 100))

    assert found.run is not None
    assert found.run.outcome == "succeeded"


def done(run: Run | None) -> str:
    return "" if run is None else run.outcome


@pytest.mark.parametrize(
    ("types", "ended", "policy", "outcome"),
    [
        (["master", "worker"], ["master/0"], Success(), "succeeded"),
        (["master", "worker"], ["worker/0"], Success(), ""),
        (["ps", "worker"], ["worker/0"], Success(), "succeeded"),
        (["ps"], ["ps/0"], Success(), "succeeded"),
        (["Chief", "worker"], ["Chief/0"], Success(), "succeeded"),
        (["a", "b"], ["a/0"], Success(), ""),
        (["a", "b"], ["a/0", "b/0"], Success(), "succeeded"),
        (["a", "b"], ["b/0"], Success(operator="any"), "succeeded"),
        (["a", "b"], ["b/0"], Success(operator="any", types=["a"]), ""),
        (["a", "b"], ["b/0"], Success(types=["b"]), "succeeded"),
    ],
)
def test_success_is_what_the_policy_says(
    types: list[str], ended: list[str], policy: Success, outcome: str
) -> None:
    job = spec(*[ReplicaType(name=name) for name in types], success=policy)
    members = [member(0, "succeeded" if f"{name}/0" in ended else "running", kind=name) for name in types]

    assert done(plan(job, *members).run) == outcome


def test_success_of_one_index_is_enough_where_the_policy_says_so() -> None:
    job = spec(workers(3), success_index=0)

    assert done(plan(job, member(0, "succeeded"), member(1), member(2)).run) == "succeeded"
    assert done(plan(job, member(0), member(1, "succeeded"), member(2)).run) == ""


def test_where_any_slot_is_enough_a_failed_one_is_given_up_and_the_last_one_fails_the_job() -> None:
    world = World(spec(workers(2, restart="never"), success=Success(operator="any")))
    world.settle()
    first, second = world.members.values()
    world.change(first, phase="failed", exit=1)
    world.settle()
    assert world.run.given_up == {"worker": "0"}
    assert world.run.outcome == ""

    world.change(second, phase="failed", exit=1)
    world.settle()

    assert world.run.outcome == "failed"
    assert len(world.created) == 2


@pytest.mark.parametrize(
    ("rule", "member_", "restarts", "attempt", "outcome"),
    [
        (Rule(action="fail-job", exit_codes=[42]), failed(0, 42), 0, 0, "failed"),
        (Rule(action="fail-job", exit_codes=[42]), failed(0, 41), 1, 0, ""),
        (Rule(action="restart", exit_codes=[1]), failed(0, 1), 1, 0, ""),
        (Rule(action="restart-job", exit_codes=[-9]), failed(0, 137), 1, 1, ""),
        (Rule(action="ignore", reasons=["oom"]), failed(0, 137, cause="oom"), 0, 0, ""),
        (Rule(action="fail-job", types=["ps"]), failed(0, 1), 1, 0, ""),
        (Rule(action="fail-job"), failed(0, 1), 0, 0, "failed"),
        (Rule(action="fail-job", reasons=["lost"]), failed(0, None, cause="lost"), 0, 0, "failed"),
    ],
)
def test_the_first_rule_that_fits_decides(
    rule: Rule, member_: Member, restarts: int, attempt: int, outcome: str
) -> None:
    job = spec(workers(2), rules=(rule, Rule(action="restart")))

    found = plan(job, member_, member(1)).run

    assert found is not None
    assert (found.restarts, found.attempt, found.outcome) == (restarts, attempt, outcome)


@pytest.mark.parametrize("fields", [{"restart_scope": "job"}, {"peers": True}])
def test_a_restart_of_the_job_waits_until_all_former_members_are_gone(fields: dict[str, object]) -> None:
    job = spec(workers(3, restart="on-failure"), **fields)
    world = World(job)
    world.lingers = True
    world.settle()
    for each in list(world.members.values()):
        world.change(each, phase="running")
    first, second, _ = world.members.values()
    world.change(first, phase="failed", exit=1)
    world.change(second, phase="failed", exit=1)

    world.settle()

    assert (world.run.attempt, world.run.restarts) == (1, 1)  # two at once count once
    assert all(each.leaving for each in world.members.values())
    world.now += 60
    assert world.decide().create == ()
    world.members.clear()
    assert indexes(world.decide().create) == [0, 1, 2]


def test_a_slot_that_is_done_stays_done_in_a_restart_of_the_job() -> None:
    job = spec(workers(2), restart_scope="job")
    run = Run(started=NOW, attempt=1, done={"worker": "0"})

    found = plan(job, member(0, "succeeded"), run=run)

    assert indexes(found.create) == [1]
    assert not found.remove


def test_an_array_has_no_more_members_than_its_parallelism() -> None:
    world = World(spec(workers(10, parallelism=3)))
    world.settle()
    assert [slot.index for slot, _ in world.created] == [0, 1, 2]

    world.change(next(each for each in world.members.values() if each.slot.index == 1), phase="succeeded")
    found = world.step()

    assert found.run is not None
    assert found.run.done == {"worker": "1"}
    assert indexes(found.create) == [3]


def test_an_array_comes_to_its_end() -> None:
    world = World(spec(workers(100, parallelism=7)))
    while not world.run.outcome:
        world.settle()
        for each in list(world.members.values()):
            if not each.over:
                world.change(each, phase="succeeded")
    assert world.run.done == {"worker": "0-99"}
    assert world.run.outcome == "succeeded"
    assert len(world.created) == 100


def test_one_change_of_the_run_takes_in_a_batch_of_ends() -> None:
    job = spec(workers(20))

    found = plan(job, *[member(index, "succeeded") for index in range(20)])

    assert found.run is not None
    assert found.run.done == {"worker": "0-7"}
    assert found.after == 0.0


def test_a_slot_whose_creation_is_not_seen_yet_gets_no_other() -> None:
    found = plan(spec(), member(0), pending=frozenset({Slot("worker", 1)}))

    assert indexes(found.create) == [2]


def test_the_plan_asks_for_room_where_members_are_placed_by_itself() -> None:
    found = decide(shot(spec(), member(0), room=None))

    assert found == Ask(Need((Slot("worker", 1), Slot("worker", 2))))


def test_members_without_room_wait_and_the_reason_is_told() -> None:
    room = Room(frozenset({Slot("worker", 1)}), "of 3 nodes 3 short of gpu")

    found = plan(spec(), room=room, run=Run())
    nothing = plan(spec(), room=Room(frozenset(), room.why), run=Run())

    assert indexes(found.create) == [1]
    assert found.blocked is None
    assert found.status.message == room.why
    assert nothing.blocked is not None
    assert nothing.blocked.text == room.why
    assert nothing.run is None  # its deadline has not begun


@pytest.mark.parametrize(
    ("clean", "gone"), [("running", ["worker-0~0"]), ("all", ["worker-0~0", "worker-1~0"]), ("none", [])]
)
def test_cleaning_takes_what_the_policy_says(clean: str, gone: list[str]) -> None:
    run = Run(started=NOW, finished=NOW, outcome="failed")
    members = member(0), member(1, "succeeded")

    found = plan(spec(clean=clean), *members, run=run, services=frozenset(each.slot for each in members))

    assert removed(found) == gone
    assert [str(key) for key in found.drop_services] == [f"worker/{each[7]}" for each in gone]


@pytest.mark.parametrize(
    ("ttl", "ago", "deleted", "after"),
    [
        (0.0, 0.0, True, None),
        (100.0, 40.0, False, 60.0),  # D21
        (100.0, 101.0, True, None),
        (None, 1e6, False, None),
        (100.0, -3600.0, False, 3700.0),  # finished in the future: the clock went back
    ],
)
def test_a_finished_job_is_deleted_after_its_time_to_live(
    ttl: float | None, ago: float, deleted: bool, after: float | None
) -> None:
    run = Run(started=NOW, finished=NOW - ago, outcome="succeeded")

    found = plan(spec(ttl=ttl), run=run, traits=KUBERNETES)

    assert found.delete_job is deleted
    assert found.after == after


def test_on_nodes_the_record_goes_after_its_members() -> None:
    world = World(spec(workers(2), ttl=0.0))
    world.settle()
    for each in list(world.members.values()):
        world.change(each, phase="succeeded")

    world.settle()

    assert world.gone
    assert not world.members


def test_a_suspended_job_loses_its_members_and_keeps_what_is_done() -> None:
    job = spec(suspend=True)

    found = plan(job, member(0, "succeeded"), member(1), member(2, "starting"))

    assert found.run is not None
    assert (found.run.done, found.run.started) == ({"worker": "0"}, 0.0)
    assert removed(found) == ["worker-1~0", "worker-2~0"]
    assert found.status.state == "suspended"


def test_a_resumed_job_begins_its_deadline_anew() -> None:
    world = World(spec(workers(2), active_deadline=60.0, suspend=True))
    world.run = Run(started=NOW - 50, done={"worker": "0"})
    world.settle()
    world.now += 3600
    world.job = spec(workers(2), active_deadline=60.0)

    world.settle()

    assert world.run.started == world.now
    assert world.run.outcome == ""
    assert [str(slot) for slot, _ in world.created] == ["worker/1"]


def test_a_deleted_job_gets_nothing_and_its_record_goes_last() -> None:
    job = spec(deleting=True)

    first = plan(job, member(0), member(1, leaving=True))

    assert removed(first) == ["worker-0~0"]
    assert not first.delete_job
    assert not plan(job, member(1, leaving=True)).delete_job
    assert plan(job).delete_job
    assert plan(job, member(0), traits=KUBERNETES).empty


def test_the_verdict_is_durable_before_anything_is_cleaned() -> None:
    job = spec(workers(2, restart="never"), clean="all")

    verdict = plan(job, failed(0, 3, message="no data"), member(1))

    assert verdict.run is not None
    assert (verdict.run.outcome, verdict.run.finished) == ("failed", NOW)
    assert verdict.run.message == "worker/0 ended with exit code 3: no data"
    assert not verdict.changes


def test_a_lost_member_is_waited_for_where_the_job_says_so() -> None:
    lost = member(0, "unknown", cause="lost")

    assert plan(spec(workers(1), on_lost="wait"), lost).run is None
    replaced = plan(spec(workers(1)), lost).run
    assert replaced is not None
    assert replaced.slots == {"worker": {"0": SlotRun(1, NOW, "lost")}}


def test_a_member_of_unknown_state_stays() -> None:
    assert plan(spec(workers(1)), member(0, "unknown")).empty


def test_a_run_that_is_behind_its_members_follows_them() -> None:
    found = plan(spec(workers(2)), member(0, attempt=3), member(1))

    assert found.run is not None
    assert found.run.slots == {"worker": {"0": SlotRun(3, 0.0)}}
    assert not found.remove


def test_a_member_of_a_former_attempt_goes_once_the_later_one_is_durable() -> None:
    job, both = spec(workers(1)), (member(0), member(0, attempt=1))

    first = plan(job, *both)

    assert first.run is not None
    assert removed(first) == []
    assert removed(plan(job, *both, run=first.run)) == ["worker-0~0"]


def test_a_freeze_holds_what_nobody_asked_for() -> None:
    frozen = {"frozen": "no leader"}
    run = Run(started=NOW, slots={"worker": {"0": SlotRun(1, NOW - 99)}})

    retry = plan(spec(workers(2)), failed(0), run=run, **frozen)
    scaled = plan(spec(workers(1)), member(0), member(1), commanded=True, **frozen)
    stopped = plan(spec(suspend=True), member(0), commanded=True, **frozen)
    before = plan(spec(suspend=True), member(0), **frozen)

    assert retry.remove == ()
    assert retry.blocked is not None
    assert indexes(retry.create) == [0, 1]
    assert removed(scaled) == ["worker-1~0"]
    assert removed(stopped) == ["worker-0~0"]
    assert before.remove == ()


def test_a_freeze_counts_no_attempt_for_a_member_that_it_keeps() -> None:
    lost = member(0, "unknown", cause="lost")

    found = plan(spec(workers(2)), lost, failed(1), run=Run(started=NOW), frozen="no leader")

    assert found.run is not None
    assert found.run.slots == {"worker": {"1": SlotRun(1, NOW)}}
    held = plan(spec(workers(2)), lost, member(1), run=Run(started=NOW), frozen="no leader")
    assert held.run is None
    assert held.blocked == Blocked("frozen", "frozen: no leader")


def test_services_stand_before_members_and_go_with_their_slots() -> None:
    job = spec(workers(2), services="each")
    stray = frozenset({Slot("worker", 0), Slot("worker", 5), None})

    found = plan(job, services=stray)

    assert found.create_services == (Slot("worker", 1),)
    assert found.drop_services == (None, Slot("worker", 5))
    assert plan(spec(services="shared")).create_services == (None,)


def test_a_job_that_could_never_run_fails_with_the_reason() -> None:
    found = plan(spec(invalid="types[0].template: no container", ttl=None), run=Run())

    assert found.run is not None
    assert (found.run.outcome, found.run.reason) == ("failed", "FailedValidation")
    assert found.run.message == "types[0].template: no container"


def test_a_job_without_slots_succeeds() -> None:
    assert done(plan(spec(workers(0))).run) == "succeeded"


def test_a_type_without_slots_decides_nothing_about_those_that_have_some() -> None:
    job = spec(workers(0), ReplicaType(name="ps", replicas=1))

    assert plan(job).create == (Slot("ps", 0),)
    assert plan(job, member(0, "succeeded", kind="ps")).run.done == {"ps": "0"}  # type: ignore[union-attr]


def test_restarts_in_place_are_told_and_kept_at_the_end() -> None:
    job = spec(workers(2), backoff_limit=5)

    assert plan(job, member(0, restarts=2), member(1, restarts=1)).status.restarts == 3

    over = plan(job, member(0, restarts=4), member(1, restarts=1))
    assert over.run is not None
    assert (over.run.reason, over.run.restarts, over.status.restarts) == ("BackoffLimitExceeded", 5, 5)


def test_people_are_told_why_members_do_not_run() -> None:
    job = spec(workers(2))
    refused = member(0, "starting", message="command /none: No such file or directory")

    beside = plan(job, refused, member(1))
    assert (beside.status.state, beside.blocked) == ("running", None)
    assert beside.status.message == "worker/0: command /none: No such file or directory"

    alone = plan(job, refused, member(1, "starting", message="no"))
    assert alone.blocked is not None
    assert alone.blocked.text == "worker/0: command /none: No such file or directory, and 1 more member"

    begun = plan(job, refused, member(1, "starting"))
    assert begun.blocked is None

    absent = plan(job, member(0, "unknown", message="its node's agent is absent"), member(1))
    assert absent.status.message == "worker/0: its node's agent is absent"


def test_people_are_told_which_slots_are_tried_again() -> None:
    run = Run(started=NOW, slots={"worker": {"10": SlotRun(1, NOW), "2": SlotRun(3, NOW)}})

    found = plan(spec(workers(11)), *[member(index) for index in range(11) if index not in (2, 10)], run=run)

    assert found.status.state == "restarting"
    assert found.status.message == "worker/2 and 1 more slot tried again, attempt 3"


def test_an_array_begins_no_slots_while_very_many_are_tried_again() -> None:
    job = spec(workers(100_000, parallelism=50, restart="exit-code"), backoff_limit=100_000)
    tried = {str(index): SlotRun(1, NOW) for index in range(1, 2 * PACED_SLOTS, 2)}
    done = str(Indexes(",".join(map(str, range(0, 2 * PACED_SLOTS, 2)))))
    run = Run(started=NOW, slots={"worker": tried}, done={"worker": done})
    assert len(codec.encode(run)) < 64 * 1024

    waiting = plan(job, run=run)
    assert (waiting.create, waiting.status.state) == ((), "restarting")
    assert waiting.status.message == f"worker/1 and {PACED_SLOTS - 1} more slots tried again, attempt 1"

    later = plan(job, run=run, now=NOW + 3600)
    assert indexes(later.create) == list(range(1, 101, 2))

    one_less = msgspec.structs.replace(run, slots={"worker": dict(list(tried.items())[1:])})
    assert indexes(plan(job, run=one_less).create)[:2] == [1, 2 * PACED_SLOTS]


def test_a_job_fails_before_its_run_is_too_large_for_a_transaction() -> None:
    types = [ReplicaType(name=f"worker-{number}", replicas=5000) for number in range(16)]
    slots = {kind.name: {str(index): SlotRun(9, NOW + 0.123) for index in range(5000)} for kind in types}
    run = Run(started=NOW, slots=slots)

    found = plan(spec(*types, backoff_limit=100_000), run=run)
    assert found.run is not None
    assert (found.run.outcome, found.run.reason) == ("failed", "TooManyRetries")
    assert len(codec.encode(found.run)) < 1024

    few = {name: dict(list(tried.items())[:500]) for name, tried in slots.items()}
    fine = Run(started=NOW, slots=few)
    assert len(base64.b64encode(codec.encode(fine))) < MAX_BODY_BYTES
    assert not plan(spec(*types, backoff_limit=100_000), run=fine).status.reason


def test_a_job_of_which_nobody_knows_when_it_ended_outlives_its_time_to_live() -> None:
    kinds = (ReplicaType(name="worker"),)
    for traits in (CONSUL, KUBERNETES):
        plan = decide(
            Snapshot(
                job=JobSpec(id="1", name="bert", types=kinds, ttl=60.0),
                traits=traits,
                run=Run(outcome="succeeded"),
                now=1e9,
            )
        )
        assert isinstance(plan, Plan)
        assert not plan.delete_job
