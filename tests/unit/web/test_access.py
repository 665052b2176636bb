"""Who may see the page and act: by host, token, session and the origin of a form."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from farmd.config.sections import WebSection
from farmd.web import access, hosts, tokens
from farmd.web.access import COOKIE, SECURE_COOKIE, Access, SignInNeeded, same_origin
from farmd.web.hosts import Refusals
from farmd.web.server import errors_as_json
from farmd.web.tokens import Person
from tests.recorders import CountingRecorder
from tests.still_clock import StillClock
from tests.web_servers import serving_app

ADA = Person("ada", "operator")


class Rig:
    """An access behind a server that tells whom it takes a request for."""

    def __init__(self, folder: Path, **section: str) -> None:
        self.token, self.line = tokens.made("ada", "operator")
        self.path = folder / "tokens"
        self.write(self.line)
        self.clock = StillClock()
        self.access = Access(
            WebSection(**{"tokens": str(self.path), **section}),
            self.clock,
            Refusals(CountingRecorder(), self.clock),
        )

    def write(self, text: str) -> None:
        part = self.path.with_name("part")
        part.write_text(text + "\n")
        part.chmod(0o600)
        part.replace(self.path)

    async def whoami(self, request: web.Request) -> web.Response:
        person = self.access.person(request)
        try:
            self.access.reader(request, person)
        except SignInNeeded:
            return web.Response(status=401, text="sign in")
        return web.json_response(
            {"name": person.name if person else "", "key": self.access.form_key(request)}
        )

    async def program(self, request: web.Request) -> web.Response:
        person = self.access.bearer(request)
        return web.Response(text=person.name if person else "nobody")

    async def enter(self, request: web.Request) -> web.Response:
        answer = web.Response()
        line = self.access.verified(self.token, request)
        self.access.open_session(request, answer, line, secure="secure" in request.query)
        return answer

    async def leave(self, request: web.Request) -> web.Response:
        answer = web.Response()
        self.access.end_session(request, answer)
        return answer

    async def act(self, request: web.Request) -> web.Response:
        self.access.of_form(request, str((await request.post()).get("key", "")))
        return web.Response()

    async def from_here(self, request: web.Request) -> web.Response:
        same_origin(request)
        return web.Response()

    @contextlib.asynccontextmanager
    async def served(self) -> AsyncIterator[tuple[aiohttp.ClientSession, str]]:
        app = web.Application()
        app.router.add_get("/", self.whoami)
        app.router.add_get("/program", self.program)
        app.router.add_get("/enter", self.enter)
        app.router.add_get("/leave", self.leave)
        app.router.add_post("/act", self.act)
        app.router.add_post("/here", self.from_here)
        jar = aiohttp.CookieJar(unsafe=True)
        async with serving_app(app) as address, aiohttp.ClientSession(cookie_jar=jar) as http:
            yield http, address


@pytest.mark.parametrize(
    ("section", "host", "status"),
    [
        ({"tokens": ""}, "localhost:7520", 200),
        ({"tokens": ""}, "127.0.0.1", 200),
        ({"tokens": ""}, "[::1]:7520", 200),
        ({"tokens": ""}, "farm.example.com", 401),
        ({"tokens": ""}, "", 401),
        ({"tokens": ""}, "[", 400),
        ({"tokens": ""}, "evil.example@127.0.0.1", 400),
        ({"tokens": ""}, "127.0.0.1:http", 400),
        ({"tokens": ""}, "127.0.0.1.evil.example", 401),
        ({"tokens": "", "bind": "0.0.0.0"}, "127.0.0.1", 401),
        ({}, "localhost", 401),
        ({"bind": "0.0.0.0", "read": "open"}, "farm.example.com", 200),
        ({"read": "token"}, "localhost", 401),
    ],
)
async def test_reading_is_open_on_loopback_by_such_a_name_without_tokens_or_where_it_is_told(
    tmp_path: Path, section: dict[str, str], host: str, status: int
) -> None:
    async with Rig(tmp_path, **section).served() as (http, address):
        answer = await http.get(address, headers={"Host": host})
        assert answer.status == status


@pytest.mark.parametrize("header", ["Forwarded", "x-forwarded-for", "X-Forwarded-Proto", "X-Real-IP", "Via"])
async def test_what_came_through_a_proxy_is_not_from_this_machine(tmp_path: Path, header: str) -> None:
    async with Rig(tmp_path, tokens="").served() as (http, address):
        assert (await http.get(address, headers={header: "10.0.0.1"})).status == 401


async def test_a_cookie_is_no_token_of_a_program(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    async with rig.served() as (http, address):
        await http.get(f"{address}/enter")
        for header, said in (("Basic x", "nobody"), ("Bearer ", "nobody"), (f"Bearer {rig.token}", "ada")):
            answer = await http.get(f"{address}/program", headers={"Authorization": header})
            assert await answer.text() == said, header


@pytest.mark.parametrize(
    ("path", "header", "status"),
    [
        ("/", b"Authorization: Bearer ada.\xff", 401),
        ("/", f"Cookie: {COOKIE}=ada.1.\u00e9".encode(), 401),
        ("/", f"Cookie: {COOKIE}=ada.1.".encode() + b"\xff", 401),
        ("/here", b"Origin: http://[", 403),
    ],
)
async def test_malformed_headers_are_refused(tmp_path: Path, path: str, header: bytes, status: int) -> None:
    async with Rig(tmp_path).served() as (_, address):
        reader, writer = await asyncio.open_connection(*address.removeprefix("http://").split(":"))
        word = b"POST" if path == "/here" else b"GET"
        writer.write(word + b" " + path.encode() + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n")
        writer.write(header + b"\r\nContent-Length: 0\r\n\r\n")
        assert (await reader.readline()).split()[1] == str(status).encode()
        writer.close()


async def test_a_request_without_a_host_is_of_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.getfqdn", lambda *_: "localhost")
    async with Rig(tmp_path, tokens="").served() as (_, address):
        reader, writer = await asyncio.open_connection(*address.removeprefix("http://").split(":"))
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        assert (await reader.readline()).split()[1] == b"401"
        writer.close()


async def test_a_bearer_token_is_known_until_its_line_is_gone(tmp_path: Path) -> None:
    rig = Rig(tmp_path, read="token")
    async with rig.served() as (http, address):
        for header, status in ((f"Bearer {rig.token}", 200), (f"Bearer {rig.token}x", 401), ("", 401)):
            answer = await http.get(address, headers={"Authorization": header})
            assert answer.status == status, header
        rig.write(tokens.made("ada", "operator")[1])
        assert (await http.get(address, headers={"Authorization": f"Bearer {rig.token}"})).status == 401


async def test_a_session_ends_with_its_time_its_line_and_a_changed_cookie(tmp_path: Path) -> None:
    rig = Rig(tmp_path, read="token")
    async with rig.served() as (http, address), aiohttp.ClientSession() as stranger:
        entered = await http.get(f"{address}/enter")
        cookie = entered.cookies[COOKIE]
        assert (cookie["httponly"], cookie["samesite"], cookie["path"]) == (True, "Strict", "/")
        assert (await (await http.get(address)).json())["name"] == "ada"
        for changed in (cookie.value + "0", cookie.value[:-1], "ada", "..."):
            answer = await stranger.get(address, headers={"Cookie": f"{COOKIE}={changed}"})
            assert answer.status == 401, changed
        rig.write(tokens.made("ada", "operator")[1])
        assert (await http.get(address)).status == 401
        rig.write(rig.line)
        assert (await http.get(address)).status == 200
        rig.clock.seconds += 13 * 3600
        assert (await http.get(address)).status == 401


async def test_signing_out_ends_a_copy_of_the_cookie_too_and_no_other_session(tmp_path: Path) -> None:
    rig = Rig(tmp_path, read="token")
    async with rig.served() as (http, address), aiohttp.ClientSession() as thief:
        others = (await http.get(f"{address}/enter")).cookies[COOKIE].value
        http.cookie_jar.clear()
        copied = (await http.get(f"{address}/enter")).cookies[COOKIE].value
        copy, other = ({"Cookie": f"{COOKIE}={value}"} for value in (copied, others))
        assert (await thief.get(address, headers=copy)).status == 200
        left = await http.get(f"{address}/leave")
        assert left.cookies[COOKIE].value == ""
        assert (await thief.get(address, headers=copy)).status == 401
        assert (await thief.get(address, headers=other)).status == 200


async def test_to_sign_in_again_ends_the_session_before_and_a_person_has_a_bounded_number(
    tmp_path: Path,
) -> None:
    rig = Rig(tmp_path, read="token")
    async with rig.served() as (http, address), aiohttp.ClientSession() as other:
        first = (await http.get(f"{address}/enter")).cookies[COOKIE].value
        await http.get(f"{address}/enter")
        assert (await other.get(address, headers={"Cookie": f"{COOKIE}={first}"})).status == 401
        assert (await http.get(address)).status == 200
        for _ in range(access.MOST_EACH):
            await other.get(f"{address}/enter", headers={"Cookie": f"{COOKIE}=none"})
        assert (await http.get(address)).status == 401
        assert len(rig.access.sessions._open) == access.MOST_EACH


async def test_over_https_the_cookie_is_of_that_host_alone_and_never_sent_without_tls(tmp_path: Path) -> None:
    rig = Rig(tmp_path, read="token")
    async with rig.served() as (http, address):
        cookie = (await http.get(f"{address}/enter?secure")).cookies[SECURE_COOKIE]
        assert (cookie["secure"], cookie["path"], cookie["domain"]) == (True, "/", "")
        brought = {"Cookie": f"{SECURE_COOKIE}={cookie.value}"}
        assert (await http.get(address, headers=brought)).status == 200  # a proxy spoke TLS
        left = await http.get(f"{address}/leave", headers=brought)
        assert (left.cookies[SECURE_COOKIE].value, left.cookies[SECURE_COOKIE]["secure"]) == ("", True)


@pytest.mark.parametrize(
    ("bind", "host", "status"),
    [
        ("127.0.0.1", "localhost:7521", 200),
        ("127.0.0.1", "127.0.0.1", 200),
        ("::1", "[::1]:7521", 200),
        ("127.0.0.1", "node-1.example:7521", 200),
        ("127.0.0.1", "evil.example", 421),
        ("127.0.0.1", "", 421),
        ("127.0.0.1", "[", 400),
        ("0.0.0.0", "evil.example", 200),
    ],
)
async def test_on_loopback_an_agent_answers_no_page_that_turned_its_name_to_this_machine(
    bind: str, host: str, status: int
) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text="what a pod wrote")

    app = web.Application(middlewares=[errors_as_json, hosts.only(bind, "node-1.example")])
    app.router.add_get("/", answer)
    async with serving_app(app) as address, aiohttp.ClientSession() as http:
        found = await http.get(address, headers={"Host": host})
        assert (found.status, "pod" in await found.text()) == (status, status == 200)


async def test_a_form_must_be_of_this_page_and_this_session(tmp_path: Path) -> None:
    rig = Rig(tmp_path, read="open")
    async with rig.served() as (http, address):
        other = (await (await http.get(address)).json())["key"]
        await http.get(f"{address}/enter")
        key = (await (await http.get(address)).json())["key"]
        for origin, sent, status in (
            (address, key, 200),
            (address, other, 403),
            (address, "", 403),
            ("http://evil.example", key, 403),
            ("null", key, 403),
            ("", key, 403),
            (address, "\u00e9", 403),
        ):
            headers = {"Origin": origin} if origin else {}
            answer = await http.post(f"{address}/act", data={"key": sent}, headers=headers)
            assert answer.status == status, (origin, sent)
        assert (await http.post(f"{address}/here", headers={"Origin": address})).status == 200
        assert (await http.post(f"{address}/here")).status == 403


@pytest.mark.parametrize(("broken", "status"), [("", 401), (None, 401), ("mode", 503), ("ada", 503)])
async def test_a_token_ends_with_the_last_line_the_file_or_its_mistake(
    tmp_path: Path, broken: str | None, status: int
) -> None:
    rig = Rig(tmp_path, read="token")
    async with rig.served() as (http, address):
        await http.get(f"{address}/enter")
        assert (await http.get(address)).status == 200
        if broken is None:
            rig.path.unlink()
        elif broken == "mode":
            rig.path.chmod(0o644)
        else:
            rig.write(broken and f"{rig.line}\n{broken}")
        assert (await http.get(address)).status == 401
        bearer = {"Authorization": f"Bearer {rig.token}"}
        assert (await http.get(address, headers=bearer)).status == status
        rig.write(rig.line)
        assert (await http.get(address, headers=bearer)).status == 200


async def test_without_a_usable_file_nobody_has_a_session(tmp_path: Path) -> None:
    rig = Rig(tmp_path, read="token")
    rig.path.chmod(0o666)
    async with rig.served() as (http, address):
        assert (await http.get(address, headers={"Cookie": f"{COOKIE}=ada.9999999999.x.y"})).status == 401
        assert (await http.get(address, headers={"Authorization": "Bearer ada.x"})).status == 503
