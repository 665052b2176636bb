"""R18, R19: doubt freezes removals for all, nobody thaws what another doubts, people have the last word."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest
from prometheus_client import CollectorRegistry

from farmd.failsafe.alerts import FreezeAlerts
from farmd.failsafe.evidence import NO_LEADER, mass_failure, mass_loss, too_many_broken, undecodable
from farmd.failsafe.guard import FailsafeGuard, RemovalBudget
from farmd.observe.recorder import Metrics
from store import codec, failsafe
from store.cache import PrefixCache
from store.consul.client import ConsulClient
from store.embedded.server import InProcessTransport
from store.errors import StoreUnavailable
from store.failsafe import Acknowledgement, Failsafe, FailsafeStore
from store.keys import Keys
from store.ports import Request
from store.registration import register_cluster
from tests.fleet import Inbox
from tests.toys import Faulty, is_transaction
from tests.virtual import SeededIds, VirtualClock, embedded_server

KEYS = Keys("t/")
KEY = KEYS.failsafe("rcs")
THAW = 10.0


class Guarded:
    """One farm's guard; ``evidence`` is what it finds, ``changes`` what its subscribers saw."""

    def __init__(self, fleet: Fleet, name: str) -> None:
        self.evidence: str | None = None
        self.in_force = True
        self.transport = Faulty(InProcessTransport(fleet.server))
        client = ConsulClient(self.transport, clock=fleet.clock)

        def present(farm: str) -> bool:
            return farm in fleet.present

        self.cache: PrefixCache[Failsafe] = PrefixCache(
            client,
            KEYS,
            "failsafe",
            Failsafe,
            cluster=fleet.cluster,
            clock=fleet.clock,
            rng=random.Random(name),
        )
        self.inbox = Inbox()
        self.registry = CollectorRegistry()
        self.guard = FailsafeGuard(
            "rcs",
            name,
            [lambda: self.evidence],
            self.cache,
            client,
            KEYS,
            fleet.clock,
            Metrics(self.registry),
            FreezeAlerts(name, self.cache, self.inbox, present=present),
            THAW,
            present=present,
            fence=lambda: [] if self.in_force else None,
            reread=lambda evidence: self.reread(evidence),  # noqa: PLW0108 - a test replaces it
            newest=lambda: 7,
        )
        self.changes: list[str | None] = []
        self.guard.subscribe(lambda: self.changes.append(self.guard.frozen()))
        self.tasks = [asyncio.create_task(self.cache.run()), asyncio.create_task(self.guard.run())]
        fleet.present.add(name)

    async def reread(self, evidence: str) -> None:
        """What it finds stays as it is; a test replaces this."""

    @property
    def frozen(self) -> str | None:
        return self.guard.frozen()


