"""Who may see the page and act: by host, token, session and the origin of a form."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from farmd.config.sections import WebSection
from farmd.web import tokens
from farmd.web.access import COOKIE, Access, SignInNeeded, same_origin
from farmd.web.tokens import Person
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
        self.access = Access(WebSection(**{"tokens": str(self.path), **section}), self.clock)

    def write(self, text: str) -> None:
        part = self.path.with_name("part")
        part.write_text(text + "\n")
        part.chmod(0o600)
        part.replace(self.path)

    async def whoami(self, request: web.Request) -> web.Response:
        person = await self.access.person(request)
        try:
            self.access.reader(request, person)
        except SignInNeeded:
            return web.Response(status=401, text="sign in")
        return web.json_response(
            {"name": person.name if person else "", "key": self.access.form_key(request)}
        )

    async def enter(self, request: web.Request) -> web.Response:
        answer = web.Response()
        self.access.open_session(answer, await self.access.verified(self.token), secure=False)
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
        app.router.add_get("/enter", self.enter)
        app.router.add_post("/act", self.act)
        app.router.add_post("/here", self.from_here)
        jar = aiohttp.CookieJar(unsafe=True)
        async with serving_app(app) as address, aiohttp.ClientSession(cookie_jar=jar) as http:
            yield http, address


@pytest.mark.parametrize(
    ("section", "host", "status"),
    [
        ({}, "localhost:7520", 200),
        ({}, "127.0.0.1", 200),
        ({}, "farm.example.com", 401),
        ({"bind": "0.0.0.0"}, "127.0.0.1", 401),
        ({"bind": "0.0.0.0", "read": "open"}, "farm.example.com", 200),
        ({"read": "token"}, "localhost", 401),
    ],
)
async def test_reading_is_open_on_loopback_by_such_a_name_or_where_it_is_told(
    tmp_path: Path, section: dict[str, str], host: str, status: int
) -> None:
    async with Rig(tmp_path, **section).served() as (http, address):
        answer = await http.get(address, headers={"Host": host})
        assert answer.status == status


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
        for changed in (cookie.value + "0", cookie.value.replace("ada", "eve"), "ada", "..."):
            answer = await stranger.get(address, headers={"Cookie": f"{COOKIE}={changed}"})
            assert answer.status == 401, changed
        rig.write(tokens.made("ada", "operator")[1])
        assert (await http.get(address)).status == 401
        rig.write(rig.line)
        assert (await http.get(address)).status == 200
        rig.clock.seconds += 13 * 3600
        assert (await http.get(address)).status == 401


async def test_a_form_must_be_of_this_page_and_this_session(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
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
        ):
            headers = {"Origin": origin} if origin else {}
            answer = await http.post(f"{address}/act", data={"key": sent}, headers=headers)
            assert answer.status == status, (origin, sent)
        assert (await http.post(f"{address}/here", headers={"Origin": address})).status == 200
        assert (await http.post(f"{address}/here")).status == 403


async def test_without_a_usable_file_nobody_has_a_session(tmp_path: Path) -> None:
    rig = Rig(tmp_path, read="token")
    rig.path.chmod(0o666)
    async with rig.served() as (http, address):
        assert (await http.get(address, headers={"Cookie": f"{COOKIE}=ada.9999999999.x.y"})).status == 401
        assert (await http.get(address, headers={"Authorization": "Bearer ada.x"})).status == 503
