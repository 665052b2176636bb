"""What people ask of nodes and freezes: CAS, mutation lock, audit, exact evidence (R13, R18)."""

from __future__ import annotations

import json

import pytest

from farmd import overview
from farmd.commands import failsafe
from farmd.commands.mutation import Call, commit
from farmd.nodes import commands
from farmd.tables.model import differences
from store import codec
from store.audit import AuditReader, Filter
from store.errors import Conflict, InputInvalid, Locked, NotFound
from store.failsafe import Failsafe, FailsafeStore, frozen
from store.locks import Holder, MutationLocker
from store.nodes import Agent, Node, NodeStore
from store.registration import register_node
from tests.people import KEYS, person, snapshot


async def node(call: Call, name: str = "web1") -> Node:
    return (await NodeStore(call.client, KEYS).get(name)).record


async def test_labels_are_set_and_removed_and_win_over_the_agents_facts() -> None:
    async with person() as call:
        agent = Agent(node="web1", version="1", labels={"rack": "a", "arch": "arm"})
        await call.client.put(KEYS.agent("web1"), codec.encode(agent))
        await commit(call, await commands.label(call, "web1", {"rack": "b", "disk": "ssd"}))
        view = await NodeStore(call.client, KEYS).get("web1")
        assert view.labels == {"rack": "b", "arch": "arm", "disk": "ssd"}
        await commit(call, await commands.label(call, "web1", {}, ["rack"]))
        assert (await node(call)).labels == {"disk": "ssd"}
        assert not (await commands.label(call, "web1", {"disk": "ssd"}, ["rack"])).needed


@pytest.mark.parametrize("label", ["node", "volume/data"])
async def test_a_label_that_farms_derive_from_the_record_is_refused(label: str) -> None:
    """A node with a label of a volume would get pods that must stand where the volume is."""
    async with person() as call:
        await register_node(call.client, KEYS, "web1")
        with pytest.raises(InputInvalid, match=f"labels: found '{label}', expected labels other than"):
            await commands.label(call, "web1", {label: "x"})
        made = await commands.label(call, "web1", {}, [label])
        assert not made.needed


async def test_a_label_without_a_value_is_told_from_one_that_is_not_there() -> None:
    async with person() as call:
        await register_node(call.client, KEYS, "web1")
        made = await commands.label(call, "web1", {"gpu": ""})
        assert (made.change.before, made.change.after) == ({}, {"labels.gpu": ""})
        await commit(call, made)
        gone = await commands.label(call, "web1", {}, ["gpu"])
        assert (gone.change.before, gone.change.after) == ({"labels.gpu": ""}, {})
        assert differences(gone.change.before, gone.change.after) == ["labels.gpu removed"]
        await commit(call, gone)
        assert (await node(call)).labels == {}


async def test_a_drain_is_told_without_what_it_is_not() -> None:
    async with person() as call:
        await register_node(call.client, KEYS, "web1")
        asked = (await commands.drain(call, "web1", 600)).change
        assert asked.before == {"cordoned": False}
        assert sorted(asked.after) == ["cordoned", "deadline", "drain"]
        with pytest.raises(
            InputInvalid, match="found 2678400 seconds, expected more than 0 and at most 30 d"
        ):
            await commands.drain(call, "web1", 31 * 86400)


async def test_cordon_keeps_its_reason_and_unknown_fields_survive() -> None:
    async with person(reason="disk") as call:
        await call.client.put(KEYS.node("web1"), b'{"labels": {"a": "b"}, "from_the_future": 1}')
        await commit(call, await commands.cordon(call, "web1"))
        assert (await node(call)).cordon_reason == "disk"
        await commit(call, await commands.uncordon(call, "web1"))
        entry = await call.client.read(KEYS.node("web1"))
        assert entry is not None
        assert json.loads(entry.value) == {"labels": {"a": "b"}, "from_the_future": 1}
        actions = [r.action for r in await AuditReader(call.client, KEYS).read(Filter(), 9)]
        assert actions == ["node.uncordon", "node.cordon"]


async def test_a_registered_node_without_agent_is_known_and_a_mistyped_one_is_not() -> None:
    async with person() as call:
        await register_node(call.client, KEYS, "web1")
        await commit(call, await commands.cordon(call, "web1"))
        assert (await node(call)).cordoned
        before = await snapshot(call)
        with pytest.raises(NotFound):
            await commands.cordon(call, "wbe1")
        assert await snapshot(call) == before


async def test_r20_a_person_may_register_a_node_before_its_agent_starts() -> None:
    async with person(reason="new rack") as call:
        mutation = await commands.register(call, "web1")
        assert not mutation.change.destructive
        await commit(call, mutation)
        assert (await node(call)) == Node()
        sentinel = await call.client.read(KEYS.sentinel(KEYS.intents("web1")))
        cluster = await call.client.read(KEYS.cluster)
        assert sentinel is not None
        assert cluster is not None
        assert sentinel.value == cluster.value
        assert not (await commands.register(call, "web1")).needed
        (record,) = await AuditReader(call.client, KEYS).read(Filter(), 9)
        assert (record.action, record.id, record.reason) == ("node.register", "web1", "new rack")


async def test_r20_to_register_a_node_again_whose_sentinel_is_gone_is_asked_for() -> None:
    async with person() as call:
        await call.client.put(KEYS.node("web1"), b"{}")
        mutation = await commands.register(call, "web1")
        assert mutation.change.destructive
        assert "stopped" in mutation.change.details[0]


