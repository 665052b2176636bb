"""Gangs: all members together or none, on nodes and behind a scheduler of gangs."""

from __future__ import annotations

from farmd.jobs.facts import JobSpec, Member, Plan, Room, Slot
from store.jobs import Run, SlotRun
from tests.unit.jobs.worlds import KUBERNETES, NOW, World, failed, member, plan, spec, workers

FULL = "worker/2 found no place"


def gang(count: int = 3, **fields: object) -> JobSpec:
    return spec(workers(count, restart="on-failure"), gang=True, **fields)


def room(*indexes: int) -> Room:
    return Room(frozenset(Slot("worker", index) for index in indexes), FULL)


def held(index: int, phase: str = "held", **fields: object) -> Member:
    return member(index, phase, hold=True, **fields)


def test_a_gang_without_room_for_all_gets_no_member() -> None:
    found = plan(gang(), room=room(0, 1), run=Run())

    assert found.create == ()
    assert found.blocked is not None
    assert found.blocked.text == FULL
    assert found.run is None


def test_a_gang_is_placed_whole_and_its_deadline_begins_with_its_release() -> None:
    world = World(gang(active_deadline=600.0))
    world.settle()
    assert [slot.index for slot, _ in world.created] == [0, 1, 2]
    assert world.run == Run()

    world.now += 20
    for each in list(world.members.values()):
        world.change(each, phase="held")
    found = world.step()

    assert len(found.release) == 3
    assert world.run.started == NOW + 20


def test_no_member_is_released_before_all_are_ready() -> None:
    found = plan(gang(), held(0), held(1), held(2, "starting"), run=Run())

    assert found.release == ()
    assert found.after == 60.0


def test_a_gang_that_is_not_ready_in_time_gives_its_places_back() -> None:
    late = [held(0, at=NOW - 60), held(1, at=NOW - 60), held(2, "starting", at=NOW - 59)]

    found = plan(gang(), *late, run=Run())

    assert found.give_back
    assert [each.slot.index for each in found.remove] == [0, 1, 2]
    assert found.create == ()


def test_a_gang_whose_rest_fits_no_more_gives_its_places_back() -> None:
    found = plan(gang(), held(0), held(1), room=room(), run=Run())

    assert found.give_back
    assert len(found.remove) == 2


def test_the_rest_of_a_gang_follows_where_it_fits() -> None:
    found = plan(gang(), held(0), room=room(1, 2), run=Run())

    assert [slot.index for slot in found.create] == [1, 2]
    assert not found.remove


def test_once_one_member_was_released_the_rest_only_follow() -> None:
    found = plan(gang(), member(0), held(1, at=NOW - 999), held(2, "starting", at=NOW - 999))

    assert [each.slot.index for each in found.release] == [1]
    assert not found.remove


def test_a_retry_in_a_gang_that_runs_is_placed_on_hold_and_released_alone() -> None:
    run = Run(started=NOW - 99, slots={"worker": {"1": SlotRun(1, NOW - 60)}})
    others = member(0), member(2)

    assert [slot.index for slot in plan(gang(), *others, run=run).create] == [1]
    ready = plan(gang(), *others, held(1, attempt=1), run=run)
    assert [each.slot.index for each in ready.release] == [1]


def test_a_gang_restarts_whole_where_members_know_each_other() -> None:
    world = World(gang(peers=True))
    world.settle_held()
    for each in list(world.members.values()):
        world.change(each, phase="running")
    world.change(next(iter(world.members.values())), phase="failed", exit=1)
    world.settle()
    assert world.members == {}

    world.now += 60
    world.settle_held()

    assert world.run.attempt == 1
    assert [(slot.index, attempt) for slot, attempt in world.created[3:]] == [(0, 1), (1, 1), (2, 1)]
    assert not any(each.hold for each in world.members.values())


def test_a_gang_waits_until_its_last_retry_is_due() -> None:
    run = Run(started=NOW - 99, slots={"worker": {"0": SlotRun(1, NOW - 60), "1": SlotRun(1, NOW - 4)}})

    found = plan(gang(), member(2), run=run)

    assert found.create == ()
    assert found.after == 6.0


def kubernetes(state: str, *members: Member) -> Plan:
    return plan(gang(), *members, traits=KUBERNETES, gang=state)


def test_members_in_kubernetes_come_once_the_gangs_object_is_admitted() -> None:
    assert (kubernetes("absent").gang, kubernetes("absent").create) == ("create", ())
    assert kubernetes("waiting").create == ()
    assert [slot.index for slot in kubernetes("ready").create] == [0, 1, 2]


def test_the_time_in_a_gang_schedulers_queue_does_not_count_against_the_deadline() -> None:
    def began(state: str) -> float:
        run = plan(gang(active_deadline=600.0), run=Run(), traits=KUBERNETES, gang=state).run
        return run.started if run is not None else 0.0

    assert [began(state) for state in ("absent", "waiting", "ready")] == [0.0, 0.0, NOW]


def test_the_gangs_object_goes_with_the_verdict_and_while_suspended() -> None:
    over = Run(started=NOW, finished=NOW, outcome="succeeded")

    assert plan(gang(), traits=KUBERNETES, gang="ready", run=over).gang == "delete"
    assert plan(gang(suspend=True), traits=KUBERNETES, gang="ready").gang == "delete"
    assert plan(gang(), traits=KUBERNETES, gang="absent", run=over).gang == ""


def test_a_freeze_gives_no_places_back() -> None:
    found = plan(gang(), held(0, at=NOW - 99), held(1, at=NOW - 99), room=room(), run=Run(), frozen="doubt")

    assert found.remove == ()
    assert not found.give_back
    assert found.blocked is not None
    assert found.blocked.frozen


def test_a_failure_on_hold_is_a_retry_of_the_gangs_slot() -> None:
    found = plan(gang(), held(0), failed(1, 126, hold=True), held(2), run=Run())

    assert found.run is not None
    assert found.run.slots == {"worker": {"1": SlotRun(1, NOW)}}
    assert found.release == ()
