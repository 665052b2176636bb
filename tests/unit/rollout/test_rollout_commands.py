"""What people ask of rollouts, on the embedded store: what is written, and each refusal in one line."""

from __future__ import annotations

import re
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest

from farmd import overview
from farmd.cli.changes import described
from farmd.commands import versions
from farmd.commands.fleet import read
from farmd.commands.mutation import Call, Change, commit
from farmd.commands.waiting import describe
from farmd.replication.commands import RC, set_replicas
from farmd.rollout import commands, creation, noun
from farmd.runtime.errors import EndedOtherwise
from store import codec, operations
from store.audit import Audit
from store.errors import Conflict, InputInvalid, Locked, NotFound, StoreError
from store.keys import valid_name
from store.nodes import Agent, Node
from store.rollouts import KIND, Ended, Rollout, RolloutState
from store.signatures import covers
from store.work import Work
from tests.people import KEYS, person, place
from tests.rollout_worlds import MOVING


def document(name: str = "web", command: str = "first", **fields: Any) -> dict[str, Any]:
    return {"name": name, "replicas": 4, "pod": {"id": "web", "command": [command]}} | fields


async def created(call: Call, **fields: Any) -> None:
    spec = RC.file.parse(document(**fields), "x")
    await commit(call, await RC.create(call, spec))


async def update(call: Call, retry: bool = False, **fields: Any) -> Any:
    spec = RC.file.parse(document(command="second", **fields), "x")
    return await RC.update(call, spec, now=False, retry=retry)


async def rollout(call: Call) -> Rollout:
    stored, _ = await noun.ROLLOUT.records(call.client, call.keys).named("web")
    assert stored is not None
    return stored.record


def policy(**fields: Any) -> dict[str, Any]:
    return {"rollout": {"strategy": "availability", **fields}}


async def test_all_stages_are_approved_also_before_a_farm_told_of_the_first_one() -> None:
    stages = [{"to": 1, "approve": True}, {"to": "50%", "approve": True}, {"to": "100%", "approve": True}]
    async with person() as call:
        await created(call)
        await commit(call, await update(call, rollout={"stages": stages}))
        await commit(call, await commands.approve(call, "web", everything=True))
        assert (await rollout(call)).approved == len(stages)


@pytest.mark.parametrize(("port", "numbered"), [(0, True), (8080, False)], ids=["any port", "a fixed port"])
async def test_pods_of_both_versions_may_stand_on_one_node_unless_a_port_is_fixed(
    port: int, numbered: bool
) -> None:
    async with person() as call:
        await created(call)
        pod = {"id": "web", "command": ["second"], "ports": {"http": {"port": port}}}
        spec = RC.file.parse(document(pod=pod, **policy(ratio=50)), "x")
        await commit(call, await RC.update(call, spec, now=False))
        found = await rollout(call)
        new = (await RC.records(call.client, KEYS).get(found.new)).record
        own = ["numbered.1"] if numbered else []
        assert (new.numbered, new.needs) == (numbered, [*own, "rollouts.1"])
        assert (found.policy.minimum, found.needs) == (None, [*own, "rollouts.2"])
        edited = RC.file.build(spec, new.id, new.manifest, new)
        assert (edited.numbered, edited.needs) == (new.numbered, new.needs)


async def test_blue_green_needs_a_service() -> None:
    async with person() as call:
        await created(call)
        with pytest.raises(InputInvalid, match=r"rollout\.service: found none, expected one that names"):
            await update(call, **policy(strategy="blue-green"))


