"""Removing what the doctor found: only what was named, audited, and only while the owner is still gone."""

from __future__ import annotations

import msgspec
import pytest

from farmd.commands.mutation import Call, commit
from farmd.doctor import fixes
from farmd.doctor.examine import examine
from farmd.replication.commands import RC
from store import codec
from store.audit import Audit, AuditReader, Filter
from store.checkpoint import replayed
from store.errors import Conflict, InputInvalid, NotFound
from store.nodes import Agent, Reserved
from store.pods import Pod, PodKey
from store.reality import Intent, Reality
from store.services import Service, ServiceStore
from store.work import Transfer, Work
from tests.people import KEYS, created, person, snapshot

GONE, OTHER = "dead0000dead0000", "beef0000beef0000"
SHA = "0" * 64


async def place(call: Call, owner: str, node: str, instance: str = "old") -> None:
    await call.client.put(KEYS.pod(owner, node, instance), codec.encode(Pod(SHA)))
    await call.client.put(KEYS.intent(node, instance), codec.encode(Intent(SHA, owner)))


async def fix(call: Call, *targets: str) -> int:
    """Fix as farmctl does; returns the number of transactions."""
    report = await examine(call.client, KEYS, call.clock)
    mutations = await fixes.mutations(call, fixes.choose(report.findings, targets))
    for mutation in mutations:
        await commit(call, mutation)
    return len(mutations)


async def audits(call: Call) -> tuple[Audit, ...]:
    return await AuditReader(call.client, KEYS).read(Filter(action=fixes.ACTION), 100)


async def test_orphans_go_with_their_intents_and_an_audit_that_replay_understands() -> None:
    async with person(reason="node was rebuilt") as call:
        rc_id = await created(call, replicas=1)
        await place(call, GONE, "n1")
        await place(call, GONE, "n2")
        await place(call, rc_id, "n3", "hello")
        await fix(call, "orphan-pod")
        kept = await snapshot(call)
        assert not [key for key in kept if GONE in key]
        assert KEYS.intent("n1", "old") not in kept
        assert KEYS.pod(rc_id, "n3", "hello") in kept
        assert KEYS.intent("n3", "hello") in kept
        (record,) = await audits(call)
        assert (record.id, record.actor, record.reason) == (GONE, call.actor, "node was rebuilt")
        assert sorted(record.removed) == ["n1/old", "n2/old"]
        assert PodKey(GONE, "n1", "old") not in (await replayed(call.client, KEYS)).pods


async def test_only_what_was_named_goes() -> None:
    async with person() as call:
        await place(call, GONE, "n1")
        await place(call, OTHER, "n2")
        await fix(call, OTHER)
        kept = await snapshot(call)
        assert KEYS.pod(GONE, "n1", "old") in kept
        assert KEYS.pod(OTHER, "n2", "old") not in kept


async def test_an_intent_of_somebody_else_stays_when_an_orphan_goes() -> None:
    async with person() as call:
        rc_id = await created(call, replicas=1)
        await place(call, GONE, "n1", "hello")
        await place(call, rc_id, "n1", "hello")
        await fix(call, "orphan-pod")
        kept = await snapshot(call)
        assert KEYS.pod(GONE, "n1", "hello") not in kept
        assert KEYS.intent("n1", "hello") in kept


@pytest.mark.parametrize("family", ["rcs", "daemonsets", "unheard-of"])
async def test_an_owner_that_is_back_keeps_everything(family: str) -> None:
    async with person() as call:
        await call.client.put(KEYS.record(family, "0f0e"), b"{}")  # a cluster that knows the family
        await place(call, GONE, "n1")
        report = await examine(call.client, KEYS, call.clock)
        (mutation,) = await fixes.mutations(call, fixes.choose(report.findings, ["orphan-pod"]))
        await call.client.put(KEYS.record(family, GONE), b"{}")
        before = await snapshot(call)
        with pytest.raises(Conflict):
            await commit(call, mutation)
        assert await snapshot(call) == before


async def test_a_pod_that_changed_since_stays() -> None:
    async with person() as call:
        await place(call, GONE, "n1")
        report = await examine(call.client, KEYS, call.clock)
        (mutation,) = await fixes.mutations(call, fixes.choose(report.findings, ["orphan-pod"]))
        await call.client.put(KEYS.intent("n1", "old"), codec.encode(Intent(SHA, OTHER)))
        before = await snapshot(call)
        with pytest.raises(Conflict):
            await commit(call, mutation)
        assert await snapshot(call) == before


