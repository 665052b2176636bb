"""The page in a real browser, on a real Consul."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import expect

from tests.browsing import Shown, shown_on

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def shown(consul_dev: str) -> AsyncIterator[Shown]:
    async with shown_on(consul_dev) as made:
        await made.rolling.prepare(3)
        yield made


async def test_a_change_is_shown_without_a_reload(shown: Shown) -> None:
    assert shown.rolling.rc is not None
    async with shown.page("/controllers") as page:
        row = page.locator("tr", has=page.get_by_role("link", name="web", exact=True))
        await expect(row.locator("td[data-label=Healthy]")).to_have_text("3")
        await expect(page.locator("#live")).to_have_text("live")
        await page.evaluate("window.same = true")
        await shown.rolling.cluster.change_rc(shown.rolling.rc, replicas_desired=2)
        await expect(row.locator("td[data-label=Healthy]")).to_have_text("2")
        assert await page.evaluate("window.same")
    assert shown.troubles == []
