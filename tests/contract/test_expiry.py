"""What ends by itself: sessions whose TTL is over, and the lock-delay after that.

Real time is waited for once: all cases of a face run together. On virtual time they are also exact.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.contract import faces
from tests.contract.faces import Face
from tests.fleet import in_time

TTL = 10.0


async def expires_after_twice_its_ttl(face: Face, behavior: str) -> None:
    """Measured: a TTL of 10 s ends after 20 s; the locks go by the session's behaviour."""
    session, other = await face.session(Behavior=behavior, LockDelay="0s"), await face.session(TTL="60s")
    key = face.key(f"expires-{behavior}")
    await face.client.put(key, b"1", acquire=session)
    index, _ = await face.client.get(key)
    watch = asyncio.ensure_future(face.client.get(key, index=index, wait=60))
    await face.elapse(1.3 * TTL)
    assert await face.client.session_info(session) is not None
    assert not watch.done()
    await face.elapse(0.7 * TTL + 0.1)
    _, entry = await in_time(watch)
    assert await face.client.session_info(session) is None
    assert (entry is None) if behavior == "delete" else (entry is not None and entry.session == "")
    assert await face.client.put(key, b"2", acquire=other)


async def lives_while_it_is_renewed(face: Face) -> None:
    """R1: a renewal starts the time again."""
    session = await face.session()
    await face.client.put(face.key("renewed"), b"1", acquire=session)
    for _ in range(2):
        await face.elapse(1.3 * TTL)
        await face.client.renew_session(session)
    assert (await face.client.read(face.key("renewed"))).session == session  # type: ignore[union-attr]


async def lock_delay_follows_expiry(face: Face) -> None:
    """Lock-delay follows invalidation, and its end wakes nobody."""
    # So long that a busy machine notices the expiry before the delay is over.
    session, other = await face.session(LockDelay="8s"), await face.session(TTL="60s")
    key = face.key("delayed")
    await face.client.put(key, b"1", acquire=session)
    index, _ = await face.client.get(key)
    watch = asyncio.ensure_future(face.client.get(key, index=index, wait=60))
    await face.elapse(2 * TTL + 0.1)
    index, _ = await in_time(watch)
    assert not await face.client.put(key, b"2", acquire=other)
    idle = asyncio.ensure_future(face.client.list(key, index=index, wait=60))
    await face.elapse(8.2)
    assert not idle.done()
    idle.cancel()
    assert await face.client.put(key, b"2", acquire=other)


async def never_expires_without_a_ttl(face: Face) -> None:
    """A session without a TTL ends by destruction only."""
    session = await face.session(TTL="")
    await face.elapse(2.5 * TTL)
    assert await face.client.session_info(session) is not None
    await face.client.destroy_session(session)


CASES = {
    "delete": lambda face: expires_after_twice_its_ttl(face, "delete"),
    "release": lambda face: expires_after_twice_its_ttl(face, "release"),
    "renewed": lives_while_it_is_renewed,
    "lock-delay": lock_delay_follows_expiry,
    "no ttl": never_expires_without_a_ttl,
}


@pytest.mark.slow
async def test_what_ends_by_itself_on_real_time(consul_dev: str) -> None:
    """Every case on the real server and on the embedded one over HTTP, all at once: 29 s in all."""
    async with faces.over_http(faces.REAL, consul_dev) as real, faces.embedded_http() as embedded:
        await asyncio.gather(*(case(face) for face in (real, embedded) for case in CASES.values()))


@pytest.mark.parametrize("case", CASES)
async def test_what_ends_by_itself_on_virtual_time(case: str) -> None:
    async with faces.embedded_inprocess() as face:
        await CASES[case](face)


async def test_expiry_is_exact_on_virtual_time() -> None:
    async with faces.embedded_inprocess() as face:
        session = await face.session(LockDelay="5s")
        await face.client.put(face.key("a"), b"1", acquire=session)
        await face.elapse(2 * TTL - 0.001)
        assert (await face.client.read(face.key("a"))).session == session  # type: ignore[union-attr]
        await face.elapse(0.001)
        assert await face.client.read(face.key("a")) is None
        other = await face.session()
        await face.elapse(4.999)
        assert not await face.client.put(face.key("a"), b"2", acquire=other)
        await face.elapse(0.001)
        assert await face.client.put(face.key("a"), b"2", acquire=other)


async def test_a_nearer_deadline_is_met_while_somebody_waits_for_a_later_one() -> None:
    """The task that ends sessions sleeps for the first deadline, also when that changes."""
    async with faces.embedded_inprocess() as face:
        long = await face.session(TTL="1000s")
        await face.client.put(face.key("long"), b"1", acquire=long)
        index, _ = await face.client.get(face.key("long"))
        idle = asyncio.ensure_future(face.client.get(face.key("long"), index=index, wait=500))
        await face.elapse(1)
        short = await face.session()
        await face.client.put(face.key("short"), b"1", acquire=short)
        index, _ = await face.client.get(face.key("short"))
        watch = asyncio.ensure_future(face.client.get(face.key("short"), index=index, wait=500))
        await face.elapse(2 * TTL)
        assert watch.done()
        assert not idle.done()
        idle.cancel()


async def test_a_wait_is_lengthened_by_up_to_a_sixteenth() -> None:
    async with faces.embedded_inprocess() as face:
        await face.client.put(face.key("a"), b"1")
        index, _ = await face.client.get(face.key("a"))
        watches = [
            asyncio.ensure_future(face.client.get(face.key("a"), index=index, wait=16)) for _ in range(50)
        ]
        await face.elapse(16)
        ended = [sum(watch.done() for watch in watches)]
        for _ in range(4):
            await face.elapse(0.25)
            ended.append(sum(watch.done() for watch in watches))
        assert ended[0] == 0
        assert ended == sorted(set(ended)), "the ends of 50 waits are spread over the jitter"
        assert ended[-1] == 50


async def test_a_tombstone_is_forgotten_after_a_quarter_of_an_hour() -> None:
    """Then an emptied prefix answers with the table's index again, as in Consul."""
    async with faces.embedded_inprocess() as face:
        await face.client.put(face.key("a/1"), b"1")
        await face.client.delete(face.key("a/1"))
        await face.client.put(face.key("b"), b"1")
        kept = (await face.client.list(face.key("a/"))).index
        await face.elapse(890)
        assert (await face.client.list(face.key("a/"))).index == kept
        await face.elapse(60)
        assert (await face.client.list(face.key("a/"))).index > kept
