"""What operators change on the page: the plan first, then the change that was shown, audited as theirs."""

from __future__ import annotations

import contextlib
import html
import re
from collections.abc import AsyncIterator

import aiohttp
import pytest

from farmd.commands.mutation import commit
from farmd.jobs.commands import JOB
from tests.integration.test_page_api import Rig, rig

__all__ = ["rig"]


async def form_of(rig: Rig, session: aiohttp.ClientSession, path: str) -> tuple[int, str, dict[str, str]]:
    """A page, and the hidden fields of its form."""
    async with session.get(rig.address + path, headers={"Accept": "text/html"}) as answer:
        text = await answer.text()
    main = text.partition("<main")[2]
    hidden = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', main)
    return answer.status, html.unescape(main), {name: html.unescape(value) for name, value in hidden}


@contextlib.asynccontextmanager
async def signed_in(rig: Rig, token: str) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
        said, origin = {"token": token, "next": "/"}, {"Origin": rig.address}
        async with session.post(rig.address + "/signin", data=said, headers=origin) as answer:
            assert answer.status == 200
        yield session


@pytest.mark.parametrize(
    ("path", "told", "action"),
    [
        ("/controllers/web/act/scale?replicas=1", "replicas 2 -> 1", "rc.set-replicas"),
        ("/controllers/web/act/restart", "restarts its pods (2)", "rc.restart"),
        ("/nodes/n0/act/cordon", "cordoned false -> true", "node.cordon"),
        ("/nodes/n0/act/drain?deadline=30m", "moves: web", "node.drain"),
        ("/jobs/bert/act/stop", "suspend false -> true", "job.stop"),
    ],
)
async def test_an_operator_sees_the_plan_before_it_is_carried_out(
    rig: Rig, path: str, told: str, action: str
) -> None:
    call = rig.rolling.call
    types = [{"name": "worker", "replicas": 1, "pod": {"id": "bert", "command": ["/bin/true"]}}]
    await commit(call, await JOB.create(call, JOB.file.parse({"name": "bert", "types": types}, "bert.yaml")))
    async with signed_in(rig, rig.operator) as session:
        where = path.partition("?")[0]
        _, shown, _ = await form_of(rig, session, where.partition("/act/")[0])
        assert f'action="{where}"' in shown
        status, shown, fields = await form_of(rig, session, path)
        assert (status, told in shown) == (200, True), shown
        before = len(await rig.rolling.cluster.audits())
        for changed, expected in (({"key": "x"}, 403), ({"seen": "x"}, 409), ({}, 303)):
            body, origin = fields | changed | {"reason": "why"}, {"Origin": rig.address}
            async with session.post(
                rig.address + where, data=body, headers=origin, allow_redirects=False
            ) as answer:
                assert answer.status == expected, await answer.text()
        made = (await rig.rolling.cluster.audits())[before:]
    (audit,) = [each for each in made if each.action == action]
    assert (audit.actor, audit.reason) == ("user/operator@farm-1", "why")


async def test_a_viewer_and_a_stranger_get_no_plan_and_no_form(rig: Rig) -> None:
    async with signed_in(rig, rig.viewer) as session:
        _, shown, _ = await form_of(rig, session, "/controllers/web")
        assert "/act/" not in shown
        assert (await form_of(rig, session, "/controllers/web/act/restart"))[0] == 403
    assert (await form_of(rig, rig.http, "/controllers/web/act/restart"))[0] == 401


@pytest.mark.parametrize(
    ("path", "status", "told"),
    [
        ("/controllers/web/act/scale?replicas=many", 400, "replicas: found 'many', expected a whole number"),
        ("/controllers/web/act/scale", 400, "replicas: found ''"),
        ("/nodes/n0/act/drain?deadline=soon", 400, "deadline: found 'soon'"),
        ("/controllers/web/act/forget", 404, "does not exist"),
        ("/controllers/nothing/act/restart", 404, "does not exist"),
    ],
)
async def test_a_plan_that_cannot_be_made_says_why(rig: Rig, path: str, status: int, told: str) -> None:
    async with signed_in(rig, rig.operator) as session:
        found, shown, _ = await form_of(rig, session, path)
        assert (found, told in shown) == (status, True), shown
