"""The JSON API and the streams of the page: as described, waiting for changes, bounded, for whom they are."""

from __future__ import annotations

import asyncio
import contextlib
import html
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import jsonschema
import pytest
from aiohttp import web
from openapi_spec_validator import OpenAPIV31SpecValidator

from farmd.commands.mutation import commit
from farmd.config.sections import WebSection
from farmd.jobs.commands import JOB
from farmd.kinds import KINDS
from farmd.services import commands as services
from farmd.web import events, item_lists, lists, page, tokens
from farmd.web.item_lists import NamedList
from farmd.web.server import errors_as_json
from farmd.web.site import Site
from store import codec
from store.audit import Audit, AuditLogStore
from store.deployments import Deployment, Goal
from store.families import DEPLOYMENTS
from store.jobs import Run, SlotRun
from store.named import NamedRecords
from store.services import Hook, Revision, Service, ServiceStore, Version
from tests.fleet import LIMIT, RunningFarm, client_of, cluster_on, eventually, farm_on, in_time
from tests.obedient import obedient
from tests.rolling import SECOND, STAGED, Rolling
from tests.web_servers import serving_app

LISTS = ("controllers", "rollouts", "deployments", "nodes", "daemonsets", "jobs", "apps", "services", "farms")


@dataclass
class Rig:
    """A farm whose page is served, asked as a program does."""

    rolling: Rolling
    farm: RunningFarm
    http: aiohttp.ClientSession
    address: str
    operator: str
    viewer: str
    door: page.Door

    @property
    def site(self) -> Site:
        """The page, once it was asked for."""
        assert self.door._site is not None
        return self.door._site

    async def get(self, path: str, status: int = 200, **headers: str) -> Any:
        async with self.http.get(self.address + path, headers=headers) as answer:
            assert answer.status == status, (path, await answer.text())
            return await answer.json()

    async def say(self, path: str, token: str, body: Any = None) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with self.http.post(self.address + path, json=body, headers=headers) as answer:
            return answer.status, await answer.json()


@pytest.fixture
async def rig(address: str, tmp_path: Path) -> AsyncIterator[Rig]:
    made = {role: tokens.made(role, role) for role in ("operator", "viewer")}  # type: ignore[arg-type]
    file = tmp_path / "tokens"
    file.touch(0o600)
    file.write_text("\n".join(line for _, line in made.values()))
    kinds = tuple(kind.family for kind in KINDS.values() if not kind.outside)
    async with contextlib.AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(cluster_on(address))
        await stack.enter_async_context(obedient(cluster))
        client = client_of(address)  # its own: what the farm reads is not what agents and people read
        stack.push_async_callback(client.close)
        farm = await stack.enter_async_context(farm_on(client, "farm-1", keys=cluster.keys, kinds=kinds))
        app = web.Application(middlewares=[errors_as_json])
        door = page.Door(lambda: farm.farm, WebSection(tokens=str(file), read="open"))
        door.add_routes(app)
        served = await stack.enter_async_context(serving_app(app))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        rolling = Rolling(cluster, address)
        await rolling.prepare(2, labels={"team": "web"})
        yield Rig(rolling, farm, http, served, made["operator"][0], made["viewer"][0], door)


async def test_the_description_is_valid_and_every_answer_fits_it(rig: Rig) -> None:
    call = rig.rolling.call
    types = [{"name": "worker", "replicas": 1, "pod": {"id": "bert", "command": ["/bin/true"]}}]
    await commit(call, await JOB.create(call, JOB.file.parse({"name": "bert", "types": types}, "bert.yaml")))
    await commit(call, await services.create(call, "front", "http", ["rc/web"]))
    ident = await rig.rolling.update(SECOND, STAGED)
    await rig.rolling.status(ident, "waits for farmctl rollout approve web")
    described = await rig.get("/v1/openapi.json")
    OpenAPIV31SpecValidator(described).validate()

    def fits(answer: Any, path: str) -> None:
        operation = described["paths"][path]["get"]
        schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
        jsonschema.Draft202012Validator({**schema, "components": described["components"]}).validate(answer)

    for name in LISTS:
        found = await rig.get(f"/v1/{name}")
        fits(found, f"/v1/{name}")
        for each in found["items"]:
            fits(await rig.get(f"/v1/{name}/{each.get('name') or each['id']}"), f"/v1/{name}/{{name}}")
    for name, item in (("controllers", "web"), ("rollouts", "web"), ("jobs", "bert")):
        fits(await rig.get(f"/v1/{name}/{item}/explain"), f"/v1/{name}/{{name}}/explain")
    found = await rig.get("/v1/audit?q=rollout&limit=2")
    fits(found, "/v1/audit")
    assert len(found["items"]) == 2
    older = await rig.get(f"/v1/audit?q=rollout&limit=2&cursor={found['next']}")
    assert [each for each in older["items"] if each in found["items"]] == []