@pytest.mark.parametrize("name", ["", "a/b", "..", "-x", "x" * 200])
async def test_a_name_that_is_no_part_of_a_key_is_refused(name: str) -> None:
    async with person() as call:
        with pytest.raises(InputInvalid, match="node"):
            await commands.cordon(call, name)


@pytest.mark.parametrize("labels", [{"": "x"}, {"a b": "x"}, {"a": "x y"}, {"a": "é"}])
async def test_bad_labels_are_refused(labels: dict[str, str]) -> None:
    async with person() as call:
        await register_node(call.client, KEYS, "web1")
        with pytest.raises(InputInvalid, match="labels"):
            await commands.label(call, "web1", labels)


async def test_r13_a_locked_node_is_left_alone() -> None:
    async with person() as call:
        await register_node(call.client, KEYS, "web1")
        session = await call.client.create_session(name="test", ttl=10)
        await MutationLocker(call.client, KEYS, "nodes").take("web1", session, Holder("drains", "d1", "n"))
        with pytest.raises(Locked, match="drains/d1"):
            await commands.cordon(call, "web1")


async def test_two_first_words_on_a_node_do_not_overwrite_each_other() -> None:
    async with person() as call:
        await register_node(call.client, KEYS, "web1")
        mine = await commands.label(call, "web1", {"a": "1"})
        await commit(call, await commands.label(call, "web1", {"b": "2"}))
        with pytest.raises(Conflict):
            await commit(call, mine)
        assert (await node(call)).labels == {"b": "2"}


async def test_r18_clearing_names_the_evidence_gives_a_reason_and_expires() -> None:
    async with person(reason="planned") as call:
        freeze = Failsafe(evidence="agents: mass loss", detail="12 of 20", by="farm/a", since=1.0)
        await call.client.put(KEYS.failsafe("rcs"), codec.encode(freeze))
        with pytest.raises(Conflict, match="agents: mass loss"):
            await failsafe.clear(call, "rcs", "something else", 600)
        with pytest.raises(NotFound):
            await failsafe.clear(call, "nodes", "x", 600)
        for seconds in (0, -1, 86401, float("nan")):
            with pytest.raises(InputInvalid, match="for"):
                await failsafe.clear(call, "rcs", "agents: mass loss", seconds)
        await commit(call, await failsafe.clear(call, "rcs", "agents: mass loss", 600))
        stored = await FailsafeStore(call.client, KEYS).get("rcs")
        assert stored is not None
        assert not frozen(stored.record, call.clock.now() + 599)
        assert frozen(stored.record, call.clock.now() + 600)


async def test_r18_one_word_clears_all_that_one_evidence_freezes_and_nothing_else() -> None:
    async with person(reason="planned") as call:
        store = FailsafeStore(call.client, KEYS)
        with pytest.raises(NotFound):
            await failsafe.clear(call, "all", "agents: mass loss", 600)
        for kind, evidence in (("rcs", "agents: mass loss"), ("nodes", "agents: mass loss"), ("x", "other")):
            await call.client.put(KEYS.failsafe(kind), codec.encode(Failsafe(evidence=evidence)))
        with pytest.raises(Conflict, match=r"'agents: mass loss' and 'other', expected 'something else'"):
            await failsafe.clear(call, "all", "something else", 600)
        mutation = await failsafe.clear(call, "all", "agents: mass loss", 600)
        assert mutation.change.details[:2] == ("kinds: nodes rcs", "evidence: agents: mass loss")
        await commit(call, mutation)
        found = await store.list()
        now = call.clock.now()
        assert {kind: frozen(stored.record, now) for kind, stored in found.items()} == {
            "rcs": False,
            "nodes": False,
            "x": True,
        }


async def test_r18_clearing_without_a_reason_is_refused() -> None:
    async with person() as call:
        with pytest.raises(InputInvalid, match="reason"):
            await failsafe.clear(call, "rcs", "x", 600)


async def test_r18_evidence_that_changed_meanwhile_stays_in_force() -> None:
    async with person(reason="planned") as call:
        await call.client.put(KEYS.failsafe("rcs"), codec.encode(Failsafe(evidence="one")))
        mutation = await failsafe.clear(call, "rcs", "one", 600)
        await call.client.put(KEYS.failsafe("rcs"), codec.encode(Failsafe(evidence="two")))
        with pytest.raises(Conflict):
            await commit(call, mutation)


async def test_r21_a_node_whose_agent_cannot_be_read_is_shown_as_such_and_can_be_drained() -> None:
    async with person() as call:
        await register_node(call.client, KEYS, "web1")
        await call.client.put(KEYS.agent("web1"), b"garbage")
        view = await NodeStore(call.client, KEYS).get("web1")
        assert view.agent is None
        assert view.unreadable.startswith(KEYS.agent("web1"))
        found = await overview.nodes(call.client, KEYS)
        assert [(row.name, row.state) for row in found.rows] == [("web1", "unreadable")]
        assert found.broken == [view.unreadable]
        await commit(call, await commands.drain(call, "web1", 600))
        assert (await node(call)).drain is not None
        assert [row.state for row in (await overview.nodes(call.client, KEYS)).rows] == [
            "unreadable,draining"
        ]
