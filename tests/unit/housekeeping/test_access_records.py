"""How people's commands in pods ended: noted by the agent, moved to the audit log by a farm (R42)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from farmd.agent.access import BURNT_SECONDS, OneTimeKeys
from farmd.agent.access_records import AGAIN_SECONDS, AccessRecords
from farmd.housekeeping.chores import AccessAuditing
from farmd.runtime import tasks
from store import access, codec
from store.access import AccessRecord, Asked, Exec, OneTime
from store.audit import Audit, AuditReader, Filter
from store.errors import AccessDenied, StoreUnavailable
from store.ports import Request
from tests.house import HOUR, House, house

IDENT = "0" * 64
ASKED = OneTime(
    cluster="c", instance="web", request=Asked("GET", "/"), issued=0, expires=30, by="user/mia@here",
    reason="look", exec=Exec(command=("rm", "a b"), action="pod.cp"),
)  # fmt: skip


@pytest.fixture
async def home() -> AsyncIterator[House]:
    async with house() as made:
        yield made


def records(home: House, node: str = "n1") -> AccessRecords:
    present = asyncio.Event()
    present.set()
    return AccessRecords(home.context.client, home.keys, node, home.clock, present)


async def begin(home: House, by: AccessRecords, ident: str = IDENT, asked: OneTime = ASKED) -> None:
    await home.client.transaction([by.begin(ident, asked)])


async def note(home: House, ident: str = IDENT) -> AccessRecord | None:
    entry = await home.client.read(home.keys.access(access.ENDS, "n1", ident))
    return None if entry is None else codec.decode(AccessRecord, entry.value, entry.key)


async def audited(home: House) -> list[Audit]:
    await AccessAuditing(home.context, home.settings, home.writer, {}).round()
    return list(await AuditReader(home.client, home.keys).read(Filter(kind="pods"), 99))


async def test_r42_an_end_is_noted_by_the_agent_and_audited_by_a_farm(home: House) -> None:
    by = records(home)
    running = asyncio.create_task(by.run())
    await begin(home, by)
    await home.clock.advance(1)
    assert await audited(home) == []  # it still runs
    by.end(IDENT, {"code": 3, "seconds": 7, "other": "no"})
    await home.clock.advance(1)
    [found] = await audited(home)
    assert await note(home) is None
    assert (found.actor, found.action, found.id, found.reason, found.after) == (
        "agent/n1",
        "pod.cp-ended",
        "n1/web",
        "look",
        {"by": "user/mia@here", "command": "rm 'a b'", "code": 3, "seconds": 7},
    )
    assert len(await audited(home)) == 1
    await tasks.end(running)


async def test_r42_the_next_agent_completes_what_a_killed_one_left_once_the_store_answers(
    home: House,
) -> None:
    await begin(home, records(home))
    assert home.faulty is not None

    async def away(_: Request) -> None:
        raise StoreUnavailable("away")

    home.faulty.before = away
    by = records(home)
    running = asyncio.create_task(by.run())
    await home.clock.advance(AGAIN_SECONDS)
    home.faulty.before = None
    await begin(home, by, "1" * 64)  # its own is none of those
    await home.clock.advance(2 * AGAIN_SECONDS)
    left, own = await note(home), await note(home, "1" * 64)
    assert left is not None
    assert own is not None
    assert (left.how, left.ended > 0, own.ended) == ({"error": "the agent ended"}, True, 0)
    await tasks.end(running)


async def test_r42_a_denied_note_is_none_and_holds_nothing_up(home: House) -> None:
    assert home.faulty is not None

    async def denied(_: Request) -> None:
        raise AccessDenied("Permission denied")

    home.faulty.before = denied
    by = records(home)
    by.begin(IDENT, ASKED)
    by.denied(IDENT)
    assert not by.noted(IDENT)
    by.end(IDENT, {"code": 0})
    running = asyncio.create_task(by.run())
    await home.clock.advance(1)
    by.begin("1" * 64, ASKED)
    by.end("1" * 64, {"code": 0})
    await home.clock.advance(1)
    assert not by.noted("1" * 64)
    await tasks.end(running)


@pytest.mark.parametrize("older", [False, True])
async def test_r42_a_key_opens_once_also_where_the_agents_token_may_not_write_notes(
    home: House, older: bool
) -> None:
    assert home.faulty is not None

    async def denied(request: Request) -> None:
        if older and b"access/ends" in request.body:
            raise AccessDenied("Permission denied")

    home.faulty.before = denied
    by, key = records(home), access.made()
    cluster, now = home.context.cluster, home.clock.now()
    asked = msgspec.structs.replace(
        ASKED, cluster=cluster, request=Asked("GET", "/v1/exec/web"), issued=now, expires=now + 30
    )
    await home.client.put(home.keys.access(access.EXEC, "n1", access.ident(key)), codec.encode(asked))
    keys = OneTimeKeys(
        home.context.client, home.keys, "n1", lambda: cluster, home.clock, lambda *_: None, access.EXEC, by
    )
    request = make_mocked_request("GET", "/v1/exec/web", match_info={"instance": "web"})
    assert await keys.use(key, request) == asked
    assert by.noted(access.ident(key)) is not older
    assert (await note(home, access.ident(key)) is None) is older
    with pytest.raises(web.HTTPForbidden):
        await keys.use(key, request)


async def test_r42_a_key_that_is_sent_again_or_written_again_ends_no_note_of_a_command_that_runs(
    home: House,
) -> None:
    by, key = records(home), access.made()
    running = asyncio.create_task(by.run())
    cluster, ident = home.context.cluster, access.ident(key)

    async def write() -> None:
        now = home.clock.now()
        asked = msgspec.structs.replace(
            ASKED, cluster=cluster, request=Asked("GET", "/v1/exec/web"), issued=now, expires=now + 30
        )
        await home.client.put(home.keys.access(access.EXEC, "n1", ident), codec.encode(asked))

    await write()
    keys = OneTimeKeys(
        home.context.client, home.keys, "n1", lambda: cluster, home.clock, lambda *_: None, access.EXEC, by
    )
    request = make_mocked_request("GET", "/v1/exec/web", match_info={"instance": "web"})
    uses = await asyncio.gather(keys.use(key, request), keys.use(key, request), return_exceptions=True)
    assert sorted(type(each).__name__ for each in uses) == ["HTTPForbidden", "OneTime"]
    await home.clock.advance(BURNT_SECONDS + 1)
    await write()
    with pytest.raises(web.HTTPForbidden):
        await keys.use(key, request)
    await home.clock.advance(1)
    assert await audited(home) == []
    by.end(ident, {"code": 3})
    await home.clock.advance(1)
    [found] = await audited(home)
    assert isinstance(found.after, dict)
    assert (found.after.get("code"), found.after.get("error")) == (3, None)
    await tasks.end(running)


async def test_what_an_agent_makes_up_is_of_its_node_of_now_and_bounded(home: House) -> None:
    made_up = AccessRecord(
        instance="x" * 9000,
        exec=Exec(command=("y" * 9000,), action="rcs.delete"),
        by="z" * 9000,
        ended=1.0,
        how={"code": 0, "removed": "all"},
    )
    place = home.keys.access(access.ENDS, "n1", IDENT)
    await home.client.put(place, codec.encode(made_up))
    await home.client.put(home.keys.access(access.ENDS, "n1", "1" * 64), b"no record")
    [found] = await audited(home)
    assert (found.actor, found.action, found.kind) == ("agent/n1", "pod.exec-ended", "pods")
    assert abs(found.at - home.clock.now()) < HOUR
    assert found.id.startswith("n1/x")
    assert len(codec.encode(found)) < 40_000
    assert "removed" not in found.after
    assert (await home.client.keys(home.keys.accesses(access.ENDS))).items == []
