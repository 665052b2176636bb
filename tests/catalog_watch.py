"""A service followed without a gap, as its readers find it and as Consul's records say that it is. For tests.

Whatever comes in bears Consul's index, which orders what the fleet knew and what the catalogue answered. The
seconds are of this process' monotonic clock, and are only reported.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec

from store import codec
from store.consul.client import ConsulClient
from store.entry import Entry
from store.keys import Keys, is_sentinel
from store.reality import Reality
from tests.catalogs import A, resolve
from tests.fleet import client_of

WAIT = 0.5


class _Service(msgspec.Struct, rename="pascal"):
    address: str


class _Found(msgspec.Struct, rename="pascal"):
    service: _Service


FOUND = msgspec.json.Decoder(list[_Found])


@dataclass(frozen=True)
class Said:
    """What was so from a Consul index on, and when this process heard of it."""

    index: int
    at: float
    what: frozenset[str]


@dataclass
class Watch:
    """What came in: the nodes' addresses whose pod serves, those that HTTP answered, those of DNS.

    ``hosts``: the address of each node.
    """

    name: str
    hosts: dict[str, str]
    serves: list[Said] = field(default_factory=list)
    answers: list[Said] = field(default_factory=list)
    dns: list[tuple[float, float, frozenset[str]]] = field(default_factory=list)

    @property
    def now(self) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
        """What serves, and what both kinds of readers find."""
        return self.serves[-1].what, self.answers[-1].what, self.dns[-1][2]

    def spells(self, address: str) -> list[tuple[Said, Said | None]]:
        """The times in which an address was known not to serve, after it had: its begin and its end."""
        found, since, before = list[tuple[Said, Said | None]](), None, False
        for each in self.serves:
            good = address in each.what
            if before and not good:
                since = each
            if good and since is not None:
                found.append((since, each))
                since = None
            before = good
        return [*found, (since, None)] if since is not None else found

    def judge(self) -> list[float]:
        """The seconds for which each address was still answered with after Consul had said that it is bad.

        Raises:
            AssertionError: an answer was empty, an address was answered with again before it served again, or
                it never left.
        """
        first = next(place for place, each in enumerate(self.answers) if each.what)
        assert all(each.what for each in self.answers[first:]), "an empty answer over HTTP"
        heard = self.answers[first].at
        assert all(what for began, _, what in self.dns if began > heard), "an empty answer of DNS"
        took = []
        for address in self.hosts.values():
            for bad, good in self.spells(address):
                until = good.index if good is not None else self.answers[-1].index + 1
                within = [each for each in self.answers if bad.index < each.index < until]
                left = next((each for each in within if address not in each.what), None)
                if left is None:  # it served again before any answer, or had left before
                    had = [each for each in self.answers if each.index <= bad.index][-1]
                    assert good is not None or address not in had.what, f"{address} never left"
                    continue
                after = [each for each in within if each.index >= left.index]
                again = [each.index for each in after if address in each.what]
                assert not again, f"{address} left at {left.index} and came back at {again}, bad since {bad}"
                seen = [each.at for each in after][-1]
                late = [began for began, ended, what in self.dns if address in what and left.at < began]
                assert not [began for began in late if began < seen - WAIT], f"DNS: {address} came back"
                took.append(max(0.0, left.at - bad.at))
        return took


@asynccontextmanager
async def watched(
    address: str, dns: tuple[str, int], keys: Keys, name: str, hosts: dict[str, str]
) -> AsyncIterator[Watch]:
    """A watch for the length of a ``with`` block; a follower that fails fails the block."""
    watch, client = Watch(name, hosts), client_of(address)
    try:
        async with asyncio.TaskGroup() as together:
            tasks = [
                together.create_task(each)
                for each in (_serving(client, keys, watch), _answers(client, watch), _resolved(dns, watch))
            ]
            while not (watch.serves and watch.answers and watch.dns):
                await asyncio.sleep(0.01)
            yield watch
            for task in tasks:
                task.cancel()
    finally:
        await client.close()


async def _serving(client: ConsulClient, keys: Keys, watch: Watch) -> None:
    """Follow what agents say of their pods."""
    index = 0
    while True:
        page = await client.list(keys.tree("reality"), index=index, wait=30.0)
        index, at = page.index, time.monotonic()
        if page.unchanged:
            continue
        good = set[str]()
        for entry in map(Entry.of, page.items):
            if is_sentinel(entry.key):
                continue
            said = codec.decode(Reality, entry.value, entry.key)
            if said.health.state == "passing" and said.phase == "running":
                good.add(watch.hosts[keys.reality_parts(entry.key)[0]])
        watch.serves.append(Said(index, at, frozenset(good)))


async def _answers(client: ConsulClient, watch: Watch) -> None:
    """Follow what a proxy would send requests to."""
    index = 0
    while True:
        params = (("passing", "1"),)
        index, found = await client.catalog(
            f"health/service/{watch.name}", FOUND, params, index=index, wait=WAIT
        )
        what = frozenset(each.service.address for each in found)
        watch.answers.append(Said(index, time.monotonic(), what))


async def _resolved(dns: tuple[str, int], watch: Watch) -> None:
    """Ask Consul's DNS over TCP again and again."""
    while True:
        began = time.monotonic()
        found = await asyncio.to_thread(resolve, *dns, f"{watch.name}.service.consul", A)
        watch.dns.append((began, time.monotonic(), frozenset(found)))
        await asyncio.sleep(0.01)