async def test_a_reality_stays_when_its_agent_is_back() -> None:
    async with person() as call:
        key = KEYS.reality("n1", "old")
        await call.client.put(key, codec.encode(Reality(manifest=SHA)))
        report = await examine(call.client, KEYS, call.clock)
        (mutation,) = await fixes.mutations(call, fixes.choose(report.findings, ["stale-reality"]))
        await call.client.put(KEYS.agent("n1"), codec.encode(Agent(node="n1", version="1")))
        with pytest.raises(Conflict):
            await commit(call, mutation)
        await call.client.delete(KEYS.agent("n1"))
        await fix(call, "stale-reality")
        assert await call.client.read(key) is None


async def test_every_kind_of_leftover_can_be_removed() -> None:
    async with person() as call:
        await call.client.put(KEYS.name("rcs", "old"), codec.encode(GONE))
        await call.client.put(KEYS.status("rcs", GONE), b'{"state":"converged"}')
        await call.client.put(KEYS.work("rcs", GONE), b"{}")
        await call.client.put(KEYS.record("runs", GONE), b"{}")
        await call.client.put(KEYS.lock("rcs", GONE), b"farm/one/n")
        await call.client.put(KEYS.mutation_lock("rcs", OTHER), b"user/x/y")
        await call.client.put(KEYS.intent("n1", "old"), codec.encode(Intent(SHA, GONE)))
        codes = ["stale-name", "stale-status", "stale-work", "stale-run", "lock-of-nobody", "orphan-intent"]
        assert await fix(call, *codes) == 4  # one transaction an item
        left = await snapshot(call)
        assert not [key for key in left if GONE in key or OTHER in key or key.endswith(("n1/old", "rcs/old"))]


async def test_many_orphans_take_several_transactions_of_a_size_that_consul_accepts() -> None:
    async with person() as call:
        for number in range(100):
            await place(call, GONE, f"n{number}")
        assert await fix(call, "orphan-pod") > 3
        assert not [key for key in await snapshot(call) if GONE in key]
        assert sum(len(record.removed) for record in await audits(call)) == 100


async def test_a_target_that_fits_nothing_or_cannot_be_fixed_is_refused() -> None:
    async with person() as call:
        await place(call, GONE, "n1")
        report = await examine(call.client, KEYS, call.clock)
        with pytest.raises(NotFound, match="no finding matches 'nonsense'"):
            fixes.choose(report.findings, ["orphan-pod", "nonsense"])
        with pytest.raises(InputInvalid, match="cannot be fixed from here"):
            fixes.choose(report.findings, ["no-farm"])


async def reserve(call: Call, node: str, *instances: str) -> None:
    book = Reserved({name: {"cpu": 1.0} for name in instances}, 7)
    value = codec.encode(book)[:-1] + b',"from_the_future":1}'
    await call.client.put(KEYS.reserved(node), value)


async def reserved(call: Call, node: str) -> list[str]:
    entry = await call.client.read(KEYS.reserved(node))
    assert entry is not None
    assert b"from_the_future" in entry.value
    return sorted(codec.decode(Reserved, entry.value, entry.key).instances)


async def test_w16_an_orphan_gives_its_room_back() -> None:
    """Also where several owners' orphans stood on one node, and one place is somebody else's by now."""
    async with person() as call:
        rc_id = await created(call, replicas=1)
        await place(call, rc_id, "n1", "hello")
        await place(call, GONE, "n1", "old")
        await place(call, OTHER, "n1", "older")
        await place(call, OTHER, "n2", "hello")
        await place(call, rc_id, "n2", "hello")
        await reserve(call, "n1", "hello", "old", "older")
        await reserve(call, "n2", "hello")
        await fix(call, "orphan-pod")
        assert await reserved(call, "n1") == ["hello"]
        assert await reserved(call, "n2") == ["hello"]
        (record,) = [audit for audit in await audits(call) if audit.kind == "reserved"]
        assert (record.before, record.after) == ({"reservations": 3}, {"reservations": 1})