async def test_no_answer_tells_the_value_of_a_hook_s_variable(rig: Rig) -> None:
    """Values may be secrets: readers get the names of variables only."""
    call, secret = rig.rolling.call, "s3cret"
    version = Version(manifest="m", pre_deploy=Hook(command=["migrate"], env={"TOKEN": secret}))
    history = [Revision(number=1, version=version)]
    store = ServiceStore(call.client, call.keys)
    service = Service(id=call.ids.new(), name="shop", mode="replicated", version=version, history=history)
    goal = Goal(service=service.id, name="shop", owner="rcs/00aa", wanted=version, previous=version)
    deployment = Deployment(id=call.ids.new(), name="shop-1", goals=[goal], draft=True)
    deployments = NamedRecords(call.client, call.keys, DEPLOYMENTS.name, Deployment, "deployment")
    await call.client.transaction([*store.create(service), *deployments.create(deployment)])
    await eventually(lambda: records(rig, "deployments"))
    for path in ("services", "services/shop", "deployments", "deployments/shop-1", "audit"):
        told = str(await rig.get(f"/v1/{path}"))
        assert secret not in told, path
        assert ("'TOKEN': '…'" in told) == (path != "audit"), path


async def records(rig: Rig, name: str) -> bool:
    """Whether the farm has seen any."""
    return bool((await rig.get(f"/v1/{name}"))["items"])


async def test_a_list_waits_for_a_change(rig: Rig) -> None:
    first = await rig.get("/v1/controllers?q=team=web")
    assert [each["name"] for each in first["items"]] == ["web"]
    waiting = asyncio.create_task(rig.get(f"/v1/controllers?q=team=web&index={first['index']}&wait=300s"))
    assert rig.rolling.rc is not None
    await rig.rolling.cluster.change_rc(rig.rolling.rc, replicas_desired=3, labels={"team": "web"})
    changed = await in_time(waiting)
    assert changed["index"] > first["index"]
    assert (await rig.get("/v1/controllers?sort=colour", 400))["error"]["code"] == "bad_request"
    assert "does not exist" in (await rig.get("/v1/controllers/none", 404))["error"]["message"]


async def test_only_an_operator_acts_and_is_audited_by_name(rig: Rig) -> None:
    await rig.rolling.status(await rig.rolling.update(SECOND, STAGED), "waits for farmctl")
    path, body = "/v1/rollouts/web/pause", {"reason": "look first"}
    assert (await rig.say(path, ""))[0] == 401
    assert (await rig.say(path, "operator.wrong"))[0] == 401
    assert (await rig.say(path, rig.viewer, body))[0] == 403
    assert (await rig.say("/v1/rollouts/web/destroy", rig.operator))[0] == 404
    assert (await rig.say("/v1/rollouts/none/pause", rig.operator))[0] == 404
    assert (await rig.say(path, rig.operator, {"reason": "x" * 501}))[0] == 400
    status, answer = await rig.say(path, rig.operator, body)
    assert (status, answer["action"], answer["changed"]) == (200, "rollout.pause", True)
    (said,) = [each for each in await rig.rolling.cluster.audits() if each.action == "rollout.pause"]
    assert (said.actor, said.reason) == ("user/operator@farm-1", "look first")


async def test_malformed_forms_are_refused(rig: Rig) -> None:
    for form, refused in (
        ("application/x-www-form-urlencoded; charset=none", 400),
        ("multipart/form-data", 415),
        ("multipart/form-data; boundary=x", 415),
    ):
        headers = {"Content-Type": form, "Origin": rig.address}
        async with rig.http.post(f"{rig.address}/signin", data=b"token=\xff", headers=headers) as answer:
            assert answer.status == refused, form


async def test_only_the_stage_that_was_seen_is_approved(rig: Rig) -> None:
    await rig.rolling.status(await rig.rolling.update(SECOND, STAGED), "waits for farmctl")
    shown = (await rig.get("/v1/rollouts/web"))["item"]["status"]["asks"]
    headers = {"Authorization": f"Bearer {rig.operator}"}
    async with rig.http.get(f"{rig.address}/rollouts/web", headers=headers) as page_of_it:
        assert f'name="stage" value="{shown}"' in await page_of_it.text()
    path = "/v1/rollouts/web/approve"
    status, answer = await rig.say(path, rig.operator, {"stage": shown + 1})
    assert (status, f"waiting for approval of stage {shown}" in answer["error"]["message"]) == (409, True)
    assert (await rig.say(path, rig.operator, {"stage": "last"}))[0] == 400
    assert (await rig.say(path, rig.operator, {"stage": shown}))[0] == 200


