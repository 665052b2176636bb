"""Taints and capacity of nodes, as people set them: CAS, audit, what is refused (R13)."""

from __future__ import annotations

import pytest

from farmd.commands.mutation import Call, commit
from farmd.nodes.attributes import capacity, parse_taint, taint, untaint
from store.audit import AuditReader, Filter
from store.errors import Conflict, InputInvalid, NotFound
from store.nodes import NodeStore, Taint
from store.registration import register_node
from tests.people import KEYS, person

DB = Taint("dedicated", "db")
SOFT = Taint("dedicated", "db", "prefer-no-schedule")
GPU = Taint("gpu")


async def taints(call: Call) -> list[Taint]:
    return (await NodeStore(call.client, KEYS).get("web1")).record.taints


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("dedicated=db:no-schedule", DB),
        ("dedicated=db", DB),
        ("dedicated=db:prefer-no-schedule", SOFT),
        ("gpu:no-schedule", GPU),
        ("gpu", GPU),
        ("example.com/gpu=", Taint("example.com/gpu")),
    ],
)
def test_a_taint_is_written_as_in_kubernetes(text: str, meant: Taint) -> None:
    assert parse_taint(text) == meant


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "taints: found '', expected a label key"),
        ("a b=c", "taints: found 'a b', expected a label key"),
        ("a=b c", "taints.a: found 'b c', expected a label value"),
        ("a=b:", "taints.a: found effect '', expected no-schedule or prefer-no-schedule"),
        ("a=b:no-execute", "taints.a: found effect 'no-execute', expected no-schedule or prefer-no-schedule"),
    ],
)
async def test_what_is_no_taint_is_refused(text: str, said: str) -> None:
    async with person() as call:
        await register_node(call.client, KEYS, "web1")
        with pytest.raises(InputInvalid) as refused:
            parse_taint(text)
        assert refused.value.message.startswith(said)
        with pytest.raises(InputInvalid):
            await untaint(call, "web1", [text])


async def test_a_taint_with_the_same_key_and_effect_gets_the_new_value() -> None:
    async with person(reason="databases") as call:
        await register_node(call.client, KEYS, "web1")
        await commit(call, await taint(call, "web1", [DB, SOFT, GPU]))
        changed = await taint(call, "web1", [Taint("dedicated", "cache"), GPU])
        assert changed.change.before == {"taints.dedicated:no-schedule": "db"}
        assert changed.change.after == {"taints.dedicated:no-schedule": "cache"}
        assert not changed.change.destructive
        await commit(call, changed)
        assert await taints(call) == [Taint("dedicated", "cache"), SOFT, GPU]
        assert not (await taint(call, "web1", [GPU])).needed
        first = (await AuditReader(call.client, KEYS).read(Filter(), 9))[-1]
        assert (first.action, first.id, first.reason) == ("node.taint", "web1", "databases")
        assert first.after == {
            "taints.dedicated:no-schedule": "db",
            "taints.dedicated:prefer-no-schedule": "db",
            "taints.gpu:no-schedule": "",
        }


@pytest.mark.parametrize(
    ("texts", "left"),
    [
        (["dedicated"], [GPU]),
        (["dedicated:no-schedule"], [SOFT, GPU]),
        (["dedicated=db:prefer-no-schedule", "gpu"], [DB]),
        (["dedicated=other", "nosuch"], [DB, SOFT, GPU]),
    ],
)
async def test_what_a_removal_leaves_out_may_be_anything(texts: list[str], left: list[Taint]) -> None:
    async with person() as call:
        await register_node(call.client, KEYS, "web1")
        await commit(call, await taint(call, "web1", [DB, SOFT, GPU]))
        await commit(call, await untaint(call, "web1", texts))
        assert await taints(call) == left


async def test_one_taint_with_two_values_is_refused() -> None:
    async with person() as call:
        await register_node(call.client, KEYS, "web1")
        with pytest.raises(InputInvalid, match="twice with different values"):
            await taint(call, "web1", [DB, Taint("dedicated", "cache")])
        assert (await taint(call, "web1", [DB, DB])).needed


async def test_a_node_that_changed_meanwhile_or_is_unknown_is_left_alone() -> None:
    async with person() as call:
        with pytest.raises(NotFound):
            await taint(call, "web1", [DB])
        await register_node(call.client, KEYS, "web1")
        mine = await taint(call, "web1", [DB])
        await commit(call, await taint(call, "web1", [GPU]))
        with pytest.raises(Conflict):
            await commit(call, mine)
        assert await taints(call) == [GPU]


async def test_capacity_that_people_set_wins_until_it_is_removed() -> None:
    async with person() as call:
        await register_node(call.client, KEYS, "web1")
        made = await capacity(call, "web1", {"cpu": 4.0, "memory": 8.0 * 2**30})
        assert (made.change.before, made.change.after) == (
            {},
            {"capacity.cpu": "4", "capacity.memory": "8Gi"},
        )
        await commit(call, made)
        changed = await capacity(call, "web1", {"cpu": 0.5}, ["memory"])
        assert changed.change.before == {"capacity.cpu": "4", "capacity.memory": "8Gi"}
        assert changed.change.after == {"capacity.cpu": "0.5"}
        await commit(call, changed)
        assert (await NodeStore(call.client, KEYS).get("web1")).record.capacity == {"cpu": 0.5}
        assert not (await capacity(call, "web1", {"cpu": 0.5}, ["gpu"])).needed
        for bad in ({"a b": 1.0}, {"": 1.0}):
            with pytest.raises(InputInvalid, match="capacity: found"):
                await capacity(call, "web1", bad)
        with pytest.raises(InputInvalid, match=r"memory: found 0.048, expected whole bytes, such as 64Mi"):
            await capacity(call, "web1", {"memory": 0.048})
        with pytest.raises(InputInvalid, match="'cpu' both set and removed"):
            await capacity(call, "web1", {"cpu": 1.0}, ["cpu"])
