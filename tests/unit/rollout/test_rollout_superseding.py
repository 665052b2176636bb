"""R14: old, superseded and new pods share one floor, and the superseded ones leave first."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farmd.commands.mutation import Call, Mutation, commit
from farmd.replication.commands import RC
from farmd.rollout import commands, progress, report
from farmd.rollout.noun import ROLLOUT
from farmd.rollout.superseding import successor, superseded
from store.errors import Conflict, InputInvalid
from store.pods import Place
from store.policies import Policy, Stage
from store.rcs import ReplicationController
from store.rollouts import Rollout, RolloutState
from tests.effort import tries
from tests.people import person
from tests.rollout_worlds import NEW, NEWER, NOW, OLD, OLDER, POD, World, controller, on, pod, rollout

BAD = "c" * 64
MOVING = RolloutState(phase="moving", since=NOW, superseded=1)


def world(old: int, bad: dict[Place, Any], total: int, minimum: int, **policy: Any) -> World:
    begun = rollout(total, minimum, policy={"stages": [1, "100%"], **policy}, superseded=[BAD])
    return World(begun, on(old), bad, state=MOVING, free=[f"free-{number}" for number in range(20)])


def bad(count: int, **fields: Any) -> dict[Place, Any]:
    return {(f"b{number}", POD): pod(NEW, manifest=BAD, **fields) for number in range(count)}


def test_one_pod_goes_first_and_the_others_once_it_is_available() -> None:
    made = world(4, bad(4, healthy=False), 8, 4)
    assert [(m.way, m.in_place) for m in made.step().moves.moves] == [("refill", True)]
    assert made.decide().empty
    made.settle()
    assert len(made.step().moves.moves) == 3


def test_bad_pods_that_serve_leave_above_the_floor_only() -> None:
    made = world(4, bad(4), 8, 7)
    made.step()
    assert made.available() == 7
    assert made.decide().empty
    assert report.status(made.snapshot(), made.decide(), "f", NOW).new.serving == 3


def test_no_old_pod_leaves_before_the_last_bad_one() -> None:
    made = world(4, bad(2), 6, 2)
    made.step()
    made.settle()
    assert {move.way for move in made.step().moves.moves} == {"refill"}
    made.settle()
    assert {move.way for move in made.step().moves.moves} != {"refill"}


def test_bad_pods_are_no_fault_of_the_new_version() -> None:
    made = world(4, bad(4, healthy=False), 8, 8)
    made.now = made.risen = NOW + 10_000
    made.step()
    made.now += 601
    plan = made.decide()
    assert plan.turn is not None
    assert (plan.turn.action, "no pod that came is at fault" in plan.fault) == ("halt", True)


def test_what_held_or_turned_back_the_bad_version_is_over() -> None:
    states = [
        RolloutState(phase="moving", back=True, stage=1, since=NOW, cause="it failed"),
        RolloutState(phase="halted", back=True, fault=True, resumed=9, stage=1, since=NOW, cause="it failed"),
        RolloutState(phase="baking", stage=0, since=NOW, reached=NOW),
    ]
    for state in states:
        made = world(4, bad(4), 8, 4)
        made.state = state
        plan = made.step()
        assert plan.turn is not None
        assert plan.turn.action == "take"
        assert made.state == msgspec.structs.replace(MOVING, since=NOW)


def test_a_revert_after_that_goes_back_for_good() -> None:
    for state in (MOVING, RolloutState(phase="moving", back=True, since=NOW, cause="it failed")):
        made = world(4, bad(4), 8, 4)
        made.rollout = msgspec.structs.replace(made.rollout, wish="revert")
        made.state = state
        for _ in range(40):
            if made.step().empty:
                made.settle()
            if made.outcome:
                break
        assert (made.outcome, made.new, len(made.old)) == ("reverted", {}, 8)


@settings(max_examples=tries(150))
@given(st.data())
def test_all_versions_share_one_floor_until_the_new_one_is_whole(data: st.DataObject) -> None:
    old, ill, well = (data.draw(st.integers(0, 5)) for _ in range(3))
    total = max(1, old + ill + well)
    least = data.draw(st.integers(0, total - 1))
    strategy = data.draw(st.sampled_from(["rolling", "availability", "resourceutil"]))
    pods = {**bad(ill, healthy=False), **{(f"w{n}", POD): pod(NEW, manifest=BAD) for n in range(well)}}
    made = world(old, pods, total, least, strategy=strategy)
    back = data.draw(st.booleans())
    if back:
        made.state = msgspec.structs.replace(MOVING, back=True, cause="it failed")
    for _ in range(20 * total + 40):
        before, floor = made.available(), progress.floor(made.snapshot())
        plan = made.step()
        assert made.available() >= min(before, floor)
        if made.outcome:
            break
        if plan.empty:
            made.now += 1
            made.settle()
    assert made.outcome == ("reverted" if back else "done"), plan
    side, manifest = (made.old, OLDER) if back else (made.new, NEWER)
    assert {state.pod.record.manifest for state in side.values()} == {manifest}
    assert len(side) == total


def test_the_records() -> None:
    begun = msgspec.structs.replace(rollout(8, 4), wish="revert", approved=2, needs=["gpu"])
    policy = Policy(stages=[Stage(to=2, approve=True), "100%"], minimum=5)
    wanted = controller(OLD, 3, rollout=policy, node_selector="a=b")
    wanted = msgspec.structs.replace(wanted, manifest=BAD)
    found = superseded(begun, controller(OLD, 3), wanted, actor="user/ada", now=7.0)
    assert (found.to_manifest, found.superseded, found.from_manifest) == (BAD, [NEWER], OLDER)
    assert (found.wish, found.approved, found.at, found.policy.minimum) == ("", 1, 7.0, 5)
    assert found.needs == ["gpu", "rollouts.3"]
    coming: ReplicationController = controller(NEW, 5, hands=3)
    new = successor(coming, wanted)
    assert (new.id, new.name, new.manifest, new.node_selector) == (NEW, coming.name, BAD, "a=b")
    assert (new.replicas_desired, new.hands, new.taken, new.managed_by) == (5, 3, True, "rollouts/1")


# -- the command --------------------------------------------------------------------------------
async def bring(call: Call, command: str, **fields: Any) -> Mutation:
    told = {"retry": fields.pop("retry", False), "supersede": fields.pop("supersede", True)}
    document = {"name": "web", "pod": {"id": "web", "command": [command]}, **fields}
    return await RC.update(call, RC.file.parse(document, "x"), now=False, **told)


async def coming(call: Call) -> Rollout:
    """A controller of four, and a rollout to its second version."""
    first = {"name": "web", "replicas": 4, "pod": {"id": "web", "command": ["first"]}}
    await commit(call, await RC.create(call, RC.file.parse(first, "x")))
    await commit(call, await bring(call, "second"))
    stored, _ = await ROLLOUT.records(call.client, call.keys).named("web")
    assert stored is not None
    return stored.record


async def test_the_plan_tells_what_happens_and_where_the_way_back_leads() -> None:
    async with person() as call:
        begun = await coming(call)
        found = (await bring(call, "third")).change
        assert (found.action, found.destructive) == ("rollout.supersede", True)
        assert found.details[0] == 'pod.command: ["second"] -> ["third"]'
        assert found.details[1].startswith(f"pods of {begun.to_manifest[:12]} are replaced first")
        assert found.details[-1] == f"farmctl rollout revert web goes back to {begun.from_manifest[:12]}"


async def test_it_is_one_write_and_what_was_planned_before_it_is_refused() -> None:
    async with person() as call:
        begun = await coming(call)
        late = await commands.pause(call, "web")
        await commit(call, await bring(call, "third"))
        with pytest.raises(Conflict, match="changed since it was read"):
            await commit(call, late)
        stored, _ = await ROLLOUT.records(call.client, call.keys).named("web")
        assert stored is not None
        new = (await RC.records(call.client, call.keys).get(begun.new)).record
        assert (stored.record.superseded, new.manifest) == ([begun.to_manifest], stored.record.to_manifest)
        assert not (await bring(call, "third")).needed


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"supersede": False}, "has a rollout already, to version", "--supersede"),
    ({"replicas": 9}, "replicas: found 9, expected 4 while the rollout", "farmctl rollout scale web 9"),
    ({"rollout": {"strategy": "availability"}}, r"strategy: found availability, expected rolling until", ""),
]


@pytest.mark.parametrize(("fields", "text", "hint"), REFUSED)
async def test_what_a_rollout_cannot_take_is_refused(fields: dict[str, Any], text: str, hint: str) -> None:
    async with person() as call:
        await coming(call)
        with pytest.raises((Conflict, InputInvalid), match=text) as error:
            await bring(call, "third", **fields)
        assert hint in str(error.value.fields.get("hint", ""))


async def test_one_that_ends_is_not_superseded() -> None:
    async with person() as call:
        await coming(call)
        await commit(call, await commands.abort(call, "web"))
        with pytest.raises(Conflict, match="rollout 'web' is ending"):
            await bring(call, "third")