async def test_w16_room_that_is_reserved_for_nobody_is_given_back_on_request_only() -> None:
    async with person() as call:
        rc_id = await created(call, replicas=1)
        move = Transfer(id="t", old_node="n2", old_instance="web", new_node="n1", new_instance="moving")
        await call.client.put(KEYS.work("rcs", rc_id), codec.encode(Work(transfer=move)))
        await reserve(call, "n1", "moving", "nobody")
        report = await examine(call.client, KEYS, call.clock)
        assert [f.object for f in report.findings if f.code == "stale-reservation"] == ["reserved/n1/nobody"]
        assert await reserved(call, "n1") == ["moving", "nobody"]
        assert await fix(call, "stale-reservation") == 1
        assert await reserved(call, "n1") == ["moving"]


async def test_w16_what_a_living_owner_left_on_a_node_goes_with_its_room_at_once() -> None:
    """Its owner places the next pod as soon as the intent is gone. Another's pod keeps its room."""
    async with person() as call:
        rc_id = await created(call, replicas=1)
        for instance in ("one", "two", "theirs"):
            await call.client.put(KEYS.intent("n1", instance), codec.encode(Intent(SHA, rc_id)))
        other = await created(call, name="other", replicas=1)
        await call.client.put(KEYS.pod(other, "n1", "theirs"), codec.encode(Pod(SHA)))
        await call.client.put(KEYS.intent("n2", "gone"), codec.encode(Intent(SHA, GONE)))
        await reserve(call, "n1", "one", "theirs", "two")
        await reserve(call, "n2", "gone")
        report = await examine(call.client, KEYS, call.clock)
        chosen = fixes.choose(report.findings, ["intent-without-pod"])
        mutations = await fixes.mutations(call, chosen)
        assert [mutation.change.id for mutation in mutations] == ["n1", "n1/theirs"]
        assert mutations[0].change.details[-2:] == (
            "frees the reservation of n1/one",
            "frees the reservation of n1/two",
        )
        await commit(call, mutations[0])
        assert await reserved(call, "n1") == ["theirs"]
        assert await call.client.read(KEYS.intent("n1", "one")) is None
        assert await fix(call, "orphan-intent") == 2
        assert await reserved(call, "n2") == []


async def test_w16_the_room_of_a_leftover_is_not_given_back_where_it_stays() -> None:
    async with person() as call:
        rc_id = await created(call, replicas=1)
        await call.client.put(KEYS.intent("n1", "one"), codec.encode(Intent(SHA, rc_id)))
        await reserve(call, "n1", "one")
        report = await examine(call.client, KEYS, call.clock)
        (mutation,) = await fixes.mutations(call, fixes.choose(report.findings, ["intent-without-pod"]))
        await call.client.put(KEYS.pod(rc_id, "n1", "one"), codec.encode(Pod(SHA)))
        with pytest.raises(Conflict):
            await commit(call, mutation)
        assert await reserved(call, "n1") == ["one"]
        assert await call.client.read(KEYS.intent("n1", "one")) is not None


@pytest.mark.parametrize("by", ["another reservation", "an intent"])
async def test_room_that_somebody_took_meanwhile_stays(by: str) -> None:
    async with person() as call:
        await reserve(call, "n1", "nobody")
        report = await examine(call.client, KEYS, call.clock)
        (mutation,) = await fixes.mutations(call, fixes.choose(report.findings, ["stale-reservation"]))
        if by == "an intent":
            await call.client.put(KEYS.intent("n1", "nobody"), codec.encode(Intent(SHA, OTHER)))
        else:
            await reserve(call, "n1", "nobody", "other")
        with pytest.raises(Conflict):
            await commit(call, mutation)
        assert "nobody" in await reserved(call, "n1")


SETS = KEYS.sentinel(KEYS.tree("daemonsets"))


async def test_r20_a_tree_that_is_younger_than_the_cluster_is_registered_on_a_persons_word() -> None:
    async with person(reason="there never were any") as call:
        await call.client.delete(SETS)
        (found,) = [one for one in (await examine(call.client, KEYS, call.clock)).findings if one.fixable]
        assert (found.code, found.object) == ("sentinel-missing", "daemonsets/.present")
        assert await fix(call, "daemonsets/.present") == 1
        kept = await snapshot(call)
        assert kept[SETS] == kept[KEYS.sentinel(KEYS.tree("rcs"))]
        (record,) = await AuditReader(call.client, KEYS).read(Filter(action="doctor.register"), 10)
        assert (record.id, record.reason) == ("daemonsets/.present", "there never were any")


