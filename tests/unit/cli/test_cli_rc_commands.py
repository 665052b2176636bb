"""What people ask of controllers: CAS, locks, no-op, conflict, audit, deletion (R13, R14, R24, W11-W13)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest

from farmd.commands import waiting
from farmd.commands.mutation import Call, commit
from farmd.replication.commands import RC, set_replicas
from farmd.runtime.errors import WaitTimeout
from store import codec, manifests
from store.audit import AuditReader, Filter
from store.errors import Conflict, InputInvalid, Locked, NotFound, NotRegistered
from store.farms import Member
from store.locks import Holder, MutationLocker
from store.rcs import ReplicationController, ReplicationControllerStore
from store.reality import Reality
from tests.people import KEYS, created, hello, person, place, snapshot


def with_reason(call: Call, reason: str, *, force: bool = False) -> Call:
    return Call(call.client, call.keys, call.clock, call.ids, call.actor, reason, force)


async def rc(call: Call, name: str = "hello") -> ReplicationController:
    return (await ReplicationControllerStore(call.client, KEYS).find(name)).record


async def audits(call: Call, action: str = "") -> list[Any]:
    return list(await AuditReader(call.client, KEYS).read(Filter(action=action), 100))


async def hold(call: Call, kind: str, item: str, nonce: str = "n1") -> None:
    session = await call.client.create_session(name="test", ttl=10)
    await MutationLocker(call.client, KEYS, kind).take(item, session, Holder("rollouts", "r1", nonce))


async def test_w12_create_writes_body_record_name_and_audit_in_one_transaction() -> None:
    async with person(reason="first") as call:
        before = await snapshot(call)
        rc_id = await created(call)
        new = {key: value for key, value in (await snapshot(call)).items() if key not in before}
        record = await rc(call)
        assert set(new) == {
            KEYS.record("rcs", rc_id),
            KEYS.name("rcs", "hello"),
            KEYS.manifest(record.manifest),
            *(key for key in new if key.startswith(KEYS.tree("audit"))),
        }
        assert len(new) == 4
        (entry,) = await audits(call)
        assert (entry.actor, entry.action, entry.reason, entry.id) == (
            "user/ada@desk",
            "rc.create",
            "first",
            rc_id,
        )
        indexes = {raw.modify_index for raw in (await call.client.list("")).items if raw.key in new}
        assert len(indexes) == 1


async def test_an_equal_create_changes_nothing() -> None:
    async with person() as call:
        rc_id = await created(call, node_selector="b=1,a=2")
        before = await snapshot(call)
        again = await RC.create(call, RC.file.parse(hello(node_selector="a=2, b=1"), "x"))
        await commit(call, again)
        assert not again.needed
        assert again.change.id == rc_id
        assert await snapshot(call) == before


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"replicas": 4}, "replicas (3 -> 4)"),
        ({"node_selector": "a=1"}, 'node_selector ("" -> a=1)'),
        ({"labels": {"t": "x"}}, "labels"),
        ({"disabled": True}, "disabled"),
        ({"pod_command": ["sleep", "8"]}, "pod.command"),
        ({"pod_env": {"SECRET": "s3cret"}}, "pod.env"),
    ],
)
async def test_a_different_create_is_a_conflict_that_names_the_fields(
    fields: dict[str, Any], named: str
) -> None:
    async with person() as call:
        await created(call)
        before = await snapshot(call)
        with pytest.raises(Conflict) as caught:
            await RC.create(call, RC.file.parse(hello(**fields), "x"))
        assert named in caught.value.message
        assert "s3cret" not in caught.value.message
        assert await snapshot(call) == before


async def test_two_equal_creations_at_once_are_one_and_two_different_ones_conflict() -> None:
    async with person() as call:
        spec, other = RC.file.parse(hello(), "x"), RC.file.parse(hello(replicas=9), "x")
        mine, theirs, third = [await RC.create(call, s) for s in (spec, spec, other)]
        await commit(call, theirs)
        won = await RC.commit_create(call, mine, spec)
        assert won.change.id == theirs.change.id
        with pytest.raises(Conflict):
            await RC.commit_create(call, third, other)
        assert len(await audits(call)) == 1


async def test_create_without_a_cluster_says_so() -> None:
    async with person(registered=False) as call:
        with pytest.raises(NotRegistered):
            await created(call)
        assert await snapshot(call) == {}


async def test_set_replicas_tells_before_and_after_and_asks_only_when_it_removes() -> None:
    async with person() as call:
        await created(call)
        more = await set_replicas(call, "hello", 5)
        assert (more.change.before, more.change.after) == ({"replicas": 3}, {"replicas": 5})
        assert not more.change.destructive
        await commit(call, more)
        assert (await rc(call)).replicas_desired == 5
        assert (await set_replicas(call, "hello", 4)).change.destructive
        assert not (await set_replicas(call, "hello", 5)).needed
        (entry,) = await audits(call, "rc.set-replicas")
        assert (entry.before, entry.after) == ({"replicas": 3}, {"replicas": 5})


@pytest.mark.parametrize("count", [-1, -(10**9), 100_001])
async def test_an_absurd_count_is_refused(count: int) -> None:
    async with person() as call:
        await created(call)
        with pytest.raises(InputInvalid, match="replicas"):
            await set_replicas(call, "hello", count)


async def test_unknown_fields_survive_every_edit() -> None:
    async with person() as call:
        rc_id = await created(call)
        entry = await call.client.read(KEYS.record("rcs", rc_id))
        assert entry is not None
        await call.client.put(entry.key, codec.encode(json.loads(entry.value) | {"from_the_future": [1]}))
        await commit(call, await set_replicas(call, "hello", 5))
        await commit(call, await RC.disable(call, "hello"))
        await commit(call, await RC.update(call, RC.file.parse(hello(pod_args=["x"]), "x"), now=True))
        after = await call.client.read(KEYS.record("rcs", rc_id))
        assert after is not None
        assert json.loads(after.value)["from_the_future"] == [1]


async def test_an_edit_of_what_somebody_changed_meanwhile_writes_nothing() -> None:
    async with person() as call:
        await created(call)
        mine = await set_replicas(call, "hello", 5)
        await commit(call, await RC.disable(call, "hello"))
        before = await snapshot(call)
        with pytest.raises(Conflict, match="changed since"):
            await commit(call, mine)
        assert await snapshot(call) == before


async def test_r13_w13_an_edit_under_a_mutation_lock_is_refused_with_its_holder() -> None:
    async with person() as call:
        rc_id = await created(call)
        prepared = await RC.disable(call, "hello")
        await hold(call, "rcs", rc_id, "n1@1800000000")
        before = await snapshot(call)
        for ask in (
            set_replicas(call, "hello", 5),
            RC.disable(call, "hello"),
            RC.enable(call, "hello"),
            RC.update(call, RC.file.parse(hello(pod_args=["x"]), "x"), now=True),
            RC.delete(call, "hello", cascade=False),
            RC.delete(call, "hello", cascade=True),
            commit(call, prepared),
        ):
            with pytest.raises(Locked, match="rollouts/r1 since 2027-01-15T08:00:00Z"):
                await ask
        assert await snapshot(call) == before


async def test_r13_force_breaks_the_lock_with_a_reason_in_the_audit() -> None:
    async with person() as call:
        rc_id = await created(call)
        await hold(call, "rcs", rc_id)
        with pytest.raises(InputInvalid, match="reason"):
            await set_replicas(with_reason(call, "", force=True), "hello", 5)
        forced = with_reason(call, "it hangs", force=True)
        await commit(forced, await set_replicas(forced, "hello", 5))
        assert await call.client.read(KEYS.mutation_lock("rcs", rc_id)) is None
        (entry,) = await audits(call, "rc.set-replicas")
        assert entry.reason == "it hangs"
        assert entry.before["mutation_lock"] == "rollouts/r1"


async def test_r14_a_managed_controller_refuses_edits_of_count_and_manifest() -> None:
    async with person() as call:
        await created(call)
        store = ReplicationControllerStore(call.client, KEYS)
        stored = await store.find("hello")
        managed = msgspec.structs.replace(stored.record, managed_by="rollouts/r1")
        await call.client.transaction([store.replace(stored, managed)])
        for ask in (
            set_replicas(call, "hello", 5),
            RC.update(call, RC.file.parse(hello(pod_args=["x"]), "x"), now=True),
            RC.update(call, RC.file.parse(hello(replicas=9), "x"), now=True),
            RC.delete(call, "hello", cascade=True),
        ):
            with pytest.raises(Conflict, match="rollouts/r1"):
                await ask
        await commit(call, await RC.update(call, RC.file.parse(hello(labels={"a": "b"}), "x"), now=True))
        await commit(call, await RC.disable(call, "hello"))
        assert (await rc(call)).managed_by == "rollouts/r1"


async def test_update_with_another_pod_begins_a_rollout_or_replaces_now() -> None:
    async with person() as call:
        await created(call)
        spec = RC.file.parse(hello(pod_args=["x"]), "x")
        begun = await RC.update(call, spec, now=False)
        assert (begun.change.kind, begun.change.name) == ("rollouts", "hello")
        mutation = await RC.update(call, spec, now=True)
        assert mutation.change.destructive
        assert any(line.startswith("pod.args: ") for line in mutation.change.details)
        await commit(call, mutation)
        assert await manifests.read(call.client, KEYS, (await rc(call)).manifest) == spec.pod
        assert (await audits(call, "rc.update"))[0].manifest == (await rc(call)).manifest
        assert not (await RC.update(call, spec, now=True)).needed


@pytest.mark.parametrize("body", [None, b"no manifest"])
async def test_an_equal_update_writes_a_manifest_again_that_is_missing_or_corrupt(body: bytes | None) -> None:
    async with person() as call:
        await created(call)
        key, spec = KEYS.manifest((await rc(call)).manifest), RC.file.parse(hello(), "x")
        await (call.client.delete(key) if body is None else call.client.put(key, body))
        mutation = await RC.update(call, spec, now=True)
        assert mutation.change.details == ("writes its manifest again, which is missing or corrupt",)
        await commit(call, mutation)
        assert await manifests.read(call.client, KEYS, (await rc(call)).manifest) == spec.pod
        assert not (await RC.update(call, spec, now=True)).needed


async def test_update_of_what_is_not_there_and_of_another_pod_id_is_refused() -> None:
    async with person() as call:
        with pytest.raises(NotFound):
            await RC.update(call, RC.file.parse(hello(), "x"), now=True)
        await created(call)
        with pytest.raises(InputInvalid, match=r"pod\.id"):
            await RC.update(call, RC.file.parse(hello(pod_id="other"), "x"), now=True)


async def test_w11_delete_is_refused_while_pods_are_wanted_or_remain() -> None:
    async with person() as call:
        rc_id = await created(call)
        with pytest.raises(Conflict, match="wants 3 replicas and has 0 pods"):
            await RC.delete(call, "hello", cascade=False)
        await place(call, rc_id, "web1")
        await commit(call, await set_replicas(call, "hello", 0))
        with pytest.raises(Conflict, match="wants 0 replicas and has 1 pod,"):
            await RC.delete(call, "hello", cascade=False)


async def test_delete_of_an_empty_controller_leaves_only_its_audit_and_manifest() -> None:
    async with person() as call:
        before = await snapshot(call)
        await created(call, replicas=0)
        await commit(call, await RC.delete(call, "hello", cascade=False))
        new = set(await snapshot(call)) - set(before)
        assert {key.split("/")[1] for key in new} == {"audit", "manifests"}
        assert (await audits(call))[0].action == "rc.delete"


async def test_w11_a_record_that_changed_after_the_pods_were_counted_is_not_deleted() -> None:
    async with person() as call:
        await created(call, replicas=0)
        mutation = await RC.delete(call, "hello", cascade=False)
        await commit(call, await set_replicas(call, "hello", 1))
        with pytest.raises(Conflict):
            await commit(call, mutation)
        assert (await rc(call)).replicas_desired == 1


async def test_r20_an_empty_answer_without_its_sentinel_proves_no_absence() -> None:
    async with person() as call:
        await created(call, replicas=0)
        await call.client.delete(KEYS.sentinel(KEYS.tree("pods")))
        with pytest.raises(NotRegistered):
            await RC.delete(call, "hello", cascade=False)


async def test_what_is_on_its_way_out_needs_no_second_word_and_is_not_gone_before_its_pods() -> None:
    async with person() as call:
        rc_id = await created(call)
        await place(call, rc_id, "n1")
        await commit(call, await RC.delete(call, "hello", cascade=True))
        again = await RC.delete(call, "hello", cascade=False)
        assert (again.change.action, again.needed) == ("rc.mark-deleted", False)
        assert (await rc(call)).deleting


async def test_cascade_marks_enables_and_waits_until_a_worker_took_the_record_away() -> None:
    async with person() as call:
        rc_id = await created(call, disabled=True)
        await place(call, rc_id, "web1")
        mutation = await RC.delete(call, "hello", cascade=True)
        assert mutation.change.destructive
        await commit(call, mutation)
        marked = await rc(call)
        assert (marked.replicas_desired, marked.disabled, marked.deleting) == (0, False, True)
        with pytest.raises(Conflict, match="being deleted"):
            await set_replicas(call, "hello", 1)
        with pytest.raises(Conflict, match="being deleted"):
            await RC.create(call, RC.file.parse(hello(), "x"))

        looks: list[int] = []

        waits = asyncio.create_task(
            waiting.deletion(call, RC, rc_id, 1e6, lambda look: looks.append(look.placed))
        )
        while not looks:
            await asyncio.sleep(0)
        await call.client.delete(KEYS.pod(rc_id, "web1", "hello"))
        while looks != [1, 0]:
            await asyncio.sleep(0)
        assert (await rc(call)).deleting, "the record is its worker's to take away"
        await commit(call, await RC.delete(call, "hello", cascade=False))
        await waits
        with pytest.raises(NotFound):
            await rc(call)
        assert [entry.action for entry in await audits(call)] == ["rc.delete", "rc.mark-deleted", "rc.create"]


async def test_r21_what_nodes_still_run_keeps_a_controller_from_being_deleted_on_the_spot() -> None:
    async with person() as call:
        rc_id = await created(call, replicas=0)
        key = KEYS.reality("web1", "hello")
        await call.client.put(key, codec.encode(Reality(manifest="0" * 64, owner=rc_id, phase="stopping")))
        mutation = await RC.delete(call, "hello", cascade=False)
        assert mutation.change.action == "rc.mark-deleted"
        await commit(call, mutation)
        assert (await rc(call)).deleting
        await call.client.delete(key)
        assert (await RC.delete(call, "hello", cascade=False)).change.action == "rc.delete"


async def test_cascade_without_a_farm_times_out_and_says_so_and_can_be_repeated() -> None:
    async with person() as call:
        rc_id = await created(call)
        await place(call, rc_id, "web1")
        await commit(call, await RC.delete(call, "hello", cascade=True))
        with pytest.raises(WaitTimeout) as caught:
            await waiting.deletion(call, RC, rc_id, 5, lambda _: None)
        assert "no farm is running" in caught.value.hint
        assert not (await RC.delete(call, "hello", cascade=True)).needed
        await call.client.put(KEYS.farm("f1"), codec.encode(Member(id="f1", version="1", kinds=["rcs"])))
        with pytest.raises(WaitTimeout) as caught:
            await waiting.deletion(call, RC, rc_id, 5, lambda _: None)
        assert "no farm has claimed it" in caught.value.hint


async def test_a_deletion_that_somebody_undid_by_hand_is_not_finished() -> None:
    async with person() as call:
        rc_id = await created(call)
        await place(call, rc_id, "web1")
        await commit(call, await RC.delete(call, "hello", cascade=True))
        store = ReplicationControllerStore(call.client, KEYS)
        stored = await store.find("hello")
        await call.client.transaction(
            [store.replace(stored, msgspec.structs.replace(stored.record, replicas_desired=2))]
        )
        with pytest.raises(Conflict, match="changed while"):
            await waiting.deletion(call, RC, rc_id, 5, lambda _: None)
