"""R18: one cause is one incident, whatever it freezes wherever; whoever is left says when it is over."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest
from prometheus_client import CollectorRegistry

from farmd.failsafe.alerts import FreezeAlerts, incident_key
from farmd.failsafe.guard import FailsafeGuard
from farmd.observe.recorder import Metrics
from store.cache import PrefixCache
from store.consul.client import ConsulClient
from store.embedded.server import InProcessTransport
from store.errors import OutcomeUnknown, StoreUnavailable, TransactionRejected
from store.failsafe import Acknowledgement, Failsafe, FailsafeStore
from store.keys import Keys
from store.ports import Request, Response
from store.registration import register_cluster
from tests.fleet import Inbox
from tests.toys import Faulty, is_transaction
from tests.virtual import SeededIds, VirtualClock, embedded_server

KEYS = Keys("t/")
THAW = 10.0
LOST = "agents: more than 50% of the nodes are absent"
KEY = "failsafe_more_than_50_of_the_nodes_are_absent"
KINDS = ("rcs", "nodes", "daemonsets")


async def _read_again(evidence: str) -> None:
    """What these farms find stays as it is."""


class FarmOfGuards:
    """The guards of one farm; ``evidence`` is what each of them finds."""

    def __init__(self, fleet: Fleet, name: str) -> None:
        self.name = name
        self.fleet = fleet
        self.evidence: str | None = None
        self.inbox = Inbox()
        self.transport = Faulty(InProcessTransport(fleet.server))
        client = ConsulClient(self.transport, clock=fleet.clock)
        cache: PrefixCache[Failsafe] = PrefixCache(
            client,
            KEYS,
            "failsafe",
            Failsafe,
            cluster=fleet.cluster,
            clock=fleet.clock,
            rng=random.Random(name),
        )

        def present(farm: str) -> bool:
            return farm in fleet.present

        alerts = FreezeAlerts(name, cache, self.inbox, present=present)
        metrics = Metrics(CollectorRegistry())
        self.guards = [
            FailsafeGuard(
                kind,
                name,
                [lambda: self.evidence],
                cache,
                client,
                KEYS,
                fleet.clock,
                metrics,
                alerts,
                THAW,
                present=present,
                fence=list,
                reread=_read_again,
                newest=lambda: 1,
            )
            for kind in KINDS
        ]
        self.tasks = [asyncio.create_task(cache.run())]
        self.tasks += [asyncio.create_task(guard.run()) for guard in self.guards]
        fleet.present.add(name)

    async def die(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.fleet.present.discard(self.name)

    @property
    def told(self) -> tuple[list[str], list[str]]:
        """Incident keys of what this farm told people: fired, resolved."""
        return [alert.incident_key for alert in self.inbox.fired], self.inbox.resolved


class Fleet:
    async def set_up(self) -> None:
        self.clock = VirtualClock()
        self.server = embedded_server(self.clock)
        self.client = ConsulClient(InProcessTransport(self.server), clock=self.clock)
        self.cluster = await register_cluster(self.client, KEYS, SeededIds())
        self.present: set[str] = set()
        self.farms: list[FarmOfGuards] = []

    async def farm(self, name: str) -> FarmOfGuards:
        self.farms.append(FarmOfGuards(self, name))
        await self.clock.advance(2.0)
        return self.farms[-1]

    async def doubt(self, evidence: str | None, *farms: FarmOfGuards) -> None:
        """From now on these farms find this."""
        for farm in farms:
            farm.evidence = evidence
            await self.clock.advance(0.3)
        await self.clock.advance(3.0)


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    made = Fleet()
    await made.set_up()
    yield made
    for farm in made.farms:
        await farm.die()


async def test_one_cause_that_freezes_all_kinds_of_all_farms_is_told_once_and_ended_once(
    fleet: Fleet,
) -> None:
    a, b = await fleet.farm("a"), await fleet.farm("b")
    await fleet.doubt(LOST, a, b)
    assert all(guard.frozen() == LOST for farm in (a, b) for guard in farm.guards)
    assert (a.told, b.told) == (([KEY], []), ([], []))
    assert a.inbox.fired[0].details["evidence"] == LOST
    await fleet.doubt(None, a, b)
    await fleet.clock.advance(THAW + 8)
    assert not any(guard.frozen() for farm in (a, b) for guard in farm.guards)
    assert (a.told, b.told) == (([KEY], [KEY]), ([], []))


async def test_a_word_of_a_person_on_all_freezes_of_an_incident_acknowledges_it_once(fleet: Fleet) -> None:
    a, b = await fleet.farm("a"), await fleet.farm("b")
    await fleet.doubt(LOST, a, b)
    store = FailsafeStore(fleet.client, KEYS)
    until = fleet.clock.now() + 600

    async def acknowledge(*kinds: str) -> None:
        records = await store.list()
        words = [store.acknowledge(records[kind], Acknowledgement(LOST, "user/ada", until)) for kind in kinds]
        await fleet.client.transaction(words)
        await fleet.clock.advance(3.0)

    await acknowledge("rcs")
    assert a.inbox.firing[KEY].state == "firing"
    await acknowledge("nodes", "daemonsets")
    said = a.inbox.firing[KEY]
    assert (said.state, said.details["acknowledged_by"]) == ("acknowledged", "user/ada")
    assert KEY not in b.inbox.firing
    await fleet.doubt(None, a, b)
    await fleet.clock.advance(THAW + 8)
    assert (a.told, b.told) == (([KEY], [KEY]), ([], []))


async def test_a_freeze_that_outlived_its_farm_is_ended_by_whoever_clears_it(fleet: Fleet) -> None:
    a, b = await fleet.farm("a"), await fleet.farm("b")
    await fleet.doubt(LOST, a)
    await a.die()
    await fleet.clock.advance(THAW + 8)
    assert b.told == ([], [KEY])
    assert (await fleet.client.list(KEYS.failsafe("rcs"))).items == []


async def test_whoever_doubts_too_takes_the_word_of_a_farm_that_is_gone_and_fires_nothing_again(
    fleet: Fleet,
) -> None:
    a, b = await fleet.farm("a"), await fleet.farm("b")
    await fleet.doubt(LOST, a, b)
    await a.die()
    await fleet.clock.advance(60.0)
    assert b.told == ([], [])
    await fleet.doubt(None, b)
    await fleet.clock.advance(THAW + 8)
    assert b.told == ([], [KEY])


async def test_a_farm_that_comes_back_does_not_fire_what_it_had_fired_before(fleet: Fleet) -> None:
    a = await fleet.farm("a")
    await fleet.doubt(LOST, a)
    await a.die()
    again = await fleet.farm("a")
    await fleet.doubt(LOST, again)
    assert again.told == ([], [])
    await fleet.doubt(None, again)
    await fleet.clock.advance(THAW + 8)
    assert again.told == ([], [KEY])


async def test_two_causes_are_two_incidents(fleet: Fleet) -> None:
    a, b = await fleet.farm("a"), await fleet.farm("b")
    await fleet.doubt(LOST, a)
    await fleet.doubt("store: no leader", b)
    assert (a.told[0], b.told[0]) == ([KEY], ["failsafe_no_leader"])
    await fleet.doubt(None, b)
    await fleet.clock.advance(THAW + 8)
    assert (a.told[1], b.told[1]) == ([], ["failsafe_no_leader"])


async def test_a_farm_that_can_record_nothing_speaks_for_itself(fleet: Fleet) -> None:
    a = await fleet.farm("a")

    async def refuse(request: Request) -> None:
        if is_transaction(request):
            raise StoreUnavailable("no")

    a.transport.before = refuse
    await fleet.doubt("store: no leader", a)
    assert a.told == (["failsafe_no_leader"], [])
    await fleet.doubt(None, a)
    await fleet.clock.advance(THAW + 8)
    assert a.told == (["failsafe_no_leader"], ["failsafe_no_leader"])


async def test_a_record_whose_answer_was_lost_is_told_all_the_same(fleet: Fleet) -> None:
    a = await fleet.farm("a")

    async def lose(request: Request, response: Response) -> None:
        if is_transaction(request):
            a.transport.after = None
            raise OutcomeUnknown("lost")

    a.transport.after = lose
    await fleet.doubt(LOST, a)
    assert a.told == ([KEY], [])


async def test_the_second_time_is_told_again(fleet: Fleet) -> None:
    a = await fleet.farm("a")
    for _ in range(2):
        await fleet.doubt(LOST, a)
        await fleet.doubt(None, a)
        await fleet.clock.advance(THAW + 8)
    assert a.told == ([KEY, KEY], [KEY, KEY])


async def test_a_farm_whose_record_is_rejected_each_time_speaks_for_itself(fleet: Fleet) -> None:
    a = await fleet.farm("a")

    async def reject(request: Request) -> None:
        if is_transaction(request):
            raise TransactionRejected(())

    a.transport.before = reject
    await fleet.doubt("store: no leader", a)
    assert a.told == (["failsafe_no_leader"], [])


async def test_r18_a_freeze_that_does_not_decode_is_told_and_never_written_over(fleet: Fleet) -> None:
    illegible = "failsafe_the_record_of_the_freeze_does_not_decode"
    broken = b'{"evidence": 5}'
    await fleet.client.put(KEYS.failsafe("rcs"), broken)
    a = await fleet.farm("a")
    await fleet.clock.advance(5.0)
    assert a.guards[0].frozen()
    assert a.told == ([illegible], [])
    await fleet.doubt(LOST, a)
    assert a.told == ([illegible, KEY], [])
    sent = len([request for request in a.transport.sent if is_transaction(request)])
    await fleet.clock.advance(120.0)
    assert len([request for request in a.transport.sent if is_transaction(request)]) == sent
    entry = await fleet.client.read(KEYS.failsafe("rcs"))
    assert entry is not None
    assert entry.value == broken
    await fleet.client.delete(KEYS.failsafe("rcs"))
    await fleet.doubt(None, a)
    await fleet.clock.advance(THAW + 8)
    assert a.told == ([illegible, KEY], [illegible, KEY])


@pytest.mark.parametrize(
    ("evidence", "key"),
    [
        ("rcs: the answer lacks the sentinel", "no_rcs_found"),
        ("pods: the answer lacks the sentinel", "failsafe_the_answer_lacks_the_sentinel"),
        ("agents: the answer lacks the sentinel", "failsafe_the_answer_lacks_the_sentinel"),
        (LOST, KEY),
        ("odd", "failsafe_odd"),
    ],
)
def test_an_evidence_has_one_key_whichever_tree_shows_it(evidence: str, key: str) -> None:
    assert incident_key(evidence) == key