@pytest.mark.parametrize(
    "trace",
    [
        (KEYS.name("daemonsets", "logs"), f'"{GONE}"'.encode()),
        (KEYS.status("daemonsets", GONE), b'{"state": "converged"}'),
        (KEYS.work("daemonsets", GONE), b"{}"),
        (KEYS.lock("daemonsets", GONE), b"farm/one/n"),
        (KEYS.record("daemonsets", GONE), b"{}"),
        (KEYS.pod(GONE, "n1", "logs"), codec.encode(Pod(SHA))),
        (KEYS.intent("n1", "logs"), codec.encode(Intent(SHA, GONE))),
        (KEYS.reality("n1", "logs"), codec.encode(Reality(manifest=SHA, owner=GONE))),
    ],
    ids=lambda trace: trace[0],
)
async def test_r20_a_tree_that_was_wiped_is_never_registered_anew(trace: tuple[str, bytes]) -> None:
    async with person() as call:
        await call.client.put(*trace)
        await call.client.delete(SETS)
        with pytest.raises(InputInvalid, match="cannot be fixed from here"):
            await fix(call, "daemonsets/.present")
        assert SETS not in await snapshot(call)


async def test_r20_what_came_after_the_look_keeps_its_tree_in_doubt() -> None:
    async with person() as call:
        await call.client.delete(SETS)
        findings = (await examine(call.client, KEYS, call.clock)).findings
        await call.client.put(KEYS.record("daemonsets", GONE), b"{}")
        with pytest.raises(Conflict, match="something else is there"):
            await fixes.mutations(call, fixes.choose(findings, ["sentinel-missing"]))


async def test_r20_the_sentinels_of_what_stands_on_nodes_are_nobodys_to_create() -> None:
    async with person() as call:
        await call.client.delete(KEYS.sentinel(KEYS.tree("pods")))
        with pytest.raises(InputInvalid, match="cannot be fixed from here"):
            await fix(call, "pods/.present")


async def test_a_tree_on_whose_absence_nothing_rests_gets_its_sentinel_back() -> None:
    async with person(reason="a slip") as call:
        key = KEYS.sentinel(KEYS.tree("starts"))
        await call.client.delete(key)
        (found,) = [
            each for each in (await examine(call.client, KEYS, call.clock)).findings if each.registers
        ]
        assert "a farm reads it again and again" in found.explanation
        await fix(call, "starts/.present")
        assert key in await snapshot(call)


async def test_a_service_forgets_owners_that_are_gone_and_keeps_the_others() -> None:
    async with person() as call:
        rc = await created(call)
        active = [f"rcs/{GONE}", f"rcs/{rc}", "later/0a"]
        store = ServiceStore(call.client, KEYS)
        await call.client.transaction(store.create(Service(id="0f", name="shop", port="http", active=active)))
        await fix(call, "service-of-nobody")
        assert (await store.get("0f")).record.active == active[1:]


@pytest.mark.parametrize(
    ("manager", "part_of", "needs", "left"),
    [
        ("rollouts", "", ["gpu", "rollouts.1"], ["gpu"]),
        ("rollouts", "apps/shop", ["gpu", "rollouts.1"], ["gpu"]),
        ("deployments", "services/1", ["numbered.1", "deploy.1"], ["numbered.1", "deploy.1"]),
    ],
)
async def test_r11_a_controller_whose_manager_is_gone_needs_only_what_the_owner_of_its_pods_must_know(
    manager: str, part_of: str, needs: list[str], left: list[str]
) -> None:
    async with person() as call:
        stored = await RC.records(call.client, KEYS).get(await created(call))
        managed = {"managed_by": f"{manager}/{GONE}", "taken": True, "needs": needs, "part_of": part_of}
        held = msgspec.structs.replace(stored.record, **managed)
        await call.client.transaction([RC.records(call.client, KEYS).replace(stored, held)])
        session = await call.client.create_session(name="farm", ttl=3600)
        lock = KEYS.mutation_lock("rcs", stored.record.id)
        await call.client.put(lock, f"{manager}/{GONE}/n".encode(), acquire=session)
        await fix(call, "managed-by-nobody")
        (told, *_) = await AuditReader(call.client, KEYS).read(Filter(), 1)
        assert told.action == "doctor.free", "nothing is restored: the record was right"
        assert await call.client.read(lock) is None  # else no person could change it
        freed = (await RC.records(call.client, KEYS).get(stored.record.id)).record
        assert (freed.managed_by, freed.taken, freed.hands, freed.needs) == (
            "",
            False,
            held.hands + 1,
            left,
        )
