"""Rollouts from files, flags and p2's JSON: what is begun, and each refusal in one line."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
import yaml

from farmd.commands.mutation import Call, commit
from farmd.replication.commands import RC
from farmd.rollout import commands, noun
from farmd.rollout.spec import Asked, create, from_file, pod_of
from store import codec, operations
from store.audit import Audit, AuditLogStore
from store.errors import Conflict, InputInvalid, Locked, NotFound
from store.policies import Policy, Stage
from store.rollouts import KIND, Ended, Rollout
from tests.people import KEYS, hello, person

P2 = """{"ID": "1", "OldRC": "abc", "NewRC": "def", "DesiredReplicas": 5, "MinimumReplicas": 3,
         "LeaveOld": true, "RollDelay": 60000000000}"""


async def two(call: Call, **fields: Any) -> None:
    """A controller ``old`` of four pods, and ``new``, which has another pod and none yet."""
    for name, count, seconds in (("old", 4, "9"), ("new", 0, "8")):
        spec = hello(name=name, replicas=count, pod_command=["sleep", seconds], **fields)
        await commit(call, await RC.create(call, RC.file.parse(spec, "x")))


async def begun(call: Call, asked: Asked) -> Rollout:
    await commit(call, await create(call, asked))
    (stored,) = (await noun.ROLLOUT.records(call.client, call.keys).list()).items
    return stored.record


def file(**fields: Any) -> Asked:
    return from_file(yaml.safe_dump({"name": "old", "to": "new", **fields}), "go.yaml")


def test_every_field_of_a_p2_update_is_read() -> None:
    found = from_file(P2, "ru.json")
    assert (found.rc, found.to, found.replicas) == ("abc", "def", 5)
    assert msgspec.to_builtins(found.policy) == {"minimum": 3, "stages": ["100%"], "leave_old": True}


async def test_p2s_update_from_two_controllers_that_exist_begins_with_both_ids() -> None:
    async with person() as call:
        await two(call)
        ids = {
            each.record.name: each.record.id for each in (await RC.records(call.client, KEYS).list()).items
        }
        text = P2.replace("abc", ids["old"]).replace("def", ids["new"])
        found = await begun(call, from_file(text, "ru.json"))
        assert (found.old, found.new, found.created_new) == (ids["old"], ids["new"], False)
        assert (found.replicas, found.policy.minimum, found.policy.leave_old) == (5, 3, True)
        with pytest.raises(Conflict, match="is managed by rollout/old"):  # one update a controller
            await create(call, from_file(text, "ru.json"))


async def test_p2s_update_of_controllers_that_do_not_exist_is_refused() -> None:
    async with person() as call:
        with pytest.raises(NotFound, match="abc"):
            await create(call, from_file(P2, "ru.json"))


BAD_P2 = [
    ("{", "ru.json: "),
    ('{"NewRC": "def", "DesiredReplicas": 5}', "ru.json: OldRC: missing, expected a controller's id"),
    ('{"OldRC": "abc", "DesiredReplicas": 5}', "ru.json: NewRC: missing, expected a controller's id"),
    ('{"OldRC": "a", "NewRC": "b"}', "ru.json: DesiredReplicas: found 0, expected a whole number from 1"),
    ('{"OldRC": 7}', "ru.json: OldRC: found 7, expected text"),
    ('{"OldRC": "a", "Minimum": 7}', "ru.json: Minimum: unknown key, did you mean 'MinimumReplicas'?"),
    (
        '{"OldRC": "a", "MinimumReplicas": -1}',
        "ru.json: MinimumReplicas: found -1, expected a whole number of",
    ),
    (
        '{"OldRC": "a", "NewRC": "b", "DesiredReplicas": 3, "MinimumReplicas": 3}',
        "ru.json: MinimumReplicas: found 3 of 3, expected less: nothing could ever leave",
    ),
]


@pytest.mark.parametrize(("text", "line"), BAD_P2)
def test_a_bad_p2_update_is_refused_in_one_line(text: str, line: str) -> None:
    with pytest.raises(InputInvalid) as error:
        from_file(text, "ru.json")
    assert error.value.message.startswith(line)
    assert "\n" not in error.value.message


async def test_a_file_has_every_field_of_the_policy() -> None:
    said = {
        "minimum": "50%",
        "stages": [1, {"to": "50%", "bake": "5m", "approve": True}, "100%"],
        "min_healthy_time": "3s",
        "progress_deadline": "2m",
        "deadline": "1h",
        "tolerate": 1,
        "on_failure": "pause",
        "leave_old": True,
    }
    async with person() as call:
        await two(call)
        found = await begun(call, file(replicas=6, rollout=said))
        half = Stage(to="50%", bake=300.0, approve=True)
        assert found.policy == Policy(
            minimum="50%",
            stages=[1, half, "100%"],
            min_healthy_time=3.0,
            progress_deadline=120.0,
            health_deadline=120.0,
            deadline=3600.0,
            tolerate=1,
            on_failure="pause",
            leave_old=True,
        )
        assert found.replicas == 6


async def test_flags_win_over_the_file_and_the_file_over_the_controllers_own_policy() -> None:
    async with person() as call:
        await two(call, rollout={"minimum": 1, "tolerate": 1})
        asked = replace(file(), changes={"minimum": 2}, replicas=5)
        found = await begun(call, asked)
        assert (found.policy.minimum, found.policy.tolerate, found.replicas) == (2, 1, 5)


async def test_bake_and_approve_hold_for_the_stages_that_there_are() -> None:
    async with person() as call:
        await two(call)
        found = await begun(call, replace(file(), bake=300.0, approve=True))
        assert found.policy.stages == [Stage(to=1, bake=300.0), Stage(to="100%", approve=True)]


@pytest.mark.parametrize(
    ("said", "found"), [({"bake": 300.0}, "a rest of 300 s"), ({"approve": True}, "approvals")]
)
async def test_stages_of_a_ratio_neither_rest_nor_ask_and_flags_that_want_that_are_refused(
    said: dict[str, Any], found: str
) -> None:
    async with person() as call:
        await two(call, rollout={"ratio": 25})
        with pytest.raises(InputInvalid) as error:
            await create(call, replace(file(), **said))
        assert (
            error.value.message
            == f"rollout.ratio: found 25 with {found}, expected stages, which can have that"
        )
        assert error.value.fields["hint"] == "--stages 1,50%,100% beside it; a ratio only sets a pace"


async def test_stages_that_a_flag_names_take_the_place_of_the_controllers_ratio() -> None:
    async with person() as call:
        await two(call, rollout={"ratio": 25})
        found = await begun(call, replace(file(), changes={"stages": [1, "100%"]}, bake=300.0))
        stages: list[Stage | int | str] = [Stage(to=1, bake=300.0), Stage(to="100%")]
        assert found.policy == Policy(minimum=3, stages=stages, health_deadline=300.0)


async def test_another_pod_begins_a_rollout_to_a_controller_of_its_own() -> None:
    async with person() as call:
        await two(call)
        pod = pod_of(yaml.safe_dump({"id": "hello", "command": ["sleep", "7"]}), "pod.yaml")
        mutation = await create(call, Asked(rc="old", pod=pod, replicas=3))
        assert 'pod.command: ["sleep","9"] -> ["sleep","7"]' in mutation.change.details
        await commit(call, mutation)
        (stored,) = (await noun.ROLLOUT.records(call.client, call.keys).list()).items
        assert (stored.record.created_new, stored.record.replicas) == (True, 3)


def test_the_pod_of_a_controllers_file_will_do_as_a_manifest() -> None:
    assert pod_of(yaml.safe_dump(hello()), "web.yaml") == pod_of(yaml.safe_dump(hello()["pod"]), "pod.yaml")


REFUSED = [
    (Asked(rc=""), "rc: missing, expected the controller whose pods are to change"),
    (Asked(rc="old"), "to: found neither a controller nor a manifest, expected one of them"),
    (Asked(rc="old", to="old"), "rollout.to: found the version that it has already, expected another one"),
    (Asked(rc="old", to="new", replicas=0), "replicas: found 0, expected a whole number from 1 to 100000"),
    (
        Asked(rc="old", to="new", changes={"minimum": "120%"}),
        "policy: minimum: found '120%', expected a whole",
    ),
    (Asked(rc="old", to="new", changes={"minimum": 4}), "rollout.minimum: found 4 of 4, expected less"),
    (
        Asked(rc="old", to="new", changes={"stages": ["5x"]}),
        "policy: stages[0]: found '5x', expected a mapping",
    ),
]


@pytest.mark.parametrize(("asked", "line"), REFUSED, ids=[line.split(":")[0] for _, line in REFUSED])
async def test_what_cannot_be_begun_is_refused_in_one_line(asked: Asked, line: str) -> None:
    async with person() as call:
        await two(call)
        with pytest.raises(InputInvalid) as error:
            await create(call, asked)
        assert error.value.message.startswith(line)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "go.yaml: found no document, expected at least one"),
        ("a: 1\n---\nb: 1\n", "go.yaml: found 2 documents, expected one"),
        ("[]", "go.yaml: document: found an empty list, expected a mapping"),
        ("to: new", "go.yaml: name: missing, expected text"),
        ("name: old\nrollout: {stages: 3}", "go.yaml: rollout.stages: found 3, expected a list"),
        ("name: old\npolicy: {}", "go.yaml: policy: unknown key"),
        ("name: old\npod: {id: web}", "go.yaml: pod"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(text: str, line: str) -> None:
    with pytest.raises(InputInvalid) as error:
        from_file(text, "go.yaml")
    assert error.value.message.startswith(line)


LIMITS = [
    ({"progress_deadline": "40d"}, "rollout.progress_deadline: found 3456000, expected 0 to 2678400 seconds"),
    ({"deadline": float("inf")}, "rollout.deadline: found .inf, expected 0 to 2678400 seconds"),
    ({"min_healthy_time": "32d"}, "rollout.min_healthy_time: found 2764800, expected 0 to 2678400 seconds"),
    ({"keep_old": "32d"}, "rollout.keep_old: found 2764800, expected 0 to 2678400 seconds"),
    ({"stages": [{"to": 1, "bake": "32d"}]}, "rollout.stages[0].bake: found 2764800, expected 0 to 2678400"),
    ({"stages": [1] * 21}, "rollout.stages: found 21, expected at most 20"),
    ({"stages": [5, 1, "100%"]}, "rollout.stages[1].to: found 1 after 5, expected a rising number"),
    (
        {"stages": ["50%", "10%", "100%"]},
        "rollout.stages[1].to: found 10% after 50%, expected a rising number",
    ),
    ({"stages": [1, "90%"]}, "rollout.stages[1].to: found 90%, expected 100%, which is all"),
    ({"stages": [1, "100%"], "ratio": 10}, "rollout.ratio: found 10 beside stages, expected one of both"),
    ({"ratio": 0}, "rollout.ratio: found 0, expected a whole number from 1 to 100"),
    ({"ratio": 101}, "rollout.ratio: found 101, expected a whole number from 1 to 100"),
    (
        {"deadline": "1m", "stages": [{"to": 1, "bake": "2m"}, "100%"]},
        "rollout.deadline: found 60 s, and 120 s of rests, expected more than all rests together",
    ),
    ({"strategy": "canary"}, "rollout.strategy: found 'canary', expected one of"),
]


@pytest.mark.parametrize(("policy", "line"), LIMITS, ids=[line.split(", ")[0] for _, line in LIMITS])
def test_limits_of_a_policy_hold_in_the_file_of_a_controller_too(policy: dict[str, Any], line: str) -> None:
    with pytest.raises(InputInvalid) as error:
        RC.file.parse(hello(rollout=policy), "web.yaml")
    assert error.value.message.startswith(f"web.yaml: {line}")


# -- controllers that cannot have a rollout now ---------------------------------------------------
async def test_a_pod_of_another_id_is_refused() -> None:
    async with person() as call:
        await two(call)
        other = hello(name="other", replicas=0, pod_id="other")
        await commit(call, await RC.create(call, RC.file.parse(other, "x")))
        with pytest.raises(InputInvalid, match="rollout: found the pod id 'other', expected 'hello'"):
            await create(call, Asked(rc="old", to="other"))
        pod = pod_of(yaml.safe_dump({"id": "other", "command": ["sleep"]}), "pod.yaml")
        with pytest.raises(InputInvalid, match=r"pod\.id: found 'other', expected 'hello'"):
            await create(call, Asked(rc="old", pod=pod))


@pytest.mark.parametrize("which", ["old", "new"])
async def test_a_controller_that_is_deleted_disabled_or_locked_is_refused(which: str) -> None:
    async with person() as call:
        await two(call)
        rc = (await RC.records(call.client, KEYS).find(which)).record
        await call.client.put(KEYS.mutation_lock("rcs", rc.id), b"user/bob@host/1")
        with pytest.raises(Locked, match="is locked by user/bob@host"):
            await create(call, Asked(rc="old", to="new"))
        await call.client.delete(KEYS.mutation_lock("rcs", rc.id))
        await commit(call, await RC.disable(call, which))
        with pytest.raises(Conflict, match=f"controller '{which}' is disabled"):
            await create(call, Asked(rc="old", to="new"))
        await call.client.put(KEYS.pod(rc.id, "n1", "hello"), b"{}")
        await commit(call, await RC.delete(call, which, cascade=True))
        with pytest.raises(Conflict, match=f"rc '{which}' is being deleted"):
            await create(call, Asked(rc="old", to="new"))


async def test_of_two_creations_at_once_one_is_refused_and_leaves_nothing() -> None:
    async with person() as call:
        await two(call)
        one = await create(call, Asked(rc="old", to="new"))
        pod = pod_of(yaml.safe_dump({"id": "hello", "command": ["sleep", "7"]}), "pod.yaml")
        late = await create(call, Asked(rc="old", pod=pod))
        await commit(call, one)
        with pytest.raises(Conflict):
            await commit(call, late)
        assert [
            each.record.id for each in (await noun.ROLLOUT.records(call.client, call.keys).list()).items
        ] == [one.change.id]
        assert len((await RC.records(call.client, KEYS).list()).items) == 2


async def test_words_in_the_wrong_phase_say_so() -> None:
    async with person() as call:
        await two(call)
        for word in (commands.pause, commands.resume, commands.abort, commands.approve):
            with pytest.raises(NotFound, match="rollout 'old' does not exist"):
                await word(call, "old")
        with pytest.raises(NotFound, match="history has no version to revert to"):
            await commands.revert(call, "old")
        assert await commands.past(call, "old") == ([], [])
        await call.client.put(KEYS.history("old", "aa"), b"{")
        found, broken = await commands.past(call, "old")
        assert (found, [line.split(":")[0] for line in broken]) == ([], ["farmd/history/old/aa"])
        with pytest.raises(NotFound, match="rc 'nobody' does not exist"):
            await commands.past(call, "nobody")
        found = await begun(call, Asked(rc="old", to="new"))
        with pytest.raises(Conflict, match="is not waiting for approval"):
            await commands.approve(call, "old")
        old = (await RC.records(call.client, KEYS).get(found.old)).record
        over = Ended(
            id="aa",
            name="past",
            outcome="done",
            from_manifest="a" * 64,
            to_manifest="b" * 64,
            old=old,
            replicas=4,
            ended=call.clock.now() - 12,
        )
        await call.client.transaction([operations.create(KEYS.history("past", "aa"), codec.encode(over))])
        with pytest.raises(NotFound, match="rollout 'past' ended 12s ago: done") as error:
            await commands.pause(call, "past")
        assert error.value.fields["hint"] == "farmctl rollout history past"


async def test_a_rollout_that_is_over_is_told_by_its_id_too_and_after_its_controller_is_gone() -> None:
    """History goes with the controller; the audit log knows the end for longer."""
    async with person() as call:
        end = Audit(
            at=call.clock.now() - 75,
            actor="farm/f1",
            action="rollout.reverted",
            kind=KIND,
            id="0123456789abcdef",
            name="web",
            reason="8 s without progress",
        )
        other = msgspec.structs.replace(end, kind="rcs", action="rc.delete")
        log = AuditLogStore(KEYS, call.clock, call.ids)
        await call.client.transaction([log.operation(end), log.operation(other)])
        for target in ("web", "0123456789abcdef"):
            for asked in (noun.ROLLOUT.row, noun.ROLLOUT.find):
                with pytest.raises(NotFound) as error:
                    await asked(call, target)
                told = f"rollout '{target}' ended 1m15s ago: reverted: 8 s without progress"
                assert (error.value.message, error.value.fields["hint"]) == (
                    told,
                    "farmctl audit list --kind rollout --item web",
                )
