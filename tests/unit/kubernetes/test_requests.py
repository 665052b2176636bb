"""What a request's end means: what was surely not written, what nobody knows, and what the server refused."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from aiohttp import web

from farmd.kubernetes import errors
from farmd.kubernetes.access import access
from farmd.kubernetes.pace import Pace, Priority
from farmd.kubernetes.transport import ApiRequest, KubernetesTransport
from farmd.runtime.clock import SystemClock
from tests.garbage import garbage
from tests.kubeconfigs import kubeconfig
from tests.recorders import CountingRecorder
from tests.still_clock import StillClock
from tests.web_servers import serving

GET = ApiRequest("GET", "/api/v1/pods", resource="pods")
POST = ApiRequest("POST", "/api/v1/namespaces/a/pods", body=b"{}", resource="pods")
DELETE = ApiRequest("DELETE", "/api/v1/namespaces/a/pods/p", body=b"{}", resource="pods")


@asynccontextmanager
async def asking(
    folder: Path, handler: Callable[[web.Request], Awaitable[web.StreamResponse]], **user: object
) -> AsyncIterator[KubernetesTransport]:
    """A transport to a server that answers so."""
    async with serving(handler) as url, transport(folder, url, **user) as found:
        yield found


def transport(folder: Path, url: str, **user: object) -> KubernetesTransport:
    """A transport to an address."""
    path = folder / "config.json"
    path.write_text(kubeconfig({"server": url}, user))
    clock = SystemClock()
    where = access({"PATH": "/usr/bin:/bin"}, clock, kubeconfig=str(path))
    return KubernetesTransport(where, clock=clock, rng=random.Random(1), metrics=CountingRecorder())


def status(code: int, reason: str = "", message: str = "said the server") -> web.Response:
    """A refusal as an API server writes it."""
    return web.json_response(
        {"kind": "Status", "reason": reason, "message": message, "code": code}, status=code
    )


REFUSALS = [
    (GET, 400, "BadRequest", errors.Invalid),
    (GET, 401, "Unauthorized", errors.Unauthorized),
    (POST, 403, "Forbidden", errors.Forbidden),
    (GET, 404, "NotFound", errors.NotFound),
    (POST, 409, "AlreadyExists", errors.AlreadyExists),
    (DELETE, 409, "Conflict", errors.Conflict),
    (GET, 410, "Expired", errors.Gone),
    (POST, 413, "RequestEntityTooLarge", errors.TooLarge),
    (POST, 422, "Invalid", errors.Invalid),
    (GET, 500, "InternalError", errors.Unavailable),
    (GET, 503, "ServiceUnavailable", errors.Unavailable),
    (POST, 500, "InternalError", errors.UnknownOutcome),
    (POST, 504, "Timeout", errors.UnknownOutcome),
    (DELETE, 503, "ServiceUnavailable", errors.UnknownOutcome),
    (GET, 302, "", errors.UnexpectedAnswer),
    (POST, 418, "", errors.UnexpectedAnswer),
]


@pytest.mark.parametrize(("request_", "code", "reason", "kind"), REFUSALS)
async def test_a_refusal_has_the_type_of_its_status_with_reason_and_message(
    tmp_path, request_, code, reason, kind
):
    async def handler(_: web.Request) -> web.Response:
        return status(code, reason)

    async with asking(tmp_path, handler) as found:
        with pytest.raises(errors.KubernetesError) as refused:
            await found.send(request_)
    assert type(refused.value) is kind
    assert (refused.value.status, refused.value.reason) == (code, reason)
    assert refused.value.message == f"{request_}: {code}: said the server"


async def test_a_refusal_is_freed_without_the_collector(tmp_path):
    async def refuses(_: web.Request) -> web.Response:
        return status(404, "NotFound")

    async with asking(tmp_path, refuses) as api:
        with garbage() as left:
            with suppress(errors.NotFound):
                await api.send(GET)
            await asyncio.sleep(0)  # until then the loop holds the answer that it just gave
    assert [each for each in left if isinstance(each, errors.KubernetesError)] == []


async def test_a_refusal_of_something_that_is_no_api_server_is_told_in_one_line(tmp_path):
    async def handler(_: web.Request) -> web.Response:
        return web.Response(status=403, text="<html>\n<b>no</b>\n</html>")

    async with asking(tmp_path, handler) as found:
        with pytest.raises(errors.Forbidden, match=r"403: <html> <b>no</b> </html>$"):
            await found.send(GET)


@pytest.mark.parametrize("request_", [GET, POST])
async def test_a_success_of_something_that_is_no_api_server_is_none(tmp_path, request_):
    async def handler(_: web.Request) -> web.Response:
        return web.Response(text="<html>log in</html>", content_type="text/html")

    async with asking(tmp_path, handler) as found:
        with pytest.raises(errors.UnexpectedAnswer, match="found text/html, expected application/json"):
            await found.send(request_)


@pytest.mark.parametrize(
    ("request_", "kind"), [(POST, errors.UnknownOutcome), (DELETE, errors.UnknownOutcome)]
)
async def test_a_write_that_is_not_answered_is_sent_once_and_its_outcome_is_unknown(tmp_path, request_, kind):
    seen = list[str]()

    async def handler(request: web.Request) -> web.Response:
        seen.append(request.method)
        if request.method != "GET":
            assert request.transport is not None
            request.transport.close()
        return web.json_response({})

    async with asking(tmp_path, handler) as found:
        await found.send(GET)  # the connection is kept, so the next request meets it dead
        with pytest.raises(kind):
            await found.send(request_)
    assert seen == ["GET", request_.method]


async def test_a_request_that_never_left_is_known_to_have_written_nothing(tmp_path):
    async with transport(tmp_path, "http://127.0.0.1:1") as found:
        with pytest.raises(errors.Unavailable, match="cannot connect: Connection refused"):
            await found.send(POST)


async def test_a_server_that_does_not_answer_in_time_leaves_a_write_unknown_and_a_read_unavailable(tmp_path):
    async def handler(request: web.Request) -> web.Response:
        asked.append(request.query["timeout"])
        await asyncio.sleep(60)
        return web.json_response({})

    asked = list[str]()
    async with asking(tmp_path, handler) as found:
        with pytest.raises(errors.UnknownOutcome, match="it took too long"):
            await found.send(POST, 0.3)
        with pytest.raises(errors.Unavailable, match="it took too long"):
            await found.send(GET, 0.3)
    assert all(each.endswith("ms") and int(each[:-2]) <= 300 for each in asked)


async def test_a_throttled_request_is_sent_again_when_the_server_says(tmp_path):
    answers = [web.Response(status=429, headers={"Retry-After": "0"}) for _ in range(2)]

    async def handler(_: web.Request) -> web.Response:
        return answers.pop() if answers else web.json_response({})

    async with asking(tmp_path, handler) as found:
        assert await found.send(POST) == b"{}"
        assert found.pace.limit < 32


async def test_a_request_that_stays_throttled_is_refused_when_its_time_is_over(tmp_path):
    async def handler(_: web.Request) -> web.Response:
        return web.Response(status=429, headers={"Retry-After": "60"})

    async with asking(tmp_path, handler) as found:
        with pytest.raises(errors.TooManyRequests):
            await found.send(POST, 1)


@pytest.mark.parametrize("watched", [False, True])
async def test_a_refused_credential_of_a_program_is_renewed_once(tmp_path, watched):
    version = "client.authentication.k8s.io/v1"
    printed = {"kind": "ExecCredential", "apiVersion": version, "status": {"token": "%s"}}
    script = f"echo x >> {tmp_path}/n; printf '{json.dumps(printed)}' $(wc -l < {tmp_path}/n)"
    program = {"apiVersion": version, "command": "sh", "args": ["-c", script]}
    seen = list[str]()

    async def handler(request: web.Request) -> web.Response:
        seen.append(request.headers["Authorization"])
        return web.json_response({}) if seen[-1].endswith("2") else status(401, "Unauthorized")

    async with asking(tmp_path, handler, exec=program) as found:
        if watched:  # an informer begins again by itself
            with pytest.raises(errors.Unauthorized):
                async with found.watch(GET, 5):
                    pass
        await found.send(GET)
    assert seen == ["Bearer 1", "Bearer 2"]


async def test_a_proxy_s_or_netrc_s_login_never_replaces_the_user_s(tmp_path, monkeypatch):
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login other password other\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    seen = list[str]()

    async def handler(request: web.Request) -> web.Response:
        seen.append(request.headers["Authorization"])
        return web.json_response({})

    async with asking(tmp_path, handler, token="mine") as found:
        await found.send(GET)
    assert seen == ["Bearer mine"]


async def test_a_watch_s_lines_may_be_of_any_length_and_come_in_any_pieces(tmp_path):
    lines = [b"x" * 3_000_000, b"y", b"z" * 10]

    async def handler(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        text = b"\n".join(lines) + b"\n"
        for place in range(0, len(text), 700_001):
            await answer.write(text[place : place + 700_001])
        return answer

    async with asking(tmp_path, handler) as found, found.watch(GET, 30) as read:
        assert [line async for line in read] == lines


@pytest.mark.parametrize(
    ("code", "most", "error"), [(200, 128, errors.UnexpectedAnswer), (403, 16, errors.Forbidden)]
)
async def test_an_answer_that_never_ends_is_not_kept(tmp_path, code, most, error):
    written = 0

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal written
        answer = web.StreamResponse(status=code)
        await answer.prepare(request)
        while written < most + 8:  # MiB
            await answer.write(b"x" * (1 << 20))
            written += 1
        return answer

    async with asking(tmp_path, handler) as found:
        with pytest.raises(error):
            async with found.watch(GET, 30) as read:
                [line async for line in read]
    assert written < most


async def test_no_more_are_in_flight_than_the_limit_and_what_matters_most_goes_first():
    pace = Pace(StillClock(), most=1)
    done = list[str]()

    async def one(priority: Priority, key: str) -> None:
        async with pace.turn(priority, key):
            done.append(f"{priority.name.lower()} {key}")
            await asyncio.sleep(0)

    waiting = [
        (Priority.EVENT, "a"),
        *[(Priority.CREATE, "a")] * 3,
        (Priority.CREATE, "b"),
        (Priority.STATUS, "c"),
    ]
    async with pace.turn(Priority.READ):
        tasks = [asyncio.create_task(one(*each)) for each in waiting]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.sleep(0)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert done == ["status c", "create a", "create b", "create a", "event a"]


async def test_the_limit_is_halved_by_a_refusal_and_grows_by_one_a_second():
    clock = StillClock()
    pace = Pace(clock)
    pace.congested(sent=clock.mono())
    assert pace.limit == 16
    clock.seconds += 4
    assert pace.limit == 20
    pace.congested(sent=clock.mono())
    assert pace.limit == 10
    clock.seconds += 1
    assert pace.limit == 11
    clock.seconds += 60
    assert pace.limit == 32