async def test_it_writes_the_rollout_and_a_second_controller_and_keeps_people_out() -> None:
    async with person() as call:
        await created(call)
        await commit(call, await update(call))
        found = await rollout(call)
        assert (found.replicas, found.started_from, found.policy.minimum, found.by) == (4, 4, 3, call.actor)
        old = (await RC.records(call.client, KEYS).get(found.old)).record
        new = (await RC.records(call.client, KEYS).get(found.new)).record
        assert (old.name, old.replicas_desired, old.taken) == ("web", 4, False)
        assert (new.name, new.replicas_desired, new.manifest) == (f"web-{found.id[:6]}", 0, found.to_manifest)
        assert old.managed_by == new.managed_by == f"{KIND}/{found.id}"
        assert old.needs == new.needs == ["rollouts.1"]
        assert not (await update(call)).needed
        for refused in (
            partial(RC.delete, call, "web", cascade=True),
            partial(set_replicas, call, "web", 3),
        ):
            with pytest.raises(Conflict, match="rc/web is managed by rollout/web, which alone") as error:
                await refused()
            assert error.value.fields["hint"].startswith("farmctl rollout describe web shows")


async def test_the_pods_of_an_owner_are_those_of_both_versions() -> None:
    async with person() as call:
        await created(call)
        await created(call, name="other")
        await commit(call, await update(call))
        found = await rollout(call)
        for owner, node in ((found.old, "n1"), (found.new, "n2")):
            await place(call, owner, node, "web")
        old = (await RC.records(call.client, KEYS).get(found.old)).record
        rows = (await versions.pods(call, RC, old)).rows
        assert {(row.owner, row.node) for row in rows} == {(found.old, "n1"), (found.new, "n2")}


async def test_words_are_compare_and_set_and_audited() -> None:
    async with person() as call:
        await created(call)
        await commit(call, await update(call))
        late = await commands.pause(call, "web")
        await commit(call, await commands.revert(call, "web"))
        assert (await rollout(call)).wish == "revert"
        with pytest.raises(Conflict, match="changed since it was read"):
            await commit(call, late)
        await commit(call, await commands.resume(call, "web"))
        assert (await rollout(call)).resumed == 1
        page = await call.client.list(KEYS.tree("audit"))
        said = {codec.decode(Audit, raw.decoded(), raw.key).action for raw in page.items if "-" in raw.key}
        assert {"rollout.create", "rollout.revert", "rollout.resume"} <= said


DRY = [
    ({}, ["stage 1 of 2  old/new 4/0 3/1", "stage 2 of 2  old/new 2/2 1/3 0/4"], 0, ""),
    (
        {"node_selector": "ssd=yes", "rollout": {"stages": ["100%"]}},
        ["stage 1 of 1  old/new 4/0 3/1 2/2 1/3 0/4"],
        2,
        "2 of 2 pods found no place",
    ),
]


@pytest.mark.parametrize(("changed", "stages", "elsewhere", "short"), DRY)
async def test_a_dry_run_tells_both_counts_stage_by_stage_and_who_must_leave_its_node(
    changed: dict[str, Any], stages: list[str], elsewhere: int, short: str
) -> None:
    async with person() as call:
        await created(call)
        rc = (await RC.records(call.client, KEYS).find("web")).record
        for node in ("n1", "n2"):
            await call.client.put(KEYS.node(node), codec.encode(Node()))
            await call.client.put(KEYS.agent(node), codec.encode(Agent(node=node, version="1")))
            await place(call, rc.id, node, instance="web")
        mutation = await update(call, **changed)
        assert described(mutation.change) == [
            f"rollout/web: create: pod {rc.manifest[:12]} -> {mutation.change.manifest[:12]}, "
            "replicas 4, minimum 3",
            '  pod.command: ["first"] -> ["second"]',
        ]
        assert mutation.outlook is not None
        course = await mutation.outlook(await read(call.client, call.keys))
        assert course.lines()[: len(stages)] == stages
        assert course.document()["elsewhere"] == elsewhere
        assert course.document()["short"].startswith(short)
        assert bool(course.document()["short"]) == bool(short)


