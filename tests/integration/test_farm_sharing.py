"""Several farms on a real Consul share the work without talking (R2–R4, R7, R9, R12, R15, W1, W2, W12)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from farmd.kinds import KINDS
from store import codec, operations
from store.consul.client import ConsulClient
from store.errors import TransactionRejected
from store.locks import Claim, Holder
from store.rcs import ReplicationController
from store.reality import Intent
from tests.fleet import Cluster, RunningFarm, client_of, cluster_on, eventually, in_time, start_farm
from tests.proxy import Proxy, Seen

ITEMS = 24


class Fleet:
    """Farms over one cluster, each with a client of its own; ``close`` stops what still runs."""

    def __init__(self, cluster: Cluster, address: str) -> None:
        self.cluster = cluster
        self.address = address
        self.farms: list[RunningFarm] = []
        self.clients: list[ConsulClient] = []

    async def start(self, name: str, *, address: str = "", **settings: object) -> RunningFarm:
        client = client_of(address or self.address)
        self.clients.append(client)
        farm = await start_farm(client, name, keys=self.cluster.keys, **settings)  # type: ignore[arg-type]
        self.farms.append(farm)
        return farm

    async def items(self, count: int = ITEMS, **fields: object) -> set[str]:
        prefix = "-".join(str(value) for value in fields.get("labels", {}).values())  # type: ignore[attr-defined]
        made = [await self.cluster.create_rc(f"rc{prefix}-{number}", 0, **fields) for number in range(count)]
        return {rc.id for rc in made}

    async def all_owned(self, items: set[str], *farms: RunningFarm) -> None:
        """Each item has one worker, under the lock that stands."""

        async def owned() -> bool:
            locks = await self.cluster.locks()
            claims = [claim for farm in farms for claim in claims_of(farm).values()]
            return (
                sorted(claim.item for claim in claims) == sorted(items)
                and set(locks) == items
                and all(locks[claim.item].modify_index == claim.index for claim in claims)
            )

        await eventually(owned, what="every item owned once")

    async def close(self) -> None:
        for farm in self.farms:
            if not farm.task.done():
                await farm.close()
        for client in self.clients:
            await client.close()


def claims_of(farm: RunningFarm) -> dict[str, Claim]:
    return {item: claim for loop in farm.farm.loops for item, claim in loop.supervisor.owned.items()}


def session_of(farm: RunningFarm) -> str:
    return next(iter(claims_of(farm).values())).session


@pytest.fixture
async def fleet(consul_dev: str) -> AsyncIterator[Fleet]:
    async with cluster_on(consul_dev) as cluster:
        made = Fleet(cluster, consul_dev)
        yield made
        await made.close()


# -- sharing -------------------------------------------------------------------------------------
async def test_r7_two_farms_claim_their_own_first(fleet: Fleet) -> None:
    a, b = await fleet.start("a", patience=3600.0), await fleet.start("b", patience=3600.0)

    async def know_each_other() -> bool:
        known = [len(farm.farm.caches.farms.entries) for farm in (a, b)]
        return known == [2, 2]

    await eventually(know_each_other)
    items = await fleet.items()
    await fleet.all_owned(items, a, b)
    assert a.owned
    assert b.owned
    assert a.metric("farmd_lock_events_total", event="rejected") == 0
    assert b.metric("farmd_lock_events_total", event="rejected") == 0


async def test_r9_a_third_farm_gets_its_share_without_a_gap(fleet: Fleet) -> None:
    items = await fleet.items(45)
    a, b = await fleet.start("a"), await fleet.start("b")
    await fleet.all_owned(items, a, b)
    stop = asyncio.Event()
    gaps: list[set[str]] = []
    looks = 0

    async def look() -> None:
        nonlocal looks
        index = 0
        while not stop.is_set():
            page = await fleet.cluster.client.keys(
                fleet.cluster.keys.tree("locks") + "rcs/", index=index, wait=0.2
            )
            index, looks = page.index, looks + 1
            if page.unchanged:
                continue
            missing = items - {fleet.cluster.keys.last_part(key) for key in page.items}
            if missing:
                gaps.append(missing)

    looking = asyncio.create_task(look())
    c = await fleet.start("c")

    async def shared() -> bool:
        return len(c.owned) >= 9

    await eventually(shared)
    await fleet.all_owned(items, a, b, c)
    stop.set()
    await looking
    assert gaps == []
    assert looks >= 2
    assert max(len(farm.owned) for farm in (a, b, c)) <= 24


async def test_w12_selectors_partition_the_work_and_a_label_moves_an_item(fleet: Fleet) -> None:
    east = await fleet.items(6, labels={"zone": "east"})
    west = await fleet.items(6, labels={"zone": "west"})
    a, b = await fleet.start("a", selector="zone=east"), await fleet.start("b", selector="zone=west")
    await fleet.all_owned(east | west, a, b)
    assert (a.owned, b.owned) == (east, west)
    moving = min(east)
    entry = await fleet.cluster.client.read(fleet.cluster.keys.record("rcs", moving))
    assert entry is not None
    rc = codec.decode(ReplicationController, entry.value, entry.key)
    await fleet.cluster.change_rc(rc, labels={"zone": "west"})
    await eventually(lambda: _is(b.owned == west | {moving}))
    await fleet.all_owned(east | west, a, b)


async def _is(truth: bool) -> bool:
    return truth


# -- taking over ---------------------------------------------------------------------------------
async def test_w1_idle_items_of_a_destroyed_session_are_taken_over(fleet: Fleet) -> None:
    items = await fleet.items()
    a, b = await fleet.start("a"), await fleet.start("b")
    await fleet.all_owned(items, a, b)
    before, theirs = dict(claims_of(a)), set(a.owned)
    assert theirs
    await fleet.cluster.client.destroy_session(session_of(a))

    async def taken() -> bool:
        return theirs <= b.owned

    await eventually(taken, what="takeover; nobody edits anything")
    # R12: what the zombie still has in hand is refused, claim by claim.
    for claim in before.values():
        write = operations.put(fleet.cluster.keys.prefix + "zombie", b"")
        with pytest.raises(TransactionRejected):
            await a.client.transaction([*claim.fence(), write])
    # R2: it comes back under a new session, and the items are shared anew.
    await fleet.all_owned(items, a, b)


async def test_w3_r4_a_clean_stop_frees_all_at_once_and_the_other_takes_all(fleet: Fleet) -> None:
    items = await fleet.items(60)
    a, b = await fleet.start("a", patience=3600.0), await fleet.start("b", patience=3600.0)
    await fleet.all_owned(items, a, b)
    await a.close()
    assert a.owned == set()
    await fleet.all_owned(items, b)


async def test_r4_after_a_clean_stop_nothing_of_the_farm_is_left(fleet: Fleet) -> None:
    await fleet.items(3)
    a = await fleet.start("a")
    await eventually(lambda: _is(len(a.owned) == 3))
    await a.close()
    assert await fleet.cluster.locks() == {}
    assert await fleet.cluster.client.read(fleet.cluster.keys.farm("a")) is None


# -- fences (W2, R12) ------------------------------------------------------------------------------
def places_pods(seen: Seen) -> bool:
    """A transaction of a worker: it writes an audit record."""
    return seen.method == "PUT" and seen.path == "/v1/txn" and b"/audit/" in seen.body


async def test_r12_a_changed_record_rejects_a_plan_that_is_under_way(fleet: Fleet) -> None:
    await fleet.cluster.add_nodes({f"n{number}": {} for number in range(5)})
    async with Proxy(fleet.address) as proxy:
        hold = proxy.hold(places_pods)
        await fleet.start("a", address=proxy.address)
        rc = await fleet.cluster.create_rc("web", 5)
        await in_time(hold.reached.wait())
        await fleet.cluster.change_rc(rc, replicas_desired=2)
        hold.release()

        async def placed() -> bool:
            return len(await fleet.cluster.pods(rc.id)) == 2

        await eventually(placed)
        audits = [audit for audit in await fleet.cluster.audits() if audit.action == "pods.place"]
        assert [len(audit.placed) for audit in audits] == [2], "nothing of the old plan was written"
        await fleet.farms[0].close()


async def test_w2_r12_a_claim_that_is_lost_under_a_write_writes_nothing(fleet: Fleet) -> None:
    await fleet.cluster.add_nodes({f"n{number}": {} for number in range(3)})
    async with Proxy(fleet.address) as proxy:
        hold = proxy.hold(places_pods)
        a = await fleet.start("a", address=proxy.address)
        rc = await fleet.cluster.create_rc("web", 3)
        await in_time(hold.reached.wait())
        await fleet.cluster.client.destroy_session(session_of(a))
        b = await fleet.start("b")

        async def taken() -> bool:
            return b.owned == {rc.id} and len(await fleet.cluster.pods(rc.id)) == 3

        await eventually(taken)
        hold.release()
        await eventually(lambda: _is(rc.id not in a.owned))
        audits = [audit for audit in await fleet.cluster.audits() if audit.action == "pods.place"]
        assert [(audit.actor, len(audit.placed)) for audit in audits] == [("farm/b", 3)]
        await a.close()


@pytest.mark.parametrize("applied", [True, False])
async def test_r12_after_an_unknown_outcome_it_reads_before_it_plans(fleet: Fleet, applied: bool) -> None:
    await fleet.cluster.add_nodes({f"n{number}": {} for number in range(9)})
    async with Proxy(fleet.address) as proxy:
        hold = proxy.hold(places_pods, answer=applied)
        a = await fleet.start("a", address=proxy.address, own_trees_pause=3600.0)
        rc = await fleet.cluster.create_rc("web", 4)
        await in_time(hold.reached.wait())
        hold.drop()

        async def placed() -> bool:
            status = await fleet.cluster.status(rc)
            return status.placed == 4

        await eventually(placed)
        pods = await fleet.cluster.pods(rc.id)
        assert len(pods) == 4
        assert set(await fleet.cluster.intents()) == set(pods)
        await a.close()


@pytest.mark.parametrize("applied", [True, False])
async def test_r3_a_claim_with_an_unknown_outcome_is_never_taken_twice(fleet: Fleet, applied: bool) -> None:
    items = await fleet.items()

    def claims(seen: Seen) -> bool:
        return seen.path == "/v1/txn" and b"check-not-exists" in seen.body and b"/locks/" in seen.body

    async with Proxy(fleet.address) as proxy:
        hold = proxy.hold(claims, answer=applied)
        a = await fleet.start("a", address=proxy.address)
        await in_time(hold.reached.wait())
        hold.drop()
        await fleet.all_owned(items, a)
        nonces = {Holder.parse(lock.value).nonce for lock in (await fleet.cluster.locks()).values()}
        assert len(nonces) == 1
        assert all(lock.lock_index == 1 for lock in (await fleet.cluster.locks()).values())
        await a.close()


@pytest.mark.parametrize("applied", [True, False])
async def test_r9_a_hand_over_with_an_unknown_outcome_loses_no_item(fleet: Fleet, applied: bool) -> None:
    items = await fleet.items(30)

    def hands_over(seen: Seen) -> bool:
        return seen.path == "/v1/txn" and b'"Verb":"delete"' in seen.body and b'"Verb":"lock"' in seen.body

    async with Proxy(fleet.address) as proxy:
        a = await fleet.start("a", address=proxy.address)
        await fleet.all_owned(items, a)
        hold = proxy.hold(hands_over, answer=applied)
        b = await fleet.start("b")
        await in_time(hold.reached.wait())
        hold.drop()
        await eventually(lambda: _is(len(b.owned) >= 6))
        await fleet.all_owned(items, a, b)
        await a.close()


# -- what others leave behind ----------------------------------------------------------------------
async def test_w6_keys_made_by_hand_end_no_farm(fleet: Fleet) -> None:
    keys, client = fleet.cluster.keys, fleet.cluster.client
    a = await fleet.start("a")
    for folder in ("rcs", "pods", "intent", "nodes", "locks", "work", "farms", "reality", "failsafe"):
        await client.put(keys.tree(folder), b"")
        await client.put(keys.tree(folder) + "0/1/2/3/4/5", b"{}")
    await fleet.cluster.add_nodes({"n1": {}})
    rc = await fleet.cluster.create_rc("web", 1)

    async def placed() -> bool:
        return await fleet.cluster.pods(rc.id) == [("n1", "hello")]

    await eventually(placed)
    assert a.owned == {rc.id}
    assert not a.task.done()


async def test_a_mutation_lock_that_outlived_its_holder_keeps_no_worker_from_its_item(fleet: Fleet) -> None:
    keys, client = fleet.cluster.keys, fleet.cluster.client
    await fleet.cluster.add_nodes({"n1": {}})
    rc = await fleet.cluster.create_rc("web", 0)
    session = await client.create_session(name="person", ttl=3600)
    await client.put(keys.mutation_lock("rcs", rc.id), b"user/me/n", acquire=session)
    await client.put(keys.mutation_lock("rcs", "00gone"), b"user/me/n", acquire=session)
    a = await fleet.start("a")
    await eventually(lambda: _is(a.owned == {rc.id}))
    await fleet.cluster.change_rc(rc, replicas_desired=1)

    async def placed() -> bool:
        return bool(await fleet.cluster.pods(rc.id))

    await eventually(placed)
    await client.destroy_session(session)


async def test_w10_the_place_of_another_owners_intent_is_never_written(fleet: Fleet) -> None:
    """Also not while the intent is not known yet: creating one is compare-and-set 0."""
    await fleet.cluster.add_nodes({"n1": {}, "n2": {}})
    async with Proxy(fleet.address) as proxy:
        hold = proxy.hold(places_pods)
        a = await fleet.start("a", address=proxy.address, own_trees_pause=3600.0)
        rc = await fleet.cluster.create_rc("web", 1)
        await in_time(hold.reached.wait())
        foreign = {}
        for node in ("n1", "n2"):
            foreign[node, "hello"] = Intent(manifest="0" * 64, owner="somebody")
            await fleet.cluster.put(fleet.cluster.keys.intent(node, "hello"), foreign[node, "hello"])
        hold.release()

        async def blocked() -> bool:
            status = await fleet.cluster.status(rc)
            return status.state == "blocked" and "belongs to another owner" in status.reason

        await eventually(blocked)
        assert await fleet.cluster.intents() == foreign
        assert await fleet.cluster.pods(rc.id) == []
        await a.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_farm_may_claim_any_kind_alone(fleet: Fleet, kind: str) -> None:
    farm = await fleet.start("alone", kinds=(kind,))
    assert farm.farm.ready.is_set()
