"""A node that is gone for good is forgotten whole, and nobody who is there, or still referred to, is."""

from __future__ import annotations

from typing import Any

import pytest

from farmd import overview
from farmd.commands.mutation import Call, commit
from farmd.doctor import examine
from farmd.nodes import commands
from farmd.nodes.forgetting import forget
from store import codec
from store.audit import AuditReader, Filter
from store.errors import Conflict, InputInvalid, Locked, NotFound, NotRegistered
from store.locks import Holder, MutationLocker
from store.nodes import Node, NodeStatus, Reserved
from store.pods import Pod
from store.reality import Intent, Reality
from store.registration import register_node
from store.work import Transfer, Work
from tests.node_farms import GRACE, fleet_of
from tests.people import KEYS, created, person, snapshot

LOST = Work(lost_since=900.0, absent_since=840.0)


async def put(call: Call, key: str, record: Any) -> None:
    await call.client.put(key, codec.encode(record))


async def gone(call: Call, name: str = "web1", record: Node | None = None, work: Work | None = LOST) -> None:
    """A node as it is left behind: given up, with what it last ran."""
    await register_node(call.client, KEYS, name)
    await put(call, KEYS.node(name), record or Node(labels={"rack": "a"}))
    if work is not None:
        await put(call, KEYS.work("nodes", name), work)
    await put(call, KEYS.status("nodes", name), NodeStatus(state="lost"))
    await put(call, KEYS.reserved(name), Reserved(generation=7))
    await put(call, KEYS.reality(name, "hello"), Reality(manifest="m", owner="c1"))


async def of_node(call: Call, name: str) -> list[str]:
    """The keys of the store that bear its name."""
    return sorted(key for key in await snapshot(call) if name in key.split("/") and "/audit/" not in key)


async def test_nothing_is_left_of_a_node_that_is_forgotten_and_nothing_else_is_touched() -> None:
    async with person(reason="scrapped") as call:
        await gone(call)
        await gone(call, "web2")
        others = {key: value for key, value in (await snapshot(call)).items() if "web1" not in key}
        mutation = await forget(call, "web1")
        assert mutation.change.destructive
        assert mutation.change.details == ("was last seen running hello",)
        await commit(call, mutation)
        assert await of_node(call, "web1") == []
        after = {key: value for key, value in (await snapshot(call)).items() if "/audit/" not in key}
        assert after == others
        (audit,) = await AuditReader(call.client, KEYS).read(Filter(action="node.forget"), 9)
        assert (audit.id, audit.reason, audit.after) == ("web1", "scrapped", {"exists": False})
        assert [row.name for row in (await overview.nodes(call.client, KEYS)).rows] == ["web2"]
        found = (await examine.examine(call.client, KEYS, call.clock)).findings
        assert [finding for finding in found if "web1" in finding.object] == []


@pytest.mark.parametrize("broken", [False, True])
async def test_a_node_that_was_cordoned_needs_no_verdict_and_a_verdict_no_legible_record(
    broken: bool,
) -> None:
    async with person() as call:
        if broken:
            await gone(call)
            await call.client.put(KEYS.node("web1"), b'{"labels": 3}')
        else:
            await gone(call, record=Node(cordoned=True), work=None)
        await commit(call, await forget(call, "web1"))
        assert await of_node(call, "web1") == []


async def test_a_node_that_only_registered_is_forgotten() -> None:
    async with person() as call:
        await register_node(call.client, KEYS, "web1")
        await commit(call, await forget(call, "web1"))
        assert await of_node(call, "web1") == []
        with pytest.raises(NotFound):
            await forget(call, "web1")


async def test_r21_a_node_whose_agent_is_there_is_not_forgotten() -> None:
    async with person() as call:
        await gone(call)
        mutation = await forget(call, "web1")
        await call.client.put(KEYS.agent("web1"), b"from a newer version")
        before = await snapshot(call)
        with pytest.raises(Conflict, match="its agent is running"):
            await forget(call, "web1")
        with pytest.raises(Conflict, match="changed since it was read"):
            await commit(call, mutation)
        assert await snapshot(call) == before