BAD = [
    ({"minimum": 4}, "rollout.minimum: found 4 of 4, expected less: nothing could ever leave"),
    (
        {"stages": [2, 1, "100%"]},
        "rollout.stages[1].to: found 1 after 2, expected a rising number of replicas",
    ),
    ({"stages": [1, 2]}, "rollout.stages[1].to: found 2, expected 100% or 4, which is all"),
    (
        {"stages": [{"to": 1, "bake": 60}, 4], "deadline": 30},
        "rollout.deadline: found 30 s, and 60 s of rests, expected more than all rests together",
    ),
]


@pytest.mark.parametrize(("fields", "line"), BAD, ids=[line.split(":")[0] for _, line in BAD])
async def test_a_policy_that_could_never_end_is_refused(fields: dict[str, Any], line: str) -> None:
    async with person() as call:
        await created(call)
        with pytest.raises(InputInvalid) as error:
            await update(call, rollout=fields)
        assert error.value.message.removeprefix("x: ") == line
        assert (await noun.ROLLOUT.records(call.client, call.keys).list()).items == []


TYPES = [
    ({"rollout": {"minimum": "101%"}}, "rollout.minimum"),
    ({"rollout": {"minimum": -1}}, "rollout.minimum"),
    ({"rollout": {"progress_deadline": 0}}, "rollout.progress_deadline"),
    ({"rollout": {"on_failure": "explode"}}, "rollout.on_failure"),
    ({"rollout": {"steps": []}}, "rollout.steps"),
    ({"rollout": {"stages": [{"bake": "5m"}]}}, "rollout.stages"),
]


@pytest.mark.parametrize(("fields", "field"), TYPES, ids=[field for _, field in TYPES])
def test_a_field_of_a_policy_that_does_not_fit_is_named(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InputInvalid, match=field):
        RC.file.parse(document(**fields), "web.yaml")


def test_times_of_a_policy_are_written_as_people_write_them() -> None:
    said = {"progress_deadline": "10m", "stages": [1, {"to": "50%", "bake": "1h30m"}, "100%"]}
    policy = RC.file.parse(document(rollout=said), "x").rollout
    assert policy is not None
    assert (policy.progress_deadline, policy.stages[1].bake) == (600.0, 5400.0)  # type: ignore[union-attr]


async def refusal(call: Call, **fields: Any) -> StoreError:
    with pytest.raises(StoreError) as error:
        await commit(call, await update(call, **fields))
    return error.value


async def test_a_controller_that_is_disabled_or_locked_is_refused() -> None:
    async with person() as call:
        await created(call)
        await commit(call, await RC.disable(call, "web"))
        assert isinstance(await refusal(call), Conflict)
        await commit(call, await RC.enable(call, "web"))
        (stored,) = (await RC.records(call.client, KEYS).list()).items
        await call.client.put(KEYS.mutation_lock("rcs", stored.record.id), b"user/bob@host/1")
        assert isinstance(await refusal(call), Locked)


async def test_a_version_that_was_reverted_needs_a_persons_word() -> None:
    async with person() as call:
        await created(call)
        wanted = await update(call)
        (stored,) = (await RC.records(call.client, KEYS).list()).items
        over = Ended(
            id="aa",
            name="web",
            outcome="reverted",
            from_manifest=stored.record.manifest,
            to_manifest=wanted.change.manifest,
            old=stored.record,
            replicas=4,
            reason="600 s without progress",
            ended=1.0,
        )
        await call.client.transaction([operations.create(KEYS.history("web", "aa"), codec.encode(over))])
        with pytest.raises(Conflict, match="was reverted: 600 s without progress"):
            await update(call)
        assert (await update(call, retry=True)).needed
        with pytest.raises(NotFound, match="reverted"):
            await commands.pause(call, "web")
        await commit(call, await RC.update(call, RC.file.parse(document(replicas=0), "x"), now=True))
        await commit(call, await RC.delete(call, "web", cascade=False))
        assert await commands.history(call, "web") == []  # another controller of that name begins anew