async def test_a_token_that_ended_gets_no_answer_that_it_waited_for(rig: Rig, tmp_path: Path) -> None:
    index = (await rig.get("/v1/controllers"))["index"]
    headers = {"Authorization": f"Bearer {rig.viewer}"}
    waiting = asyncio.create_task(rig.get(f"/v1/controllers?index={index}&wait=300s", 401, **headers))
    await eventually(lambda: streams(rig), what="a waiting request")
    operator, _ = (tmp_path / "tokens").read_text().splitlines()
    (tmp_path / "tokens").write_text(operator)
    assert rig.rolling.rc is not None
    await rig.rolling.cluster.change_rc(rig.rolling.rc, replicas_desired=3)
    await in_time(waiting)


async def test_a_stream_ends_with_its_token_and_with_its_session(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The site is the same that serves everything openly here, so this one asks for tokens."""
    app = web.Application(middlewares=[errors_as_json])
    door = page.Door(lambda: rig.farm.farm, WebSection(tokens=str(tmp_path / "tokens"), read="token"))
    door.add_routes(app)
    jar, bearer = aiohttp.CookieJar(unsafe=True), {"Authorization": f"Bearer {rig.viewer}"}
    async with serving_app(app) as address, aiohttp.ClientSession(cookie_jar=jar) as browser:
        origin, form = {"Origin": address}, {"token": rig.operator, "next": "/farms"}
        async with browser.post(f"{address}/signin", data=form, headers=origin) as entered:
            (key,) = re.findall(r'name="key" value="(\w+)"', await entered.text())
        index = (await (await rig.http.get(f"{address}/v1/farms", headers=bearer)).json())["index"]
        url = f"{address}/events?of=/farms&since={index}"
        async with browser.get(url) as of_session, rig.http.get(url, headers=bearer) as of_token:
            for stream in (of_session, of_token):
                assert await in_time(stream.content.readline()) == b"retry: 2000\n"
            async with browser.post(f"{address}/signout", data={"key": key}, headers=origin) as left:
                assert left.url.path == "/signin"
            await in_time(of_session.content.read())  # it ends at once, the other one goes on
            assert len(door._site.streams if door._site else ()) == 1
            monkeypatch.setattr(events, "HEARTBEAT_SECONDS", 0.05)
            (tmp_path / "tokens").write_text("")
            for wake in door._site.streams if door._site else ():
                wake.set()
            await in_time(of_token.content.read())
        async with browser.get(url) as again:
            assert again.status == 401


async def streams(rig: Rig) -> bool:
    """Whether a request waits at the farm."""
    return bool(rig.site.streams)


async def test_the_page_of_an_item_has_the_changes_of_the_last_day(rig: Rig) -> None:
    """Older ones are left to the audit log's page: looking for them may read all of the log."""
    call, rc = rig.rolling.call, rig.rolling.rc
    assert rc is not None
    for hours, reason in ((1, "recent"), (49, "ancient")):
        at = call.clock.now() - 3600.0 * hours
        record = Audit(at=at, actor="user/ada@test", action="rc.edit", kind="rcs", id=rc.id, reason=reason)
        await call.client.transaction([AuditLogStore(call.keys, call.clock, call.ids).operation(record)])
    async with rig.http.get(f"{rig.address}/controllers/web") as answer:
        text = await answer.text()
    assert "recent" in text
    assert "ancient" not in text


async def test_the_page_of_a_job_tells_its_attempts_and_where_their_output_is(rig: Rig) -> None:
    call = rig.rolling.call
    pod = {"id": "sum", "command": ["sleep", "9"]}
    document = {"name": "sum", "suspend": True, "types": [{"name": "main", "pod": pod, "replicas": 12}]}
    made = await JOB.create(call, JOB.file.parse(document, "test"))
    await commit(call, made)
    slots = {"main": {"10": SlotRun(2, call.clock.now() - 60.0, "node lost"), "9": SlotRun(1)}}
    run = Run(restarts=3, done={"main": "0-8"}, slots=slots, outcome="failed", reason="limit")
    await call.client.put(call.keys.record("runs", made.change.id), codec.encode(run))
    async with rig.http.get(f"{rig.address}/jobs/sum") as answer:
        text = html.unescape(await answer.text())
    facts = [each for each in re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", text) if each[0] != "Age"]
    assert {
        "Attempt": "0; retries count 3 of 6",
        "Done main": "0-8",
        "Outcome": "failed: limit",
    }.items() <= dict(facts).items()
    assert "Tried again (2 slots)" in text
    cells = [re.sub(r"<.*?>", "", cell) for cell in re.findall(r"<t[hd].*?>(.*?)</t[hd]>", text, re.DOTALL)]
    assert cells[cells.index("main/9") :][:5] == [
        "main/9",
        "1",
        "",
        "its own exit",
        "farmctl job logs sum/main/9 --attempt 0",
    ]
    assert cells[cells.index("main/10") :][:4] == ["main/10", "2", "60s", "node lost"]


async def test_a_list_that_nobody_asks_for_notes_a_bounded_number_of_changes(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(item_lists, "MOST_NOTED", 2)
    found = NamedList(rig.farm.farm, KINDS["rcs"], {})
    assert [line.name for line in found.lines()] == ["web"]
    found.changed({f"rcs/{number}" for number in range(3)})
    assert found._dirty is None
    assert [line.name for line in found.lines()] == ["web"]


async def test_the_page_of_a_node_reads_that_node_alone(rig: Rig) -> None:
    """It takes what it may from the farm's own copies, and lists neither all pods nor all reports."""
    (owner,) = (await rig.get("/v1/controllers"))["items"]
    place, _ = await rig.rolling.cluster.pods(owner["id"])
    read = list[str]()
    client, listed = rig.farm.farm.client, rig.farm.farm.client.list

    async def noting(prefix: str, **more: Any) -> Any:
        if not more.get("index"):  # the farm's own copies wait for changes
            read.append(prefix)
        return await listed(prefix, **more)

    keys = rig.rolling.call.keys
    whole = {keys.tree("pods"), keys.tree("reality"), keys.tree("intent")}
    for _ in range(5):  # the farm itself may read whole trees meanwhile, but hardly each time
        read.clear()
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(client, "list", noting)
            found = await rig.get(f"/v1/nodes/{place[0]}")
        assert [(pod["owner_name"], pod["instance"]) for pod in found["beside"]["Pod"]] == [("web", place[1])]
        if whole.isdisjoint(read):
            return
    pytest.fail(f"each look at the node read {whole.intersection(read)}")


async def test_a_stream_tells_of_changes_and_of_what_was_missed(rig: Rig) -> None:
    found = await rig.get("/v1/controllers")
    url = f"{rig.address}/events?of=/controllers&since={found['index']}"
    assert rig.rolling.rc is not None
    async with rig.http.get(url) as stream:
        assert stream.headers["Content-Type"].startswith("text/event-stream")
        await rig.rolling.cluster.change_rc(rig.rolling.rc, replicas_desired=3)
        seen = await in_time(told(stream))
    assert seen != str(found["index"])
    async with rig.http.get(url, headers={"Last-Event-ID": "1"}) as again:  # the id of a farm before
        assert await in_time(told(again)) >= seen
    async with rig.http.get(f"{rig.address}/events?of=/nothing") as nothing:
        assert nothing.status == 404
    async with rig.http.get(f"{rig.address}/events") as nothing:
        assert nothing.status == 404


async def told(stream: aiohttp.ClientResponse) -> str:
    """The id of the next event that tells of a change."""
    async for line in stream.content:
        if line.startswith(b"id: "):
            return line[4:].decode().strip()
    raise AssertionError("the stream ended")


async def test_streams_are_bounded_alive_and_end_with_the_farm(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "MOST_STREAMS", 2)
    monkeypatch.setattr(events, "HEARTBEAT_SECONDS", 0.05)
    index = (await rig.get("/v1/farms"))["index"]
    url = f"{rig.address}/events?of=/farms&since={index}"
    async with rig.http.get(url) as one, rig.http.get(url) as two, rig.http.get(url) as three:
        assert (one.status, two.status, three.status) == (200, 200, 503)
        while b"nothing new" not in await in_time(one.content.readline()):
            pass


async def test_nothing_is_followed_once_nobody_looks(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists, "LINGER_SECONDS", 0.1)

    def followed() -> list[str]:
        return [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("web-")]

    await rig.get("/v1/controllers")
    assert followed()
    async with asyncio.timeout(LIMIT):
        while followed():
            await asyncio.sleep(0.02)
    assert (await rig.get("/v1/controllers"))["total"] == 1


async def test_every_answer_of_the_page_forbids_other_sites_and_caches(rig: Rig) -> None:
    for path in ("/", "/controllers", "/audit", "/signin", "/v1/farms", "/none", "/controllers/none"):
        async with rig.http.get(rig.address + path) as answer:
            policy = answer.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.headers["Cache-Control"] == "no-store"
            assert answer.headers["Referrer-Policy"] == "same-origin"
    app, host = web.Application(), {"Host": "evil.example"}
    page.Door(lambda: rig.farm.farm, WebSection()).add_routes(app)
    async with (
        serving_app(app) as guarded,
        rig.http.get(f"{guarded}/controllers", headers=host, allow_redirects=False) as answer,
    ):
        assert (answer.status, answer.headers["Location"]) == (303, "/signin?next=%2Fcontrollers")
