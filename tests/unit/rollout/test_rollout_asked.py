"""Rollouts from files, flags and p2's JSON: what is begun, and each refusal in one line."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
import yaml

from farmd.commands.mutation import Call, commit
from farmd.replication.commands import RC
from farmd.rollout import noun
from farmd.rollout.asked import Asked, create, from_file, pod_of
from store.errors import Conflict, InputInvalid, NotFound
from store.policies import Policy, Stage
from store.rollouts import Rollout
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
    (stored,) = (await noun.live(call).list()).items
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
        with pytest.raises(Conflict, match="is managed by rollouts/"):  # one update a controller
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


async def test_another_pod_begins_a_rollout_to_a_controller_of_its_own() -> None:
    async with person() as call:
        await two(call)
        pod = pod_of(yaml.safe_dump({"id": "hello", "command": ["sleep", "7"]}), "pod.yaml")
        mutation = await create(call, Asked(rc="old", pod=pod, replicas=3))
        assert 'pod.command: ["sleep","9"] -> ["sleep","7"]' in mutation.change.details
        await commit(call, mutation)
        (stored,) = (await noun.live(call).list()).items
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
