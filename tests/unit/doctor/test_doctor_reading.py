"""How the doctor reads: side by side where that is safe, parts before their owners, and saying what."""

from __future__ import annotations

import asyncio
import sys
from typing import TypeVar

import click
import pytest

from farmd.cli import doctor
from farmd.cli.invocation import Invocation
from farmd.cli.settings import Settings
from farmd.commands.mutation import Call
from farmd.doctor.examine import examine
from store import families
from store.consul.client import ConsulClient
from store.embedded.server import InProcessTransport
from store.ports import Request, Response
from store.registration import register_cluster
from tests.people import KEYS
from tests.virtual import SeededIds, VirtualClock, embedded_server

T = TypeVar("T")

ANSWER_SECONDS = 2.0


class Slow(InProcessTransport):
    """A store that needs ``ANSWER_SECONDS`` for each answer, and notes when each path was asked for."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(embedded_server(clock))
        self.clock = clock
        self.slow = False
        self.asked: dict[str, float] = {}

    async def send(self, request: Request, timeout: float) -> Response:
        if self.slow:
            self.asked.setdefault(request.path, self.clock.mono())
            await self.clock.sleep(ANSWER_SECONDS)
        return await super().send(request, timeout)


async def examined(looking: asyncio.Task[T], clock: VirtualClock) -> T:
    """What an examination finds that waits for a dozen answers at most, one after the other."""
    await clock.advance(12 * ANSWER_SECONDS)
    looking.cancel()
    return await looking


async def slow_store() -> tuple[Slow, ConsulClient]:
    """A registered, empty, slow store."""
    clock = VirtualClock()
    transport = Slow(clock)
    client = ConsulClient(transport, clock=clock)
    await register_cluster(client, KEYS, SeededIds())
    transport.slow = True
    return transport, client


async def test_an_examination_of_a_slow_store_waits_for_few_answers_one_after_the_other() -> None:
    transport, client = await slow_store()
    looking = asyncio.create_task(examine(client, KEYS, transport.clock))
    report = await examined(looking, transport.clock)
    assert [finding.code for finding in report.findings] == ["no-farm"]


async def test_parts_are_read_before_what_they_belong_to() -> None:
    transport, client = await slow_store()
    looking = asyncio.create_task(examine(client, KEYS, transport.clock))
    await examined(looking, transport.clock)
    (base,) = {path.removesuffix("locks/") for path in transport.asked if path.endswith("/locks/")}
    at = {path.removeprefix(base).rstrip("/"): when for path, when in transport.asked.items()}
    owners = {at[family.name] for family in families.owners()}
    assert at["locks"] < at["intent"] < at["pods"] < at["nodes"] < min(owners)
    assert at["reality"] < at["intent"]
    assert at["reserved"] < at["pods"]
    assert at["manifests"] > max(owners)


@pytest.mark.parametrize("quiet", [False, True])
async def test_somebody_who_waits_at_a_terminal_is_told_what_is_being_read(
    quiet: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport, client = await slow_store()
    said: list[str] = []
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(click, "echo", lambda text, err=False: said.append(text) if err else None)
    call = Call(client, KEYS, transport.clock, SeededIds(), "user/ada@desk", "")

    async def look() -> None:
        async with doctor._steps_told(Invocation(Settings(quiet=quiet), call)) as step:
            await examine(client, KEYS, transport.clock, step)

    looking = asyncio.create_task(look())
    await examined(looking, transport.clock)
    told = [line.removeprefix("reading ") for line in said]
    if quiet:
        assert told == []
    else:
        assert told[0] == "Consul's agent and leader"
        assert any(line.startswith("rcs, ") for line in told)