async def test_a_node_that_may_still_be_used_is_not_forgotten() -> None:
    async with person() as call:
        await gone(call, work=None)
        with pytest.raises(Conflict, match="neither lost nor cordoned") as refused:
            await forget(call, "web1")
        assert "farmctl node cordon web1" in refused.value.fields["hint"]


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("pod", "pod hello of rc/hello"),
        ("intent", "pod hello of nobody"),
        ("reservation", "a reservation for db"),
        ("move", "a move of web2/hello of rc/hello to it"),
    ],
)
async def test_a_node_that_something_refers_to_is_not_forgotten(what: str, text: str) -> None:
    async with person() as call:
        await gone(call)
        rc = await created(call)
        key, record = {
            "pod": (KEYS.pod(rc, "web1", "hello"), Pod("0" * 64)),
            "intent": (KEYS.intent("web1", "hello"), Intent("0" * 64, rc)),
            "reservation": (KEYS.reserved("web1"), Reserved(instances={"db": {"cpu": 1.0}})),
            "move": (
                KEYS.work("rcs", rc),
                Work(
                    transfer=Transfer(
                        id="t", old_node="web2", old_instance="hello", new_node="web1", new_instance="hello"
                    )
                ),
            ),
        }[what]
        await put(call, key, record)
        before = await snapshot(call)
        with pytest.raises(Conflict, match=text) as refused:
            await forget(call, "web1")
        assert "farmctl node drain web1 takes pods off" in refused.value.fields["hint"]
        assert await snapshot(call) == before


@pytest.mark.parametrize(
    ("key", "record"),
    [
        (KEYS.node("web1"), Node(labels={"rack": "b"})),
        (KEYS.work("nodes", "web1"), Work(lost_since=901.0)),
        (KEYS.reserved("web1"), Reserved(instances={"db": {"cpu": 1.0}})),
    ],
)
async def test_r12_what_changed_since_it_was_looked_at_is_not_forgotten(key: str, record: Any) -> None:
    async with person() as call:
        await gone(call)
        mutation = await forget(call, "web1")
        await put(call, key, record)
        before = await snapshot(call)
        with pytest.raises(Conflict):
            await commit(call, mutation)
        assert await snapshot(call) == before


@pytest.mark.parametrize("key", [KEYS.node("web1"), KEYS.work("nodes", "web1"), KEYS.reserved("web1")])
async def test_r12_what_came_since_it_was_looked_at_is_not_left_behind(key: str) -> None:
    async with person() as call:
        await register_node(call.client, KEYS, "web1")
        mutation = await forget(call, "web1")
        await call.client.put(key, b"{}")
        with pytest.raises(Conflict):
            await commit(call, mutation)


@pytest.mark.parametrize("tree", ["pods", "intent", "reserved", "work", "agents"])
async def test_r20_an_answer_without_its_sentinel_does_not_prove_that_nothing_refers_to_it(tree: str) -> None:
    async with person() as call:
        await gone(call)
        await call.client.delete(KEYS.sentinel(KEYS.tree(tree)))
        with pytest.raises(NotRegistered, match=f"{tree}/.present"):
            await forget(call, "web1")


async def test_r13_a_locked_node_is_not_forgotten() -> None:
    async with person() as call:
        await gone(call)
        mutation = await forget(call, "web1")
        session = await call.client.create_session(name="test", ttl=10)
        await MutationLocker(call.client, KEYS, "nodes").take("web1", session, Holder("drains", "d1", "n"))
        with pytest.raises(Locked, match="drains/d1"):
            await forget(call, "web1")
        with pytest.raises(Locked, match="drains/d1"):
            await commit(call, mutation)


async def test_a_name_that_is_none_or_nobodys_is_refused() -> None:
    async with person() as call:
        with pytest.raises(NotFound):
            await forget(call, "web1")
        with pytest.raises(InputInvalid, match="node"):
            await forget(call, "a/b")


async def test_a_farm_lets_a_forgotten_node_go_and_takes_it_again_when_it_is_back() -> None:
    async with fleet_of("n1", "n2", "n3") as fleet:
        farm = await fleet.start("a")
        await fleet.leave("n1")
        await fleet.clock.advance(GRACE + 3)
        assert "node_lost_n1" in farm.alerts.firing
        call = Call(fleet.client, KEYS, fleet.clock, fleet.ids, "user/ada@desk")
        await commit(call, await forget(call, "n1"))
        await fleet.clock.advance(2 * GRACE)
        assert farm.owned == {"n2", "n3"}
        assert await of_node(call, "n1") == []
        assert farm.alerts.resolved == ["node_lost_n1"]
        await fleet.add("n1")
        await fleet.clock.advance(5)
        assert farm.owned == {"n1", "n2", "n3"}
        assert not await fleet.lost("n1")
        assert not (await commands.uncordon(call, "n1")).needed
        await call.client.delete(KEYS.agent("n1"))
        await fleet.clock.advance(GRACE + 5)
        assert await fleet.lost("n1"), "its absence counts anew"