class Fleet:
    async def set_up(self) -> None:
        self.clock = VirtualClock()
        self.server = embedded_server(self.clock)
        self.client = ConsulClient(InProcessTransport(self.server), clock=self.clock)
        self.cluster = await register_cluster(self.client, KEYS, SeededIds())
        self.present: set[str] = set()
        self.guards: list[Guarded] = []

    async def guard(self, name: str) -> Guarded:
        self.guards.append(Guarded(self, name))
        await self.clock.advance(2.0)
        return self.guards[-1]

    async def record(self) -> Failsafe | None:
        entry = await self.client.read(KEY)
        return None if entry is None else codec.decode(Failsafe, entry.value, KEY)

    async def acknowledge(self, evidence: str, seconds: float) -> None:
        store = FailsafeStore(self.client, KEYS)
        stored = await store.get("rcs")
        assert stored is not None
        word = Acknowledgement(evidence, "user/me", self.clock.now() + seconds, "known")
        await self.client.transaction([store.acknowledge(stored, word)])
        await self.clock.settle()

    async def close(self) -> None:
        tasks = [task for guard in self.guards for task in guard.tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    made = Fleet()
    await made.set_up()
    yield made
    await made.close()


async def test_r18_doubt_freezes_this_farm_and_all_others(fleet: Fleet) -> None:
    a, b = await fleet.guard("a"), await fleet.guard("b")
    assert (a.frozen, b.frozen) == (None, None)
    a.evidence = "x: gone"
    await fleet.clock.advance(2.0)
    assert (a.frozen, b.frozen) == ("x: gone", "x: gone")
    record = await fleet.record()
    assert record is not None
    assert (record.by, record.evidence) == ("farm/a", "x: gone")
    assert a.registry.get_sample_value("farmd_frozen", {"kind": "rcs"}) == 1


async def test_r18_it_lasts_while_the_evidence_does_and_two_waits_longer(fleet: Fleet) -> None:
    a, b = await fleet.guard("a"), await fleet.guard("b")
    a.evidence = "x: gone"
    await fleet.clock.advance(600.0)
    assert b.frozen
    first = await fleet.client.read(KEY)
    assert first is not None
    a.evidence = None
    await fleet.clock.advance(THAW - 1.5)
    assert (a.frozen, b.frozen) == ("x: gone", "x: gone")
    unchanged = await fleet.client.read(KEY)
    assert unchanged is not None
    assert unchanged.modify_index == first.modify_index, "written once, not each second"
    await fleet.clock.advance(4.0)
    assert (a.frozen, b.frozen) == (None, None)
    assert await fleet.record() is None


async def test_r18_nobody_thaws_what_another_present_farm_doubts(fleet: Fleet) -> None:
    a, b = await fleet.guard("a"), await fleet.guard("b")
    await fleet.clock.advance(300.0)
    a.evidence = "x: gone"
    seen = set()
    for _ in range(120):
        await fleet.clock.advance(0.5)
        seen.add(b.frozen)
    assert seen == {None, "x: gone"}
    assert b.changes == ["x: gone"], "frozen once, and it stays so"


async def test_r18_the_doubt_of_a_farm_that_is_gone_ends_two_waits_after_it_was_seen(fleet: Fleet) -> None:
    a, b = await fleet.guard("a"), await fleet.guard("b")
    await fleet.clock.advance(300.0)
    a.evidence = "x: gone"
    await fleet.clock.advance(2.0)
    for task in a.tasks:
        task.cancel()
    fleet.present.discard("a")
    await fleet.clock.advance(THAW - 4.0)
    assert b.frozen == "x: gone"
    await fleet.clock.advance(6.0)
    assert b.frozen is None
    assert await fleet.record() is None


async def test_r18_two_farms_with_different_doubts_do_not_fight_over_the_record(fleet: Fleet) -> None:
    a, b = await fleet.guard("a"), await fleet.guard("b")
    a.evidence, b.evidence = "x: gone", "y: gone"
    await fleet.clock.advance(3.0)
    first = await fleet.client.read(KEY)
    await fleet.clock.advance(60.0)
    later = await fleet.client.read(KEY)
    assert first is not None
    assert later is not None
    assert later.modify_index == first.modify_index
    assert a.frozen
    assert b.frozen


async def test_r18_a_freeze_that_one_farm_ended_is_not_recorded_again_from_anothers_memory(
    fleet: Fleet,
) -> None:
    a, b = await fleet.guard("a"), await fleet.guard("b")
    a.evidence = "x: gone"
    await fleet.clock.advance(2.0)
    b.evidence = "x: gone"
    a.evidence = None
    await fleet.clock.advance(THAW / 2)
    b.evidence = None
    await fleet.clock.advance(THAW + 3.0)
    assert (a.frozen, b.frozen) == (None, None)
    assert await fleet.record() is None


async def test_r18_the_memory_of_a_farm_whose_session_was_not_in_force_binds_that_farm_alone(
    fleet: Fleet,
) -> None:
    a, b = await fleet.guard("a"), await fleet.guard("b")
    a.in_force, a.evidence = False, "x: gone"
    await fleet.clock.advance(3.0)
    a.in_force, a.evidence = True, None
    await fleet.clock.advance(THAW / 2)
    assert (a.frozen, b.frozen) == ("x: gone", None)
    assert await fleet.record() is None
    assert a.guard.commanded(8), "a person's command after the doubt began counts, recorded or not"
    assert not a.guard.commanded(7)


async def test_r18_what_a_farm_does_not_find_in_a_new_read_is_no_evidence_for_others(fleet: Fleet) -> None:
    a, b = await fleet.guard("a"), await fleet.guard("b")

    async def reread(evidence: str) -> None:
        a.evidence = None

    a.reread = reread  # type: ignore[method-assign]
    a.evidence = "x: gone"
    await fleet.clock.advance(3.0)
    assert (a.frozen, b.frozen) == ("x: gone", None)
    assert await fleet.record() is None


async def test_r18_a_workers_report_is_recorded_once_the_store_takes_it(fleet: Fleet) -> None:
    a, b = await fleet.guard("a"), await fleet.guard("b")

    async def refuse(request: Request) -> None:
        if is_transaction(request):
            raise StoreUnavailable("no")

    a.transport.before = refuse
    a.guard.report("rcs: too many removals a minute")
    await fleet.clock.advance(3.0)
    assert (a.frozen, b.frozen) == ("rcs: too many removals a minute", None)
    a.transport.before = None
    await fleet.clock.advance(2.0)
    assert b.frozen


async def test_r19_no_leader_that_an_earlier_version_recorded_binds_nobody(fleet: Fleet) -> None:
    a = await fleet.guard("a")
    await fleet.client.put(KEY, codec.encode(Failsafe(evidence=NO_LEADER, by="farm/old")))
    await fleet.clock.advance(1.0)
    assert a.frozen is None
    await fleet.clock.advance(THAW + 2.0)
    assert await fleet.record() is None


async def test_r18_an_acknowledgement_of_this_very_evidence_thaws_until_it_expires(fleet: Fleet) -> None:
    a, b = await fleet.guard("a"), await fleet.guard("b")
    a.evidence = "x: gone"
    await fleet.clock.advance(2.0)
    await fleet.acknowledge("x: gone", 60.0)
    assert (a.frozen, b.frozen) == (None, None)
    await fleet.clock.advance(58.0)
    assert (a.frozen, b.frozen) == (None, None)
    await fleet.clock.advance(5.0)
    assert (a.frozen, b.frozen) == ("x: gone", "x: gone")
    assert b.changes == ["x: gone", None, "x: gone"], "whoever waits for the thaw is told"


async def test_r18_other_evidence_freezes_in_spite_of_an_acknowledgement(fleet: Fleet) -> None:
    a, b = await fleet.guard("a"), await fleet.guard("b")
    a.evidence = "x: gone"
    await fleet.clock.advance(2.0)
    await fleet.acknowledge("x: gone", 600.0)
    a.evidence = "y: gone"
    await fleet.clock.advance(3.0)
    assert (a.frozen, b.frozen) == ("y: gone", "y: gone")


async def test_r18_a_farm_that_cannot_write_obeys_its_own_doubt(fleet: Fleet) -> None:
    a = await fleet.guard("a")

    async def refuse(request: Request) -> None:
        if is_transaction(request):
            raise StoreUnavailable("no")

    a.transport.before = refuse
    a.evidence = "x: gone"
    await fleet.clock.advance(2.0)
    assert a.frozen == "x: gone"
    assert await fleet.record() is None
    a.evidence = None
    await fleet.clock.advance(THAW + 2)
    assert a.frozen is None


async def test_r18_commands_after_the_freeze_can_be_told_on_every_farm(fleet: Fleet) -> None:
    a, b = await fleet.guard("a"), await fleet.guard("b")
    a.evidence = "x: gone"
    await fleet.clock.advance(2.0)
    entry = await fleet.client.read(KEY)
    assert entry is not None
    assert (a.guard.frozen_index(), b.guard.frozen_index()) == (entry.create_index, entry.create_index)
    await fleet.acknowledge("x: gone", 1.0)
    await fleet.clock.advance(3.0)
    assert (a.guard.frozen_index(), b.guard.frozen_index()) == (entry.create_index, entry.create_index)


async def test_r18_one_high_alert_an_incident_and_its_end(fleet: Fleet) -> None:
    a = await fleet.guard("a")
    a.evidence = "x: gone"
    await fleet.clock.advance(60.0)
    assert [(alert.urgency, alert.incident_key) for alert in a.inbox.fired] == [("high", "failsafe_gone")]
    a.evidence = None
    await fleet.clock.advance(THAW + 5)
    assert a.inbox.firing == {}
    assert len(a.inbox.fired) == 1


async def test_r18_p2s_incident_keys_are_kept(fleet: Fleet) -> None:
    a = await fleet.guard("a")
    a.evidence = "rcs: the answer lacks the sentinel"
    await fleet.clock.advance(2.0)
    assert list(a.inbox.firing) == ["no_rcs_found"]
    a.evidence = None
    await fleet.clock.advance(THAW + 5)
    assert a.inbox.firing == {}


async def test_r20_nothing_is_written_into_a_store_that_is_not_known_to_be_ours(fleet: Fleet) -> None:
    a = await fleet.guard("a")
    await fleet.client.delete(KEYS.prefix, recurse=True)
    a.evidence = "rcs: the answer lacks the sentinel"
    await fleet.clock.advance(60.0)
    assert a.frozen
    assert (await fleet.client.list(KEYS.prefix)).items == []


async def test_w6_a_freeze_that_does_not_decode_is_one_until_a_person_looked(fleet: Fleet) -> None:
    a = await fleet.guard("a")
    await fleet.client.put(KEY, b"{")
    await fleet.clock.advance(60.0)
    assert a.frozen == "failsafe: the record of the freeze does not decode"
    await fleet.client.delete(KEY)
    await fleet.clock.advance(2.0)
    assert a.frozen is None
    assert a.changes[-1] is None


async def test_r19_a_workers_report_is_evidence(fleet: Fleet) -> None:
    a, b = await fleet.guard("a"), await fleet.guard("b")
    a.guard.report("rcs: too many removals a minute")
    await fleet.clock.advance(2.0)
    assert b.frozen == "rcs: too many removals a minute"


# -- what counts as evidence (R19) -----------------------------------------------------------------
@pytest.mark.parametrize(
    ("registered", "present", "doubted"),
    [
        (0, 0, False),
        (1, 0, False),
        (2, 1, False),
        (2, 0, True),
        (3, 2, False),
        (3, 1, True),
        (4, 2, False),
        (4, 1, True),
        (10, 5, False),
        (10, 4, True),
        (1000, 600, False),
    ],
)
def test_r19_mass_loss_of_agents(registered: int, present: int, doubted: bool) -> None:
    assert bool(mass_loss(registered, present)) == doubted


@pytest.mark.parametrize(
    ("good", "bad", "doubted"), [(0, 0, False), (0, 1, False), (100, 1, False), (9, 2, False), (7, 2, True)]
)
async def test_r19_a_share_of_records_that_does_not_decode(
    fleet: Fleet, good: int, bad: int, doubted: bool
) -> None:
    ids = SeededIds(5)
    for number in range(good + bad):
        value = b"{" if number < bad else codec.encode(Failsafe(evidence="x"))
        await fleet.client.put(KEYS.failsafe(ids.new()), value)
    a = await fleet.guard("a")
    assert bool(undecodable(a.cache)) == doubted  # type: ignore[arg-type]


def spread(count: int, first: int = 0) -> list[str]:
    """So many nodes, with one removal each."""
    return [f"n{number}" for number in range(first, first + count)]


@pytest.mark.parametrize(
    ("failing", "instances", "mass"), [(20, 39, True), (20, 40, False), (19, 20, False), (20, 100, False)]
)
def test_r19_more_than_half_of_the_instances_fail_at_once(failing: int, instances: int, mass: bool) -> None:
    assert (mass_failure(failing, instances) is not None) == mass


@pytest.mark.parametrize(("broken", "whole", "many"), [(20, 100, False), (21, 100, True), (1, 1, False)])
def test_r19_more_than_a_fifth_of_the_records_do_not_decode(broken: int, whole: int, many: bool) -> None:
    assert too_many_broken(broken, whole) == many


def alone() -> int:
    """One farm."""
    return 1


def test_w17_farms_of_a_small_fleet_share_what_is_always_allowed() -> None:
    clock, farms = VirtualClock(), 5
    budgets = [RemovalBudget(clock, lambda: farms) for _ in range(farms)]
    nodes = iter(spread(100))
    removed = sum(budget.allows([next(nodes)], 20) for budget in budgets for _ in range(20))
    assert removed == 40, "of a hundred pods; each with a floor of its own would remove them all"
    assert RemovalBudget(clock, lambda: 50).allows(spread(8), 2), "what one worker moves at once"
    lone = RemovalBudget(clock, lambda: 50)
    assert lone.allows(["n0"] * 40, 2)
    assert lone.allows(["n1"], 2), "one elsewhere is no mass removal"
    assert not lone.allows(["n2"], 2)


def test_r19_what_one_farm_removes_is_no_other_farms_budget() -> None:
    """So a budget bounds the mistakes of its own farm, and nobody who writes in the place of a farm."""
    clock = VirtualClock()
    mine, other = RemovalBudget(clock, lambda: 2), RemovalBudget(clock, lambda: 2)
    assert other.allows(spread(30), 100)
    assert not other.allows(spread(1, 30), 100)
    assert mine.allows(spread(30), 100)


def test_r19_a_removal_budget_counts_a_minute() -> None:
    clock = VirtualClock()
    budget = RemovalBudget(clock, alone)
    assert budget.allows(spread(20), 10), "a handful is always allowed"
    assert not budget.allows(spread(1, 20), 10)
    assert budget.allows(spread(280, 20), 1000)
    assert not budget.allows(spread(1, 300), 1000)
    clock._seconds += 59.9
    assert not budget.allows(spread(1, 300), 1000)
    clock._seconds += 0.1
    assert budget.allows(spread(300), 1000)


def test_r19_what_is_handed_over_counts_for_both_farms_in_that_minute_and_no_more() -> None:
    """A farm hands half of its pods to one that joins, after it has spent its whole budget."""
    clock, farms = VirtualClock(), 2
    giver, receiver = [RemovalBudget(clock, lambda: farms) for _ in range(2)]
    nodes = iter(spread(2000))
    spent = sum(giver.allows([next(nodes)], 300) for _ in range(300))
    assert spent == 90
    spent += sum(budget.allows([next(nodes)], 150) for budget in (giver, receiver) for _ in range(300))
    assert spent == 0.3 * (300 + 150)
    clock._seconds += 61
    assert sum(budget.allows([next(nodes)], 150) for budget in (giver, receiver) for _ in range(300)) == 90


def test_r19_one_node_may_be_emptied_whatever_share_of_the_fleet_that_is() -> None:
    clock = VirtualClock()
    budget = RemovalBudget(clock, alone)
    assert budget.allows(["n0"] * 40, 120)
    assert budget.allows(["n0"] * 10, 120)
    assert budget.allows(["n1"] * 3, 120), "what happens elsewhere meanwhile"
    assert not budget.allows(["n1"], 120), "two nodes are more than one that fails"
    clock._seconds += 61
    assert budget.allows(["n1"] * 40, 120)


def test_r19_what_was_not_made_is_given_back_and_no_more_than_was_spent() -> None:
    budget = RemovalBudget(VirtualClock(), alone)
    assert budget.allows(spread(20), 10)
    budget.give_back(spread(10))
    assert not budget.allows(spread(11), 10)
    assert budget.allows(spread(10), 10)
    budget.give_back(spread(100))
    assert budget.allows(spread(20), 10)
    assert not budget.allows(spread(1, 20), 10)


def test_a_word_for_another_evidence_or_time_is_none() -> None:
    word = Acknowledgement("x", "me", 100.0)
    assert not failsafe.frozen(Failsafe(evidence="x", acknowledgement=word), 99.0)
    assert failsafe.frozen(Failsafe(evidence="x", acknowledgement=word), 100.0)
    assert failsafe.frozen(Failsafe(evidence="y", acknowledgement=word), 99.0)
    assert not failsafe.frozen(None, 0.0)
