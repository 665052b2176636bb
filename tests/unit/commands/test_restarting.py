"""R28: what a person's restart writes, of one pod and of all pods of an owner."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest

from farmd.commands import restarting
from farmd.commands.mutation import Call, commit
from farmd.daemonset.commands import DAEMON_SET
from farmd.replication.commands import RC
from store import codec
from store.audit import Audit, AuditReader, Filter
from store.entry import Entry
from store.errors import Conflict, Locked, NotFound
from store.locks import Holder, MutationLocker
from store.nodes import Agent
from store.rcs import ReplicationController
from store.reality import Health, Intent, Reality
from tests.people import KEYS, created, hello, person, place, snapshot

SHA = "0" * 64


async def pod(call: Call, owner: str, node: str, restart: int = 0, **more: Any) -> None:
    """A pod with its intent; ``more`` are fields that a newer version wrote."""
    await place(call, owner, node)
    intent = msgspec.to_builtins(Intent(SHA, owner, restart)) | more
    await call.client.put(KEYS.intent(node, "hello"), msgspec.json.encode(intent))


async def entry(call: Call, key: str) -> Entry:
    found = await call.client.read(key)
    assert found is not None
    return found


async def counter(call: Call, node: str) -> int:
    key = KEYS.intent(node, "hello")
    return codec.decode(Intent, (await entry(call, key)).value, key).restart


async def audits(call: Call) -> tuple[Audit, ...]:
    return await AuditReader(call.client, KEYS).read(Filter(), 1)


async def hold(call: Call, owner: str) -> None:
    session = await call.client.create_session(name="test", ttl=10)
    await MutationLocker(call.client, KEYS, "rcs").take(owner, session, Holder("rollouts", "r1", "n1"))


async def restart(call: Call, node: str = "n1") -> None:
    await commit(call, (await restarting.restart(call, node, "hello")).mutation)


async def restart_all(call: Call) -> None:
    await commit(call, await RC.restart(call, "hello"))


async def owner(call: Call) -> ReplicationController:
    return (await RC.records(call.client, KEYS).find("hello")).record


# -- one pod ---------------------------------------------------------------------------------------
async def test_a_pods_restart_changes_the_counter_alone_with_its_audit_record() -> None:
    async with person(reason="leak") as call:
        rc = await created(call)
        await pod(call, rc, "n1", **{"x-more": {"kept": True}})
        before = await snapshot(call)
        await restart(call)
        after = await snapshot(call)
        changed = {key for key in after if after[key] != before.get(key)}
        intent = msgspec.json.decode(after[KEYS.intent("n1", "hello")])
        assert intent == {"manifest": SHA, "owner": rc, "restart": 1, "x-more": {"kept": True}}
        assert len(changed) == 2, "the intent and the audit record"
        (audit,) = await audits(call)
        assert (audit.action, audit.kind, audit.id, audit.reason) == ("pod.restart", "rcs", rc, "leak")
        assert (audit.before, audit.after) == ({"restart": 0}, {"restart": 1})
        assert audit.relabelled == ["n1/hello"]
        assert (await entry(call, KEYS.intent("n1", "hello"))).modify_index == max(
            raw.modify_index for raw in (await call.client.list("")).items
        )


async def test_a_pod_that_changed_meanwhile_is_not_restarted() -> None:
    async with person() as call:
        await pod(call, await created(call), "n1")
        asked = await restarting.restart(call, "n1", "hello")
        await restart(call)
        with pytest.raises(Conflict, match="changed since it was read"):
            await commit(call, asked.mutation)
        assert await counter(call, "n1") == 1


async def test_a_restart_is_above_what_the_node_acted_on_before_a_restore() -> None:
    async with person() as call:
        rc = await created(call)
        await pod(call, rc, "n1", 2)
        await call.client.put(KEYS.reality("n1", "hello"), codec.encode(Reality(manifest=SHA, restart=5)))
        await restart(call)
        assert await counter(call, "n1") == 6


async def test_r13_a_lock_of_the_owner_holds_a_pods_restart_back_unless_forced() -> None:
    async with person(reason="now") as call:
        rc = await created(call)
        await pod(call, rc, "n1")
        await hold(call, rc)
        with pytest.raises(Locked, match="rc/hello is locked by rollouts/r1"):
            await restart(call)
        await restart(dataclasses.replace(call, force=True))
        assert await counter(call, "n1") == 1
        (audit,) = await audits(call)
        assert audit.before["mutation_lock"] == "rollouts/r1"


@pytest.mark.parametrize(
    ("node", "message"), [("n2", "pod 'n2/hello' does not exist"), ("n3", "its owner 0dead0 does not exist")]
)
async def test_what_cannot_be_restarted_is_named(node: str, message: str) -> None:
    async with person() as call:
        await pod(call, "0dead0", "n3")
        with pytest.raises(NotFound, match=message):
            await restart(call, node)


# -- all pods --------------------------------------------------------------------------------------
async def test_a_restart_of_all_is_above_every_pod_and_no_person_asks_twice_for_one() -> None:
    async with person(reason="new certificate") as call:
        rc = await created(call)
        await pod(call, rc, "n1")
        await pod(call, rc, "n2")
        await restart(call, "n1")
        await restart(call, "n1")
        await restart_all(call)
        assert (await owner(call)).restart == 3
        (audit,) = await audits(call)
        assert (audit.action, audit.reason) == ("rc.restart", "new certificate")
        assert (audit.before, audit.after) == ({"restart": 0}, {"restart": 3})
        await restart_all(call)
        await restart(call, "n2")
        assert await counter(call, "n2") == 4, "the owner's own turn for it is over with that"


async def test_a_restart_keeps_the_record_and_other_commands_keep_the_restart() -> None:
    async with person() as call:
        await created(call)
        before = await owner(call)
        await restart_all(call)
        assert await owner(call) == msgspec.structs.replace(before, restart=1)
        again = await RC.create(call, RC.file.parse(hello(), "test"))
        assert not again.needed, "a file says nothing of restarts"
        spec = RC.file.parse(hello(replicas=4), "test")
        await commit(call, await RC.update(call, spec, now=True))
        assert ((await owner(call)).restart, (await owner(call)).replicas_desired) == (1, 4)


async def test_r14_what_a_rollout_manages_is_not_restarted() -> None:
    async with person() as call:
        rc = await created(call)
        key = KEYS.record("rcs", rc)
        managed = msgspec.structs.replace(await owner(call), managed_by="rollouts/1")
        await call.client.put(key, codec.encode(managed))
        with pytest.raises(Conflict, match="managed by rollouts/1"):
            await restart_all(call)


async def test_a_disabled_owner_says_that_it_restarts_nothing_yet() -> None:
    async with person() as call:
        rc = await created(call)
        await pod(call, rc, "n1")
        await commit(call, await RC.disable(call, "hello"))
        details = (await RC.restart(call, "hello")).change.details
        assert details == (
            "restarts its pods (1), at most max_unavailable at a time",
            "it is disabled: no pod is restarted before the controller is enabled",
        )


async def test_daemon_sets_are_restarted_alike() -> None:
    async with person() as call:
        file = {"name": "logs", "pod": {"id": "logs", "command": ["sleep", "9"]}}
        await commit(call, await DAEMON_SET.create(call, DAEMON_SET.file.parse(file, "test")))
        change = (await DAEMON_SET.restart(call, "logs")).change
        assert (change.action, change.after) == ("daemonset.restart", {"restart": 1})


# -- waiting ---------------------------------------------------------------------------------------
async def test_a_wait_for_an_older_agent_says_that_it_ignores_restarts() -> None:
    async with person() as call:
        rc = await created(call)
        await pod(call, rc, "n1")
        await call.client.put(KEYS.agent("n1"), codec.encode(Agent(node="n1", version="1")))
        asked = await restarting.restart(call, "n1", "hello")
        await commit(call, asked.mutation)
        index = (await entry(call, KEYS.intent("n1", "hello"))).modify_index
        told = Reality(manifest=SHA, owner=rc, started=1.0, intent=index, health=Health("passing"))
        await call.client.put(KEYS.reality("n1", "hello"), codec.encode(told))
        with pytest.raises(Conflict, match="acted on the intent without a restart"):
            await restarting.restarted(call, asked, 60.0, lambda _: None)
        acted = msgspec.structs.replace(told, restart=1)
        await call.client.put(KEYS.reality("n1", "hello"), codec.encode(acted))
        await restarting.restarted(call, asked, 60.0, lambda _: None)
