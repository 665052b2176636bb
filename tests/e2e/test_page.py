"""The page in a real browser, on a real Consul: each view, live, acted on, by keyboard, on a phone."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio
from aiohttp import web
from playwright.async_api import Locator, Page, expect

from farmd.commands.mutation import commit
from farmd.config.sections import WebSection
from farmd.jobs.commands import JOB
from farmd.web import events, tokens
from farmd.web.page import Door
from farmd.web.server import errors_as_json
from store import codec, operations
from store.audit import Audit, AuditLogStore
from store.rcs import ReplicationController
from store.reality import Health, Reality
from store.times import rfc3339
from tests.browsing import Shown, shown_on
from tests.fleet import CLOCK, eventually
from tests.rolling import FIRST, QUICK, Stage
from tests.web_servers import serving_app

# One worker runs all, with one farm and one browser.
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("page")]

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'&{{7*7}}"
CROWD = 10_000
CAREFUL = msgspec.structs.replace(
    QUICK,
    stages=[Stage(to=1), Stage(to=2, approve=True), Stage(to="100%", approve=True)],
    progress_deadline=600.0,
)
VIEWS = {
    "/": "Fleet",
    "/map": "Map",
    "/controllers": "Controllers",
    "/daemonsets": "Daemon sets",
    "/rollouts": "Rollouts",
    "/deployments": "Deployments",
    "/services": "Services",
    "/jobs": "Jobs",
    "/apps": "Apps",
    "/nodes": "Nodes",
    "/farms": "Farms",
    "/audit": "Audit",
    "/controllers/web": "Controller web",
    "/controllers/web/explain": "Why: controller web",
    "/jobs/bert": "Job bert",
    "/jobs/bert/explain": "Why: job bert",
    "/nodes/n0": "Node n0",
    "/nodes/n0/pods/web": "Pod n0/web",
    "/farms/farm-1": "Farm farm-1",
    "/signin": "Sign in",
    "/nothing": "Not Found",
}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def shown(consul_dev: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shown]:
    async with shown_on(consul_dev, tmp_path_factory.mktemp("page")) as made:
        await made.rolling.prepare(3, labels={"note": "first"})
        types = [{"name": "worker", "replicas": 2, "pod": {"id": "bert", "command": ["/bin/true"]}}]
        spec = JOB.file.parse({"name": "bert", "types": types}, "bert.yaml")
        await commit(made.rolling.call, await JOB.create(made.rolling.call, spec))
        yield made
    # What the browser says of the page that is not there may come late; a rollout that is over goes, too.
    gone = re.compile(r".*/(nothing|rollouts/web): .*\(Not Found\)")
    assert [each for each in made.troubles if not gone.fullmatch(each)] == []


def row_of(page: Page, name: str) -> Locator:
    return page.locator("tr", has=page.get_by_role("link", name=name, exact=True))


async def wide(page: Page) -> int:
    """By how much a page is wider than its window."""
    width: int = await page.evaluate(
        "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    )
    return width


async def test_each_view_has_its_heading_and_fits_a_phone(shown: Shown) -> None:
    async with shown.page("/", viewport={"width": 360, "height": 740}) as page:
        for path, heading in VIEWS.items():
            await page.goto(path)
            await expect(page.locator("h1")).to_have_text(heading)
            assert await wide(page) <= 0, path
            assert await page.locator("main, nav, header, footer").count() == 4


async def test_a_change_is_shown_without_a_reload(shown: Shown) -> None:
    assert shown.rolling.rc is not None
    async with shown.page("/controllers") as page:
        healthy = row_of(page, "web").locator("td[data-label=Healthy]")
        await expect(healthy).to_have_text("3")
        await expect(page.locator("#live")).to_have_text("live")
        await page.evaluate("window.same = true")
        shown.rolling.rc = await shown.rolling.cluster.change_rc(shown.rolling.rc, replicas_desired=4)
        await expect(healthy).to_have_text("4")
        assert await page.evaluate("window.same")


async def test_a_page_whose_farm_hears_nothing_of_consul_says_since_when_its_data_stand_still(
    shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    farm = shown.farm.farm
    assert farm.silent_since() == 0
    monkeypatch.setattr(events, "HEARTBEAT_SECONDS", 0.1)
    async with shown.page("/controllers") as page:
        footer = page.locator("#live")
        await expect(footer).to_have_text("live")
        with monkeypatch.context() as silence:
            silence.setattr(farm._session, "valid", lambda: False)
            since = farm.silent_since()
            assert 0 < since <= CLOCK.now()
            silence.setattr(farm, "silent_since", lambda: since)
            await expect(footer).to_have_text(
                f"not live: Consul does not answer this farm, the data are of {rfc3339(since)}"
            )
            await expect(page.locator("[data-part=outage]")).to_contain_text(
                f"Consul has not answered this farm since {rfc3339(since)}"
            )
        await expect(footer).to_have_text("live")
        await expect(page.locator("[data-part=outage]")).to_be_empty()


async def test_names_lead_on_from_an_owner_to_its_pod_its_node_and_back(shown: Shown) -> None:
    async with shown.page("/controllers/web") as page:
        parts = await page.locator("[data-part]").evaluate_all(
            "parts => parts.map(each => each.dataset.part)"
        )
        assert parts.index("table-1") < parts.index("facts")
        await page.locator("[data-part=table-1] tbody tr").first.get_by_role("link").last.click()
        await expect(page.locator("h1")).to_have_text(re.compile("Pod n\\d/web"))
        await expect(page.locator("[data-part=state]")).to_contain_text("running passing")
        await page.locator("dl").get_by_role("link", name="rc/web", exact=True).click()
        await expect(page.locator("h1")).to_have_text("Controller web")
        await page.goto("/nodes/n0/pods/nothing")
        await expect(page.locator("[role=alert]")).to_contain_text("pod n0/nothing does not exist")


async def test_the_map_has_a_mark_for_each_pod_of_a_node_and_follows_them(shown: Shown) -> None:
    async with shown.page("/map") as page:
        node = page.locator(".map li", has=page.get_by_role("link", name="n0", exact=True))
        await expect(node.locator(".mark")).not_to_have_count(0)
        await expect(node.locator(".mark.green").first).to_be_visible()
        await expect(node).to_contain_text("ready")
        await expect(page.locator("#live")).to_have_text("live")
        await page.evaluate("window.same = true")
        stray = Reality(manifest="0" * 64, phase="backoff", health=Health("critical"))
        cluster = shown.rolling.cluster
        key = next(
            entry.key
            for entry in (await cluster.entries(cluster.keys.tree("reality"))).values()
            if "/n0/" in entry.key and entry.key.endswith("/web")
        )
        before = await cluster.client.read(key)
        await cluster.put(key, stray)
        await expect(node.locator(".mark.red")).to_have_count(1)
        assert before is not None
        await cluster.client.put(key, before.value)
        await expect(node.locator(".mark.red")).to_have_count(0)
        assert await page.evaluate("window.same")


async def test_trouble_stands_above_counts_and_an_empty_list_says_how_to_begin(shown: Shown) -> None:
    async with shown.page("/") as page:
        parts = await page.locator("[data-part]").evaluate_all(
            "parts => parts.map(each => each.dataset.part)"
        )
        assert parts.index("troubled") < parts.index("summary")
        await page.goto("/daemonsets")
        await expect(page.locator("main")).to_contain_text("farmctl daemonset create -f FILE")


async def test_without_javascript_everything_but_the_live_update_works(shown: Shown) -> None:
    async with shown.page("/controllers", java_script_enabled=False) as page:
        await page.get_by_label("Search").fill("note=first")
        await page.get_by_role("button", name="Search").click()
        await expect(page.locator("tbody tr")).to_have_count(1)
        await page.get_by_role("link", name="web", exact=True).click()
        await page.get_by_role("link", name=re.compile("Explain")).click()
        await expect(page.locator("h1")).to_have_text("Why: controller web")


async def test_people_act_on_a_rollout_by_click_and_are_audited_with_their_reason(shown: Shown) -> None:
    await shown.rolling.update(msgspec.structs.replace(FIRST, args=["2"]), CAREFUL)
    async with shown.page("/rollouts/web") as page:
        acts = page.locator("[data-part=acts]")
        await expect(acts.get_by_role("button")).to_have_count(0)
        await shown.sign_in(page, "eve")
        await expect(acts).to_contain_text("eve is a viewer")
        await page.get_by_role("button", name="Sign out").click()
        await page.goto("/rollouts/web")
        await shown.sign_in(page, "ada")

        async def act(word: str, plan: str, reason: str = "") -> None:
            await acts.get_by_role("button", name=f"{word}…").click()
            await expect(page.locator(".differs")).to_contain_text(plan)
            await page.get_by_label("Reason").fill(reason)
            await page.get_by_role("button", name=f"{word} web").click()

        await act("Approve", "approved 0 -> 2", HOSTILE)
        await expect(page.locator("[data-part=progress]")).to_contain_text("stage 2 of 3")
        await expect(page.locator(".differs")).to_contain_text('pod.args: (default) -> ["2"]')
        await act("Pause", "paused false -> true")
        await act("Resume", "paused true -> false")
        await expect(acts.get_by_role("button", name="Pause…")).to_be_visible()
        await act("Revert", "revert")

        async def over() -> bool:
            return not await shown.rolling.cluster.entries(shown.rolling.call.keys.tree("rollouts"))

        await eventually(over, what="the end of the rollout")
    said = {
        each.action: each for each in await shown.rolling.cluster.audits() if each.actor != "user/ada@test"
    }
    for word in ("approve", "pause", "resume", "revert"):
        assert said[f"rollout.{word}"].actor == "user/ada@farm-1"
    assert said["rollout.approve"].reason == HOSTILE


async def test_an_operator_changes_an_item_by_keyboard_once_the_plan_was_shown(shown: Shown) -> None:
    async with shown.page("/controllers/web", viewport={"width": 360, "height": 740}) as page:
        await expect(page.locator("[data-part=acts]").get_by_role("button")).to_have_count(0)
        await shown.sign_in(page, "ada")
        acts = page.locator("[data-part=acts]")
        assert await wide(page) <= 0
        await acts.get_by_label("Pods").fill("5")
        await page.keyboard.press("Enter")
        await expect(page.locator("h1")).to_have_text("Scale controller web")
        await expect(page.locator(".differs")).to_contain_text(re.compile(r"replicas \d -> 5"))
        assert await wide(page) <= 0
        await page.get_by_label("Reason").fill("more load")
        await page.keyboard.press("Enter")
        await expect(page.locator("h1")).to_have_text("Controller web")
        await page.goto("/controllers/web/act/scale?replicas=3")
        await page.get_by_role("button", name="Scale web").click()
        await expect(page.locator("h1")).to_have_text("Controller web")
    said = [each for each in await shown.rolling.cluster.audits() if each.action == "rc.set-replicas"]
    assert [(each.actor, each.reason) for each in said] == [
        ("user/ada@farm-1", "more load"),
        ("user/ada@farm-1", ""),
    ]


async def test_a_page_whose_session_ended_elsewhere_asks_to_sign_in(shown: Shown, tmp_path: Path) -> None:
    token, line = tokens.made("ada", "operator")
    file = tmp_path / "tokens"
    file.touch(mode=0o600)
    file.write_text(line)
    app = web.Application(middlewares=[errors_as_json])
    Door(lambda: shown.farm.farm, WebSection(tokens=str(file), read="token")).add_routes(app)
    async with serving_app(app) as address:
        context = await shown.browser.new_context(base_url=address)
        left, other = await context.new_page(), await context.new_page()
        await left.goto("/farms")
        await left.get_by_label("Token").fill(token)
        await left.get_by_role("button", name="Sign in").click()
        await expect(left.locator("#live")).to_have_text("live")
        await other.goto("/farms")
        await other.get_by_role("button", name="Sign out").click()
        await left.bring_to_front()
        await expect(left.get_by_label("Token")).to_be_visible()
        await context.close()


async def test_hostile_texts_are_shown_as_they_are(shown: Shown) -> None:
    call = shown.rolling.call
    log = AuditLogStore(call.keys, CLOCK, call.ids)
    record = Audit(
        at=CLOCK.now(), actor=HOSTILE, action=HOSTILE, kind="rcs", id=HOSTILE, name=HOSTILE, reason=HOSTILE
    )
    await call.client.transaction([log.operation(record)])
    async with shown.page("/audit") as page:
        await expect(page.locator(".history li").first).to_contain_text(HOSTILE)
        await expect(page.locator(".history li").first.locator(".said")).to_have_text(HOSTILE)
        assert await page.locator("main img, main script").count() == 0
        await page.goto("/controllers?" + "q=%3Cscript%3Ealert(1)%3C/script%3E&state=%22%3E%3Cb%3E")
        await expect(page.get_by_label("Search")).to_have_value("<script>alert(1)</script>")
        assert await page.locator("main b, main script").count() == 0


async def test_the_keyboard_reaches_everything_and_shows_where_it_is(shown: Shown) -> None:
    async with shown.page("/controllers") as page:
        await page.keyboard.press("Tab")
        await expect(page.get_by_text("Skip to the content")).to_be_focused()
        await page.keyboard.press("Enter")
        await page.keyboard.press("Tab")
        await expect(page.get_by_label("Search")).to_be_focused()
        outline = await page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid"
        while not await page.evaluate("document.activeElement.closest('tbody') !== null"):
            await page.keyboard.press("Tab")
        await page.keyboard.press("Enter")
        await expect(page.locator("h1")).to_have_text("Controller web")


async def test_the_dark_theme_is_dark(shown: Shown) -> None:
    async with shown.page("/", color_scheme="dark") as page:
        back = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert max(map(int, re.findall(r"\d+", back)[:3])) < 60


async def test_ten_thousand_controllers_are_paged_and_searched_on_the_server(shown: Shown) -> None:
    keys, ids = shown.rolling.call.keys, shown.rolling.call.ids
    crowd = [
        ReplicationController(
            id=ids.new(),
            name=f"crowd-{number:05}",
            manifest="0" * 64,
            pod_id="web",
            replicas_desired=0,
            labels={"crowd": "yes"},
        )
        for number in range(CROWD)
    ]
    writes = [operations.put(keys.record("rcs", rc.id), codec.encode(rc)) for rc in crowd]
    await asyncio.gather(*(shown.rolling.cluster.write(writes[start::8]) for start in range(8)))
    async with shown.page("/controllers") as page:
        await expect(page.locator(".count")).to_contain_text(f"unowned {CROWD}")
        await expect(page.locator("tbody tr")).to_have_count(100)
        await page.get_by_role("link", name="Next 100").click()
        await expect(row_of(page, "crowd-00100")).to_be_visible()
        await page.get_by_label("Search").fill("crowd-07777")
        await page.get_by_role("button", name="Search").click()
        await expect(page.locator("tbody tr")).to_have_count(1)
        await expect(row_of(page, "crowd-07777").locator(".yellow")).to_have_text("unowned")
