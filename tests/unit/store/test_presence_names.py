"""One live process a name; a dead one on this machine keeps nobody waiting (R7, R21)."""

from __future__ import annotations

import asyncio
import os
import subprocess
from typing import Any

import pytest

from store import codec
from store.consul.client import ConsulClient
from store.errors import Conflict, RecordInvalid, TransactionRejected
from store.farms import Member
from store.keys import Keys
from store.presence import announce, start_ticks, this_process
from tests.virtual import VirtualClock, embedded_client

KEY = Keys("t/").farm("farm-1")


class Store:
    async def set_up(self) -> None:
        self.clock = VirtualClock()
        self.client: ConsulClient = embedded_client(self.clock)
        self.first = await self.session()
        self.second = await self.session()

    async def session(self) -> str:
        return await self.client.create_session(name="t", ttl=10)

    async def announce(self, record: Member, session: str) -> int:
        running = asyncio.ensure_future(announce(self.client, KEY, record, session, clock=self.clock))
        while not running.done():  # a lock-delay of one millisecond follows the end of a session
            await self.clock.advance(0.01)
        return await running

    async def record(self) -> tuple[str, Member] | None:
        entry = await self.client.read(KEY)
        return None if entry is None else (entry.session, codec.decode(Member, entry.value, KEY))


@pytest.fixture
async def store() -> Store:
    made = Store()
    await made.set_up()
    return made


def member(**fields: Any) -> Member:
    """The presence of this very process, but for what ``fields`` say."""
    return Member(**({"id": "farm-1", "version": "1", "host": "here"} | this_process() | fields))


def dead_pid() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


async def test_a_free_name_is_taken_and_bound_to_the_session(store: Store) -> None:
    index = await store.announce(member(), store.first)
    entry = await store.client.read(KEY)
    assert entry is not None
    assert (entry.modify_index, entry.session) == (index, store.first)
    await store.client.destroy_session(store.first)
    assert await store.record() is None, "presence ends with the session"


@pytest.mark.parametrize("ticks", [1, 0], ids=["as written now", "by a version that writes no start"])
async def test_a_second_live_process_is_refused_and_told_where_the_first_is(store: Store, ticks: int) -> None:
    other = {"pid": os.getppid(), "ticks": ticks and start_ticks(os.getppid())}
    await store.announce(member(host="rack-7", **other), store.first)
    with pytest.raises(Conflict, match=f"'farm-1' is already alive on host rack-7 .process {os.getppid()}"):
        await store.announce(member(), store.second)
    found = await store.record()
    assert found is not None
    assert found[0] == store.first


async def test_a_process_that_died_on_this_machine_is_evicted(store: Store) -> None:
    await store.announce(member(pid=dead_pid()), store.first)
    await store.announce(member(), store.second)
    found = await store.record()
    assert found is not None
    assert (found[0], found[1].pid) == (store.second, os.getpid())


@pytest.mark.parametrize("known", [True, False], ids=["as written now", "by a version that writes no start"])
async def test_a_zombie_is_no_live_process(store: Store, known: bool) -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        zombie = {"pid": process.pid, "ticks": start_ticks(process.pid) if known else 0}
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it ended, and stays a zombie
        await store.announce(member(**zombie), store.first)
        await store.announce(member(), store.second)
    found = await store.record()
    assert found is not None
    assert (found[0], found[1].pid) == (store.second, os.getpid())


async def test_a_process_whose_id_is_used_again_is_evicted(store: Store) -> None:
    await store.announce(member(pid=os.getppid(), ticks=1), store.first)
    await store.announce(member(), store.second)
    found = await store.record()
    assert found is not None
    assert found[0] == store.second


async def test_a_process_id_that_is_none_is_no_live_process(store: Store) -> None:
    await store.announce(member(pid=2**63, ticks=0), store.first)
    await store.announce(member(), store.second)
    found = await store.record()
    assert found is not None
    assert found[0] == store.second


async def test_the_same_process_id_after_a_reboot_or_elsewhere_proves_nothing(store: Store) -> None:
    await store.announce(member(boot="another boot", pid=dead_pid()), store.first)
    with pytest.raises(Conflict, match="wait until that session expires"):
        await store.announce(member(), store.second)


@pytest.mark.parametrize("value", [b"", b"{", b'{"pid":"x"}'])
async def test_a_held_presence_that_does_not_decode_is_left_to_its_holder(store: Store, value: bytes) -> None:
    """It tells of no live process, so that nobody has to end for it; its holder mends it or expires."""
    await store.client.put(KEY, value, acquire=store.first)
    with pytest.raises(RecordInvalid):
        await store.announce(member(), store.second)
    await store.announce(member(), store.first)
    found = await store.record()
    assert found is not None
    assert found[0] == store.first


async def test_its_own_session_writes_the_record_anew(store: Store) -> None:
    await store.announce(member(host="a"), store.first)
    await store.announce(member(host="b"), store.first)
    found = await store.record()
    assert found is not None
    assert found[1].host == "b"


async def test_a_record_that_nobody_holds_is_taken_over(store: Store) -> None:
    await store.client.put(KEY, codec.encode(member(host="left behind")))
    await store.announce(member(host="here"), store.first)
    found = await store.record()
    assert found is not None
    assert (found[0], found[1].host) == (store.first, "here")


async def test_a_process_knows_its_own_presence_under_another_session(store: Store) -> None:
    """The session was not ended, or came back with a snapshot of Consul: it is no other process's."""
    await store.announce(member(), store.first)
    await store.announce(member(), store.second)
    found = await store.record()
    assert found is not None
    assert found[0] == store.second
    assert await store.client.session_info(store.first) is None, "nothing else can bear the name through it"


async def test_a_session_that_has_ended_is_no_conflict_over_the_name(store: Store) -> None:
    await store.client.destroy_session(store.first)
    with pytest.raises(TransactionRejected, match="session"):
        await store.announce(member(), store.first)
