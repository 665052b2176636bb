"""A farm on a real Consul whose page a real browser shows, for tests."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web
from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, async_playwright, expect

from farmd.config.sections import WebSection
from farmd.kinds import KINDS
from farmd.web import tokens
from farmd.web.page import Door
from farmd.web.server import errors_as_json
from tests.fleet import RunningFarm, cluster_on, farm_on
from tests.obedient import Obedient, obedient
from tests.rolling import Rolling
from tests.web_servers import serving_app

expect.set_options(timeout=120_000)
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--no-first-run", "--disable-dev-shm-usage"),
]


@dataclass
class Shown:
    """The world that tests of the page share. ``troubles`` is what the browser's console said against it."""

    rolling: Rolling
    agents: Obedient
    farm: RunningFarm
    address: str
    browser: Browser
    tokens: dict[str, str]
    troubles: list[str] = field(default_factory=list)

    @asynccontextmanager
    async def page(self, path: str = "/", **options: object) -> AsyncIterator[Page]:
        """A page in a browser context of its own."""
        context: BrowserContext = await self.browser.new_context(base_url=self.address, **options)  # type: ignore[arg-type]
        context.set_default_timeout(120_000)
        page = await context.new_page()
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.troubles.append(str(error)))
        try:
            await page.goto(path)
            yield page
        finally:
            await context.close()

    async def sign_in(self, page: Page, name: str) -> None:
        """As somebody would by hand."""
        await page.get_by_role("banner").get_by_role("link", name="Sign in").click()
        await page.get_by_label("Token").fill(self.tokens[name])
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.get_by_text(f"{name}, ")).to_be_visible()

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.troubles.append(f"{message.location['url']}: {message.text}")


@asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    """Debian's chromium without a window."""
    program = shutil.which("chromium")
    assert program, "chromium is missing: apt-get install chromium"
    async with async_playwright() as driver:
        started = await driver.chromium.launch(executable_path=program, args=FLAGS)
        try:
            yield started
        finally:
            await started.close()


@asynccontextmanager
async def shown_on(consul: str, folder: Path) -> AsyncIterator[Shown]:
    """A cluster of its own with one farm, agents that obey, and a browser.

    The farm leaves controllers with the label ``crowd=yes`` alone. Ada is an operator and eve a viewer.
    """
    made = {name: tokens.made(name, role) for name, role in (("ada", "operator"), ("eve", "viewer"))}
    file = folder / "tokens"
    file.touch(mode=0o600)
    file.write_text("".join(f"{line}\n" for _, line in made.values()))
    section = WebSection(tokens=str(file), read="open")
    async with cluster_on(consul) as cluster, obedient(cluster) as agents, browser() as started:
        kinds = tuple(kind.family for kind in KINDS.values() if not kind.outside)
        chosen = {"keys": cluster.keys, "kinds": kinds, "selector": "crowd!=yes"}
        async with farm_on(cluster.client, "farm-1", **chosen) as farm:
            app = web.Application(middlewares=[errors_as_json])
            Door(lambda: farm.farm, section).add_routes(app)
            async with serving_app(app) as address:
                known = {name: token for name, (token, _) in made.items()}
                yield Shown(Rolling(cluster, consul), agents, farm, address, started, known)
