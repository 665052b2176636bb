"""What operators change on the page: the plan first, then the change that was shown, audited as theirs."""

from __future__ import annotations

import contextlib
import html
import re
from collections.abc import AsyncIterator

import aiohttp
import jsonschema
import pytest

from farmd.commands.mutation import commit
from farmd.jobs.commands import JOB
from tests.integration.test_page_api import SECOND, STAGED, Rig, rig

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


ACTS = pytest.mark.parametrize(
    ("path", "told", "action"),
    [
        ("/controllers/web/act/scale?replicas=1", "replicas 2 -> 1", "rc.set-replicas"),
        ("/controllers/web/act/restart", "restarts its pods (2)", "rc.restart"),
        ("/nodes/n0/act/cordon", "cordoned false -> true", "node.cordon"),
        ("/nodes/n0/act/drain?deadline=30m", "moves: web", "node.drain"),
        ("/jobs/bert/act/stop", "suspend false -> true", "job.stop"),
    ],
)


async def with_job(rig: Rig) -> None:
    call = rig.rolling.call
    types = [{"name": "worker", "replicas": 1, "pod": {"id": "bert", "command": ["/bin/true"]}}]
    await commit(call, await JOB.create(call, JOB.file.parse({"name": "bert", "types": types}, "bert.yaml")))


@ACTS
async def test_an_operator_sees_the_plan_before_it_is_carried_out(
    rig: Rig, path: str, told: str, action: str
) -> None:
    await with_job(rig)
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


@ACTS
async def test_a_program_confirms_the_plan_by_its_token(rig: Rig, path: str, told: str, action: str) -> None:
    await with_job(rig)
    path, _, query = path.replace("/act/", "/").partition("?")
    path, argument = f"/v1{path}", dict([query.split("=")] if query else [])
    for token, refused in (("", 401), (rig.viewer, 403)):
        assert (await rig.say(f"{path}?plan=1", token, argument))[0] == refused
    before = len(await rig.rolling.cluster.audits())
    status, plan = await rig.say(f"{path}?plan=1", rig.operator, argument)
    assert (status, plan["kind"], plan["changed"]) == (200, "Plan", True)
    assert told in "\n".join(plan["lines"])
    described = await rig.get("/v1/openapi.json")
    named = path.replace("/web/", "/{name}/").replace("/n0/", "/{name}/").replace("/bert/", "/{name}/")
    schema = described["paths"][named]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
    fits = jsonschema.Draft202012Validator({**schema, "components": described["components"]})
    fits.validate(plan)
    missing = await rig.say(path, rig.operator, argument)
    assert (missing[0], f"POST {path}?plan=1" in missing[1]["error"]["message"]) == (400, True)
    assert (await rig.say(path, rig.operator, argument | {"token": "x"}))[0] == 409
    assert (await rig.say(path, rig.operator, argument | {"tokens": "x"}))[0] == 400
    assert len(await rig.rolling.cluster.audits()) == before
    body = argument | {"token": plan["token"], "reason": "why"}
    assert (await rig.say(path, rig.viewer, body))[0] == 403
    status, change = await rig.say(path, rig.operator, body)
    assert (status, change["action"], change["changed"]) == (200, action, True)
    fits.validate(change)
    made = (await rig.rolling.cluster.audits())[before:]
    (audit,) = [each for each in made if each.action == action]
    assert (audit.actor, audit.reason) == ("user/operator@farm-1", "why")


async def test_a_rollout_is_acted_on_after_its_plan_and_by_programs_also_without(rig: Rig) -> None:
    ident = await rig.rolling.update(SECOND, STAGED)
    await rig.rolling.status(ident, "waits for farmctl")
    stage = (await rig.get("/v1/rollouts/web"))["item"]["status"]["asks"]
    async with signed_in(rig, rig.operator) as session:
        _, shown, _ = await form_of(rig, session, "/rollouts/web")
        assert 'action="/rollouts/web/act/approve"' in shown
        assert 'action="/rollouts/web/act/resume"' not in shown
        status, shown, fields = await form_of(rig, session, f"/rollouts/web/act/approve?stage={stage}")
        assert (status, f"approved 0 -> {stage}" in shown, fields["stage"]) == (200, True, str(stage))
        # Another operator is faster: the plan that was shown is not carried out.
        plan = (await rig.say("/v1/rollouts/web/pause?plan=1", rig.operator))[1]
        assert plan["lines"] == ["paused false -> true"]
        assert (await rig.say("/v1/rollouts/web/pause", rig.operator, {"token": "x"}))[0] == 409
        assert (await rig.say("/v1/rollouts/web/approve", rig.operator, {"stage": stage}))[0] == 200
        where, origin = f"{rig.address}/rollouts/web/act/approve", {"Origin": rig.address}
        async with session.post(where, data=fields, headers=origin, allow_redirects=False) as answer:
            assert answer.status == 409


@pytest.mark.parametrize(
    ("word", "told", "argument"),
    [
        ("revert", "all pods go back to version", {}),
        ("abort", "both controllers stay, with the pods that they have", {}),
        ("scale", "replicas 2 -> 3", {"replicas": "3"}),
    ],
)
async def test_the_plan_of_an_action_on_a_rollout_says_what_becomes_of_its_pods(
    rig: Rig, word: str, told: str, argument: dict[str, str]
) -> None:
    ident = await rig.rolling.update(SECOND, STAGED)
    await rig.rolling.status(ident, "waits for farmctl")
    path = f"/v1/rollouts/web/{word}"
    status, plan = await rig.say(f"{path}?plan=1", rig.operator, argument)
    assert (status, told in "\n".join(plan["lines"])) == (200, True), plan
    if word != "revert":
        assert (await rig.say(path, rig.operator, argument))[0] == 400
    async with signed_in(rig, rig.operator) as session:
        _, shown, _ = await form_of(rig, session, "/rollouts/web")
        assert f'action="/rollouts/web/act/{word}"' in shown
        where = f"/rollouts/web/act/{word}"
        query = "&".join(f"{name}={text}" for name, text in argument.items())
        status, shown, fields = await form_of(rig, session, f"{where}?{query}")
        assert (status, told in shown) == (200, True), shown
        origin = {"Origin": rig.address}
        async with session.post(
            rig.address + where, data=fields, headers=origin, allow_redirects=False
        ) as answer:
            assert answer.status == 303, await answer.text()
    audits = await rig.rolling.cluster.audits()
    assert [each.actor for each in audits if each.action == f"rollout.{word}"] == ["user/operator@farm-1"]


async def test_a_session_of_the_page_is_no_credential_of_a_program(rig: Rig) -> None:
    async with signed_in(rig, rig.operator) as session:
        path = f"{rig.address}/v1/nodes/n0/cordon?plan=1"
        async with session.post(path, json={}, headers={"Origin": rig.address}) as answer:
            assert answer.status == 401


async def test_a_viewer_and_a_stranger_get_no_plan_and_no_form(rig: Rig) -> None:
    async with signed_in(rig, rig.viewer) as session:
        _, shown, _ = await form_of(rig, session, "/controllers/web")
        assert "/act/" not in shown
        assert "viewer; an operator may act (restart, scale)" in shown
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