async def test_after_an_abort_whose_new_controller_is_gone_revert_says_what_to_do() -> None:
    async with person() as call:
        await created(call)
        old = (await RC.records(call.client, KEYS).find("web")).record
        over = Ended(
            id="aa",
            name="web",
            outcome="aborted",
            from_manifest=old.manifest,
            to_manifest="b" * 64,
            old=old,
            new="00bb",
            replicas=4,
            started_from=6,
            ended=1.0,
        )
        await call.client.transaction([operations.create(KEYS.history("web", "aa"), codec.encode(over))])
        with pytest.raises(NotFound, match="was aborted, and its new controller is gone") as error:
            await commands.revert(call, "web")
        assert error.value.fields["hint"].startswith("farmctl rc set-replicas web 6")


async def test_from_one_controller_to_another_both_stay_theirs() -> None:
    async with person() as call:
        await created(call)
        await commit(call, await RC.create(call, RC.file.parse(document("other", "second", replicas=0), "x")))
        await commit(call, await creation.toward(call, "web", "other"))
        found = await rollout(call)
        assert (found.created_new, found.replicas, found.started_to) == (False, 4, 0)
        with pytest.raises(Conflict, match="is managed by"):
            await creation.toward(call, "web", "other")


@pytest.mark.parametrize("name", ["web", "w" * 56, "w" * 57, "w" * 63, "a-" * 31 + "b"])
def test_a_derived_name_is_a_name(name: str) -> None:
    found = creation.derived(name, "0123456789abcdef")
    assert valid_name(found) == found
    assert len(found) <= 63
    assert re.search(r"-[0-9a-f]{6}$", found)
    assert found.startswith(name[:56].rstrip("-"))
    assert covers(f"rcs/{name}", f"rcs/{found}")
    assert found != creation.derived(name, "fedcba9876543210")


async def begun(call: Call) -> Rollout:
    await created(call)
    await commit(call, await update(call))
    found = await rollout(call)
    await call.client.put(KEYS.status(KIND, found.id), codec.encode(MOVING))
    return found


async def test_a_pause_tells_since_when_and_one_more_changes_nothing() -> None:
    async with person() as call:
        await begun(call)
        assert (await rollout(call)).paused_at == 0
        await commit(call, await commands.pause(call, "web"))
        assert (await rollout(call)).paused_at == call.clock.now()
        assert not (await commands.pause(call, "web")).needed
        await commit(call, await commands.resume(call, "web"))
        assert (await rollout(call)).paused_at == 0


async def test_both_controllers_tell_how_far_the_rollout_is_that_manages_them() -> None:
    async with person() as call:
        found = await begun(call)
        rows = await overview.rows(call.client, KEYS, RC.records(call.client, KEYS))
        assert {row.record.name: row.managed for row in rows.rows} == {
            "web": "rollout/web: moving, stage 2 of 3, old 7/7, new 2/3",
            f"web-{found.id[:6]}": "rollout/web: moving, stage 2 of 3, old 7/7, new 2/3",
        }
        row = await overview.row(call.client, KEYS, RC.records(call.client, KEYS), "web")
        assert row.managed == rows.rows[0].managed


async def test_whoever_waits_sees_both_versions() -> None:
    async with person() as call:
        change = (await commands.pause(call, (await begun(call)).name)).change
        found = await commands.look(call, change)
        assert describe(found) == f"{MOVING.progress}: no farm is alive"
        assert found.draw is not None
        assert [line.split()[0] for line in found.draw(0)] == ["web", "old", "new", "floor", "no"]


async def test_a_status_that_a_word_made_outdated_is_no_news_to_whoever_waits() -> None:
    async with person() as call:
        found = await begun(call)
        session = await call.client.create_session(name="farm", ttl=60)
        await call.client.put(KEYS.lock(KIND, found.id), b"farm/one/nonce", acquire=session)
        mutation = await commands.pause(call, found.name)
        await commit(call, mutation)
        assert describe(await commands.look(call, mutation.change)) == MOVING.progress


