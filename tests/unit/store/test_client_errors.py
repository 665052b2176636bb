"""What each answer of Consul means, and when a write's outcome is unknown (R12)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress

import pytest
from aiohttp import web

from store import operations
from store.consul.client import ConsulClient
from store.consul.environment import Address
from store.consul.transport import HttpTransport
from store.errors import (
    AccessDenied,
    InvalidTTL,
    NoLeader,
    OutcomeUnknown,
    SessionGone,
    StoreError,
    StoreUnavailable,
    Throttled,
    TooLarge,
    TransactionRejected,
    UnexpectedAnswer,
)
from tests.garbage import garbage
from tests.scripted_consul import Answer, Scripted, Seen, json_answer, text_answer
from tests.virtual import VirtualClock

Call = Callable[[ConsulClient], Awaitable[object]]
OPERATIONS = [operations.create("a", b"1"), operations.put("b", b"2")]

READS: dict[str, Call] = {
    "get": lambda c: c.get("a"),
    "watch": lambda c: c.get("a", index=3, wait=1),
    "list": lambda c: c.list("a/"),
    "keys": lambda c: c.keys("a/"),
    "leader": lambda c: c.leader(),
    "agent": lambda c: c.agent(),
    "session_info": lambda c: c.session_info("s"),
}
WRITES: dict[str, Call] = {
    "put": lambda c: c.put("a", b"1"),
    "delete": lambda c: c.delete("a"),
    "transaction": lambda c: c.transaction(OPERATIONS),
    "create_session": lambda c: c.create_session(name="n", ttl=10),
    "destroy_session": lambda c: c.destroy_session("s"),
}
RENEW: dict[str, Call] = {"renew_session": lambda c: c.renew_session("s")}
CALLS = READS | WRITES | RENEW


@asynccontextmanager
async def client_of(answer: Answer) -> AsyncIterator[tuple[ConsulClient, Scripted]]:
    async with (
        Scripted(answer) as consul,
        HttpTransport(Address.from_environment({}, consul.address)) as transport,
    ):
        yield ConsulClient(transport, clock=VirtualClock()), consul


def always(make: Callable[[], web.StreamResponse | None]) -> Answer:
    async def answer(_seen: Seen) -> web.StreamResponse | None:
        return make()

    return answer


async def errors_of(
    names: Iterable[str], make: Callable[[], web.StreamResponse | None]
) -> dict[str, StoreError]:
    """What each of these calls makes of one answer."""
    found = dict[str, StoreError]()
    async with client_of(always(make)) as (client, _):
        for name in names:
            with pytest.raises(StoreError) as caught:
                await CALLS[name](client)
            found[name] = caught.value
            assert "\n" not in caught.value.message
    return found


async def kinds_of(
    names: Iterable[str], make: Callable[[], web.StreamResponse | None]
) -> set[type[StoreError]]:
    """The classes of these errors: equal calls mean equal things."""
    return {type(error) for error in (await errors_of(names, make)).values()}


async def error_of(name: str, make: Callable[[], web.StreamResponse | None]) -> StoreError:
    return (await errors_of([name], make))[name]


@pytest.mark.parametrize("body", ["No cluster leader", "rpc error making call: No cluster leader"])
async def test_no_leader_is_told_apart_by_its_text(body: str) -> None:
    assert await kinds_of([*READS, *RENEW], lambda: text_answer(body, 500)) == {NoLeader}


@pytest.mark.parametrize("status", [500, 502, 503, 504])
async def test_any_other_server_error_on_a_read_or_renewal_is_unavailable(status: int) -> None:
    found = await kinds_of([*READS, *RENEW], lambda: text_answer("rpc error making call: EOF", status))
    assert found == {StoreUnavailable}


@pytest.mark.parametrize(
    "body", ["No cluster leader", "rpc error making call: EOF", "leadership lost while committing log"]
)
async def test_r12_a_write_answered_500_has_an_unknown_outcome(body: str) -> None:
    for error in (await errors_of(WRITES, lambda: text_answer(body, 500))).values():
        assert type(error) is OutcomeUnknown
        assert error.fields["no_leader"] is (body == "No cluster leader")


@pytest.mark.parametrize("name", WRITES)
async def test_r12_a_write_hung_up_on_has_an_unknown_outcome_and_was_sent_once(name: str) -> None:
    async with client_of(always(lambda: None)) as (client, consul):
        with pytest.raises(OutcomeUnknown):
            await CALLS[name](client)
        assert len(consul.seen) == 1


async def test_a_hang_up_without_status_on_a_read_or_renewal_is_the_limit_of_connections() -> None:
    assert await kinds_of([*READS, *RENEW], lambda: None) == {Throttled}


async def test_429_is_throttled_whatever_was_asked() -> None:
    body = "Your IP is issuing too many concurrent connections"
    assert await kinds_of(CALLS, lambda: text_answer(body, 429)) == {Throttled}


@pytest.mark.parametrize("name", CALLS)
async def test_a_refused_connection_is_unavailable_and_nothing_was_written(name: str) -> None:
    async with Scripted() as consul:
        address = consul.address
    async with HttpTransport(Address.from_environment({}, address)) as transport:
        with pytest.raises(StoreUnavailable) as caught:
            await CALLS[name](ConsulClient(transport, clock=VirtualClock()))
    assert type(caught.value) is StoreUnavailable


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (403, "Permission denied"),
        (403, "ACL not found"),
        (403, "rpc error making call: Permission denied"),
        (403, "Permission denied: anonymous token lacks permission 'key:read' on \"a\"."),
        (401, "ACL support disabled"),
        (500, "rpc error making call: ACL not found"),
    ],
)
async def test_denied_by_acl(status: int, body: str) -> None:
    for error in (await errors_of(CALLS, lambda: text_answer(body, status))).values():
        assert type(error) is AccessDenied
        assert error.message.startswith("unknown token: ") == ("ACL not found" in body)


@pytest.mark.parametrize(
    ("what", "begin"),
    [
        ("Permission denied", ""),
        ("Permission denied: token with AccessorID '0' lacks permission 'key:write'", ""),
        ("rpc error: ACL not found", "unknown token: "),
    ],
)
async def test_denied_inside_a_transaction_is_told_apart_from_a_rejection(what: str, begin: str) -> None:
    body = f'{{"Results":null,"Errors":[{{"OpIndex":1,"What":"{what}"}}]}}'
    error = await error_of("transaction", lambda: json_answer(body, 409))
    assert type(error) is AccessDenied
    assert error.fields["operations"] == [1]
    assert error.fields["keys"] == [OPERATIONS[1].key]
    assert error.message == f"{begin}transaction: 409 {what} (set b)"


async def test_a_denied_transaction_names_what_it_would_have_changed_first() -> None:
    body = json_answer(
        '{"Results":null,"Errors":[{"OpIndex":0,"What":"Permission denied"},'
        '{"OpIndex":1,"What":"Permission denied"},{"OpIndex":2,"What":"Permission denied"}]}',
        409,
    )
    tried = [
        operations.check_not_exists("lock"),
        operations.put("record", b"1"),
        operations.put("audit", b"2"),
    ]
    async with client_of(always(lambda: body)) as (client, _):
        with pytest.raises(AccessDenied) as caught:
            await client.transaction(tried)
    assert caught.value.message == "transaction: 409 Permission denied (set record, and 2 more)"
    assert caught.value.fields["keys"] == ["lock", "record", "audit"]


async def test_a_denied_key_is_named() -> None:
    error = await error_of("get", lambda: text_answer("Permission denied", 403))
    assert error.message == "get a: 403 Permission denied"
    assert error.fields["key"] == "a"


async def test_a_rejected_transaction_lists_every_failing_operation() -> None:
    body = (
        '{"Results":null,"Errors":[{"OpIndex":0,"What":"failed to set key \\"a\\", index is stale"},'
        '{"OpIndex":1,"What":"invalid session \\"x\\""}]}'
    )
    error = await error_of("transaction", lambda: json_answer(body, 409))
    assert isinstance(error, TransactionRejected)
    assert [(e.index, e.what) for e in error.errors] == [
        (0, 'failed to set key "a", index is stale'),
        (1, 'invalid session "x"'),
    ]


async def test_a_409_that_is_not_consuls_is_no_rejection() -> None:
    error = await error_of("transaction", lambda: text_answer("conflict somewhere", 409))
    assert type(error) is UnexpectedAnswer


async def test_a_session_that_is_gone_at_renewal() -> None:
    error = await error_of("renew_session", lambda: text_answer("Session id 's' not found", 404))
    assert type(error) is SessionGone


async def test_a_404_of_something_else_does_not_end_a_session() -> None:
    error = await error_of("renew_session", lambda: text_answer("404 page not found", 404))
    assert type(error) is UnexpectedAnswer


async def test_a_session_that_is_gone_at_acquire() -> None:
    async with client_of(always(lambda: text_answer('invalid session "s"', 500))) as (client, _):
        with pytest.raises(SessionGone):
            await client.put("a", b"", acquire="s")


@pytest.mark.parametrize(
    "body",
    ["Invalid Session TTL '5000000000', must be between [10s=24h0m0s]", "Session TTL 'x' invalid: time: …"],
)
async def test_a_ttl_that_consul_refuses(body: str) -> None:
    assert type(await error_of("create_session", lambda: text_answer(body, 500))) is InvalidTTL


@pytest.mark.parametrize("name", ["put", "transaction"])
async def test_413_is_too_large_and_nothing_was_written(name: str) -> None:
    body = "Request body(600000 bytes) too large, max size: 524288 bytes."
    assert type(await error_of(name, lambda: text_answer(body, 413))) is TooLarge


HTML = "<html><head><title>Log in</title></head>\n<body>" + "secret-part " * 50
FOREIGN: dict[str, Callable[[], web.StreamResponse]] = {
    "a page": lambda: text_answer(HTML, 200, "text/html"),
    "a page called json": lambda: json_answer(HTML),
    "cut json": lambda: json_answer('[{"Key":"a","ModifyIn'),
    "another shape": lambda: json_answer('{"unexpected":1}'),
    "nothing": lambda: json_answer(""),
    "no type": lambda: web.Response(body=b"true", headers={"Content-Type": ""}),
    "an empty 204": lambda: web.Response(status=204),
}


@pytest.mark.parametrize("kind", FOREIGN)
async def test_a_read_answered_by_something_else_is_unexpected(kind: str) -> None:
    for error in (await errors_of([*READS, *RENEW], FOREIGN[kind])).values():
        assert type(error) is UnexpectedAnswer
        assert len(error.message) < 220
        assert error.message.count("secret-part") <= 7


@pytest.mark.parametrize("kind", FOREIGN)
async def test_r12_a_write_answered_with_success_by_something_else_is_unknown(kind: str) -> None:
    assert await kinds_of(WRITES, FOREIGN[kind]) == {OutcomeUnknown}


async def test_a_page_with_an_error_status_is_unexpected_on_a_read() -> None:
    assert await kinds_of(READS, lambda: text_answer(HTML, 502, "text/html")) == {UnexpectedAnswer}


async def test_r12_a_gateways_error_page_leaves_a_writes_outcome_unknown() -> None:
    assert await kinds_of(WRITES, lambda: text_answer(HTML, 502, "text/html")) == {OutcomeUnknown}


@pytest.mark.parametrize("status", [302, 400, 404, 405, 407])
async def test_a_write_refused_by_something_else_was_not_written(status: int) -> None:
    assert await kinds_of(WRITES, lambda: text_answer("no", status)) == {UnexpectedAnswer}


async def test_r20_only_consuls_own_404_proves_absence() -> None:
    found = await kinds_of(["get", "watch", "list", "keys"], lambda: web.Response(status=404))
    assert found == {UnexpectedAnswer}


async def test_an_answer_without_any_header_of_consul_is_not_consuls() -> None:
    bare = {"body": b"[]", "content_type": "application/json"}
    found = await kinds_of(["get", "list", "keys"], lambda: web.Response(**bare))
    assert found == {UnexpectedAnswer}


async def test_a_read_that_is_not_answered_in_time_is_unavailable() -> None:
    release = asyncio.Event()

    async def answer(_seen: Seen) -> web.StreamResponse:
        await release.wait()
        return json_answer("true")

    async with (
        Scripted(answer) as consul,
        HttpTransport(Address.from_environment({}, consul.address)) as transport,
    ):
        client = ConsulClient(transport, clock=VirtualClock(), renew_timeout=0.1)
        with pytest.raises(StoreUnavailable) as caught:
            await client.renew_session("s")
        assert type(caught.value) is StoreUnavailable
        release.set()


@pytest.mark.parametrize("status", [0, 403, 500])
async def test_errors_are_freed_without_the_collector(status: int) -> None:
    """They refer to requests, answers and operations. Status 0: the server hangs up."""
    answer = always(lambda: text_answer("refused", status) if status else None)
    async with client_of(answer) as (client, _):
        with garbage() as left:
            for call in CALLS.values():
                with suppress(StoreError):
                    await call(client)
    assert [each for each in left if isinstance(each, StoreError)] == []
