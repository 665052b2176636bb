"""What holds for every job, whatever happens to its members: hypothesis chooses jobs and events."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import structs

from farmd.jobs.facts import Member, Plan, ReplicaType, Room, Slot, Snapshot, attempt_of
from farmd.jobs.plan import decide
from store.indexes import Indexes
from store.jobs import Rule, Success
from tests.unit.jobs.worlds import CONSUL, KUBERNETES, World, spec

NAMES = ("master", "worker", "ps")
CODES = (0, 1, 3, 137)

types = st.builds(
    ReplicaType,
    name=st.sampled_from(NAMES),
    replicas=st.integers(0, 4),
    parallelism=st.sampled_from((0, 0, 1, 2)),
    restart=st.sampled_from(("never", "on-failure", "exit-code", "always")),
)
rules = st.builds(
    Rule,
    action=st.sampled_from(("fail-job", "restart", "restart-job", "ignore")),
    exit_codes=st.lists(st.sampled_from(CODES), max_size=1),
    reasons=st.lists(st.sampled_from(("oom", "lost")), max_size=1),
)
jobs = st.builds(
    lambda kinds, fields: spec(*kinds, **fields),
    st.lists(types, min_size=1, max_size=3, unique_by=lambda kind: kind.name),
    st.fixed_dictionaries(
        {
            "gang": st.booleans(),
            "peers": st.booleans(),
            "services": st.sampled_from(("none", "shared", "each")),
            "success": st.builds(Success, operator=st.sampled_from(("all", "any"))),
            "rules": st.lists(rules, max_size=1).map(tuple),
            "backoff_limit": st.sampled_from((None, 0, 2, 6)),
            "active_deadline": st.sampled_from((None, 300.0)),
            "ttl": st.sampled_from((None, 0.0, 60.0)),
            "clean": st.sampled_from(("none", "running", "all")),
            "restart_scope": st.sampled_from(("slot", "job")),
            "on_lost": st.sampled_from(("replace", "wait")),
        }
    ),
).map(
    lambda job: (
        replace(job, types=tuple(replace(kind, parallelism=0) for kind in job.types)) if job.gang else job
    )
)

events = st.tuples(
    st.sampled_from(
        (
            "run",
            "run",
            "succeed",
            "fail",
            "evict",
            "lose",
            "delete",
            "vanish",
            "restart",
            "hold",
            "twin",
            "later",
        )
        + ("wait", "suspend", "resume", "end", "scale", "freeze", "thaw", "command", "cramp", "widen")
    ),
    st.integers(0, 11),
)


def happen(world: World, event: str, number: int) -> None:
    """Something happens to one member, to the job or to the world."""
    members = sorted(world.members.values(), key=lambda each: each.id)
    one = members[number % len(members)] if members else None
    if one is not None and event in MEMBER_EVENTS and not (one.over and event != "delete"):
        world.change(one, **MEMBER_EVENTS[event], **({"exit": CODES[number % 4]} if event == "fail" else {}))
    elif event == "hold":
        for each in members:
            if each.hold:
                world.change(each, phase="held")
    elif event == "vanish":
        for each in members:
            if each.leaving:
                del world.members[each.id]
    elif event == "twin" and one is not None:
        world.members[f"{one.id}'"] = structs.replace(one, id=f"{one.id}'", at=one.at + 1)
    elif event == "later" and one is not None:
        world.members[f"{one.id}+"] = structs.replace(one, id=f"{one.id}+", attempt=one.attempt + 1)
    elif event == "scale":
        first, *others = world.job.types
        world.job = replace(world.job, types=(replace(first, replicas=number % 5), *others))
    elif event in WORLD_EVENTS:
        WORLD_EVENTS[event](world, number)


MEMBER_EVENTS: dict[str, dict[str, Any]] = {
    "run": {"phase": "running"},
    "succeed": {"phase": "succeeded"},
    "fail": {"phase": "failed"},
    "evict": {"phase": "failed", "cause": "evicted"},
    "lose": {"phase": "unknown", "cause": "lost"},
    "delete": {"leaving": True},
    "restart": {"restarts": 1},
}
WORLD_EVENTS: dict[str, Any] = {
    "wait": lambda world, number: setattr(world, "now", world.now + 40 * number),
    "suspend": lambda world, _: setattr(world, "job", replace(world.job, suspend=True)),
    "resume": lambda world, _: setattr(world, "job", replace(world.job, suspend=False)),
    "end": lambda world, number: setattr(world, "job", replace(world.job, deleting=number == 0)),
    "freeze": lambda world, _: setattr(world, "frozen", "no leader"),
    "thaw": lambda world, _: (setattr(world, "frozen", ""), setattr(world, "commanded", False)),
    "command": lambda world, _: setattr(world, "commanded", True),
    "cramp": lambda world, number: setattr(world, "room", Room(frozenset(some(world, number)), "full")),
    "widen": lambda world, _: setattr(world, "room", Room()),
}


def some(world: World, number: int) -> list[Slot]:
    return [Slot(kind.name, index) for kind in world.job.types for index in range(kind.replicas)][
        : number % 4
    ]


ONE_OF_TWO = spec(
    ReplicaType(name="master", replicas=2, parallelism=1, restart="never"), success=Success(operator="any")
)
LOST_FAILS = replace(ONE_OF_TWO, rules=(Rule(action="fail-job"),))


@given(
    jobs, st.lists(events, max_size=20), st.sampled_from((CONSUL, KUBERNETES)), st.booleans(), st.randoms()
)
@example(ONE_OF_TWO, [("run", 0), ("evict", 0), ("succeed", 0)], CONSUL, False, random.Random(1))
@example(LOST_FAILS, [("run", 0), ("lose", 0)], CONSUL, False, random.Random(1))
def test_the_invariants_hold_after_every_event(
    job: Any, history: list[tuple[str, int]], traits: Any, lingers: bool, chance: Any
) -> None:
    world = World(job, traits)
    world.lingers = lingers
    for event, number in history:
        happen(world, event, number)
        for _ in range(2):
            before = world.snapshot()
            plan = world.decide()
            check(before, plan)
            shuffled = list(before.members)
            chance.shuffle(shuffled)
            assert decide(replace(before, members=tuple(shuffled))) == plan  # 7
            world.apply(plan)
            check_run(before, world)
        if world.gone:
            return


def check(shot: Snapshot, plan: Plan) -> None:
    run = plan.run or shot.run
    live = [each for each in shot.members if not each.leaving]
    # 1: one live member a slot; creation only inside of the job, and never once it is over or held.
    slots = set(plan.create)
    assert len(slots) == len(plan.create)
    for slot in slots:
        kind = shot.job.type(slot.type)
        assert kind is not None
        assert 0 <= slot.index < kind.replicas
        assert slot.index not in Indexes(run.done.get(slot.type, ""), run.given_up.get(slot.type, ""))
        wanted = attempt_of(run, slot)
        assert not [
            each for each in shot.members if each.slot == slot and (not each.over or each.attempt == wanted)
        ]
    if plan.create:
        assert not any((shot.job.suspend, shot.job.deleting, run.outcome))
    parallelism(shot, plan, live)
    # 2: a member goes for a retry only where the durable run has a higher attempt.
    for each in plan.remove:
        assert each in live
        if not excused(shot, plan, each):
            assert each.attempt < attempt_of(shot.run, each.slot)
    # 4 is checked where runs are compared; 6: a gang's members come all together or not at all.
    if shot.job.gang and plan.create:
        whole = {Slot(kind.name, index) for kind in shot.job.types for index in range(kind.replicas)}
        present = {each.slot for each in live if each.attempt >= attempt_of(run, each.slot)}
        done = {
            slot
            for slot in whole
            if slot.index in Indexes(run.done.get(slot.type, ""), run.given_up.get(slot.type, ""))
        }
        assert slots | present | done == whole
    released = any(not each.hold and each.attempt >= shot.run.attempt for each in live)
    assert not (plan.give_back and released and shot.traits.holds)
    # 8: a freeze removes nothing that no person asked for.
    if shot.frozen and not shot.commanded:
        assert not plan.remove
        assert not plan.delete_job


def parallelism(shot: Snapshot, plan: Plan, live: list[Member]) -> None:
    for kind in shot.job.types:
        if kind.parallelism and any(slot.type == kind.name for slot in plan.create):
            present = {each.slot for each in live if each.slot.type == kind.name and not each.over}
            there = {slot for slot in present if 0 <= slot.index < kind.replicas}
            run = plan.run or shot.run
            # What ran in a slot that is given up has ended, or was on a lost node long enough (R27).
            closed = Indexes(run.done.get(kind.name, ""), run.given_up.get(kind.name, ""))
            there = {slot for slot in there if slot.index not in closed}
            assert len(there | {slot for slot in plan.create if slot.type == kind.name}) <= kind.parallelism


def excused(shot: Snapshot, plan: Plan, each: Member) -> bool:
    """Whether a member goes for another reason than a retry."""
    kind = shot.job.type(each.slot.type)
    beyond = kind is None or not 0 <= each.slot.index < kind.replicas
    over = bool(shot.job.suspend or shot.job.deleting or shot.run.outcome)
    alike = [other for other in shot.members if (other.slot, other.attempt) == (each.slot, each.attempt)]
    twins = sum(not other.leaving for other in alike) > 1
    closed = (plan.run or shot.run).done, (plan.run or shot.run).given_up
    done = any(each.slot.index in Indexes(texts.get(each.slot.type, "")) for texts in closed)
    return beyond or over or twins or done or plan.give_back


def check_run(shot: Snapshot, world: World) -> None:
    """3: attempts, ends and retries never shrink. 4: a verdict is for ever."""
    before, after = shot.run, world.run
    assert after.restarts >= before.restarts
    assert after.attempt >= before.attempt
    for kind in NAMES:
        for old, new in ((before.done, after.done), (before.given_up, after.given_up)):
            assert {*Indexes(old.get(kind, ""))} <= {*Indexes(new.get(kind, ""))}
        for index in Indexes(after.done.get(kind, ""), after.given_up.get(kind, "")).gaps(5):
            assert attempt_of(after, Slot(kind, index)) >= attempt_of(before, Slot(kind, index))
    if before.outcome:
        assert after == before


@given(jobs, st.lists(events, max_size=15), st.sampled_from((CONSUL, KUBERNETES)))
def test_deciding_and_carrying_out_comes_to_an_end_that_writes_nothing(
    job: Any, history: list[tuple[str, int]], traits: Any
) -> None:
    world = World(job, traits)
    for event, number in history:
        happen(world, event, number)
        world.step()
    for each in list(world.members.values()):  # what leaves is gone; who is to be ready, is
        if each.leaving:
            del world.members[each.id]
        elif each.hold:
            world.change(each, phase="held")
    world.room = Room()
    for _ in range(50):
        plan = world.step()
        for each in list(world.members.values()):
            if each.hold:
                world.change(each, phase="held")
        if plan.empty or world.gone:
            return
    raise AssertionError(f"5: no fixpoint: {plan}")


@given(jobs, st.integers(0, 5))
def test_every_job_whose_members_end_well_succeeds(job: Any, seed: int) -> None:
    job = replace(job, active_deadline=None, ttl=None)
    world = World(job)
    for _ in range(60):
        world.settle_held()
        if world.run.outcome:
            break
        for each in list(world.members.values()):
            if not each.over:
                world.change(each, phase="succeeded")
    assert world.run.outcome == "succeeded"
    assert world.run.restarts == 0
    assert all(attempt == 0 for _, attempt in world.created)
    assert sum(len(Indexes(text)) for text in world.run.done.values()) <= job.size