@pytest.mark.parametrize(
    ("action", "outcome", "good"),
    [
        ("create", "done", True),
        ("create", "reverted", False),
        ("revert", "reverted", True),
        ("revert", "aborted", False),
        ("revert", "done", False),
        ("abort", "aborted", True),
        ("scale", "done", True),
    ],
)
async def test_a_wait_ends_well_if_the_rollout_ends_as_was_asked(
    action: str, outcome: Any, good: bool
) -> None:
    async with person() as call:
        await created(call)
        old = (await RC.records(call.client, KEYS).find("web")).record
        over = Ended(
            id="aa",
            name="web",
            outcome=outcome,
            from_manifest=old.manifest,
            to_manifest="b" * 64,
            old=old,
            replicas=4,
            reason="so it was",
            ended=1.0,
        )
        await call.client.transaction([operations.create(KEYS.history("web", "aa"), codec.encode(over))])
        ends = commands.end(call, Change(KIND, "aa", "web", f"rollout.{action}"), 5.0, lambda _: None)
        with nullcontext() if good else pytest.raises(EndedOtherwise, match=f"was {outcome}: so it was"):
            await ends


async def test_scale_sets_both_numbers_and_a_floor_that_nobody_chose() -> None:
    async with person() as call:
        await begun(call)
        mutation = await commands.scale(call, "web", 20)
        assert (mutation.change.before, mutation.change.after) == (
            {"replicas": 4, "minimum": 3},
            {"replicas": 20, "minimum": 19},
        )
        await commit(call, mutation)
        found = await rollout(call)
        assert (found.replicas, found.started_from, found.policy.minimum) == (20, 20, 19)
        assert not (await commands.scale(call, "web", 20)).needed
        assert (await commands.scale(call, "web", 2)).change.destructive


async def test_a_floor_that_a_person_chose_stays_as_others_scale() -> None:
    async with person() as call:
        await created(call)
        await commit(call, await update(call, rollout={"minimum": 2, "stages": [1, 4]}))
        await commit(call, await commands.scale(call, "web", 8))
        found = await rollout(call)
        assert (found.policy.minimum, found.policy.stages[-1].to) == (2, "100%")  # type: ignore[union-attr]
        with pytest.raises(InputInvalid, match=r"rollout\.minimum: found 2 of 2, expected less"):
            await commands.scale(call, "web", 2)


@pytest.mark.parametrize("state", [RolloutState(phase="moving", back=True), RolloutState(phase="moving")])
async def test_scale_is_refused_on_the_way_back_also_if_it_turns_back_now(state: RolloutState) -> None:
    async with person() as call:
        found = await begun(call)
        late = await commands.scale(call, "web", 8)
        await call.client.put(KEYS.work(KIND, found.id), codec.encode(Work(rollout=state)))
        with pytest.raises(Conflict):
            await commit(call, late)
        if state.back:
            with pytest.raises(Conflict, match="goes back, and is not scaled"):
                await commands.scale(call, "web", 8)
        await commit(call, await commands.revert(call, "web"))
        with pytest.raises(Conflict, match="goes back, and is not scaled"):
            await commands.scale(call, "web", 8)


@pytest.mark.parametrize("count", [0, -1, 100_001])
async def test_scale_takes_a_number_of_replicas(count: int) -> None:
    async with person() as call:
        await begun(call)
        with pytest.raises(InputInvalid, match=f"replicas: found {count}, expected a whole number from 1"):
            await commands.scale(call, "web", count)


async def test_a_difference_tells_the_pod_field_by_field_and_the_whole_policy() -> None:
    async with person() as call:
        await begun(call)
        found = await commands.difference_of(call, "web")
        assert (found.name, found.started_from, found.replicas) == ("web", 4, 4)
        assert found.pod == ['pod.command: ["first"] -> ["second"]']
        assert (found.policy["minimum"], found.policy["progress_deadline"]) == (3, 600.0)
        await call.client.delete(KEYS.manifest(found.before))
        lost = await commands.difference_of(call, "web")
        assert lost.pod == ["pod: the manifest that it has now cannot be read"]
