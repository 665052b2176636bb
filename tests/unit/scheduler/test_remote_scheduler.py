"""A remote scheduler over real HTTP: what it may say, what is thrown away, and what happens then."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
import structlog
from aiohttp import web
from aiohttp.test_utils import TestServer

from scheduler.decide import LabelSelectorScheduler
from scheduler.errors import RemoteAnswerInvalid, RemoteUnavailable, SchedulerError
from scheduler.model import Assignment, PlacementRequest, PodView
from scheduler.protocol import Scheduler
from scheduler.remote import RemoteScheduler
from store.manifests import Manifest, Spread
from store.selectors import Selector
from tests.fleets import OWNER, fleet, node, request
from tests.still_clock import StillClock

VIEW = fleet(
    node("a", {"zone": "a"}, capacity={"cpu": 1}),
    node("b", {"zone": "b"}, capacity={"cpu": 1}),
    node("c", {"zone": "b"}, cordoned=True, pods={"web": PodView("old")}),
)


class Server:
    """Answers each path with what the test says; keeps the questions."""

    def __init__(self, answer: Any = None, status: int = 200) -> None:
        self.answer = answer
        self.status = status
        self.asked: list[tuple[str, dict[str, str], Any]] = []
        self.hang = False
        self.release = asyncio.Event()

    async def handle(self, request: web.Request) -> web.Response:
        self.asked.append((request.path, dict(request.headers), await request.json()))
        if self.hang:
            await self.release.wait()
        body = self.answer if isinstance(self.answer, bytes) else json.dumps(self.answer).encode()
        return web.Response(status=self.status, body=body)


@asynccontextmanager
async def remote(
    server: Server,
    *,
    fallback: Scheduler | None = None,
    clock: StillClock | None = None,
    timeout: float = 5.0,
    token: Callable[[], str] | None = None,
) -> AsyncIterator[RemoteScheduler]:
    app = web.Application()
    app.router.add_post("/placement/v1/{what}", server.handle)
    http = TestServer(app)
    await http.start_server()
    try:
        async with aiohttp.ClientSession() as session:
            yield RemoteScheduler(
                session,
                str(http.make_url("/placement/")),
                clock or StillClock(),
                fallback=fallback,
                timeout=timeout,
                token=token,
            )
    finally:
        server.release.set()
        await http.close()


async def test_the_question_carries_no_command_environment_or_port() -> None:
    server = Server({"assignments": []})
    secret = PlacementRequest(
        manifest=Manifest(id="web", command=["/bin/secret-command"], env={"KEY": "secret-value"}),
        selector=Selector(),
        owner=OWNER,
        leaving=frozenset({("a", "web")}),
    )
    async with remote(server, token=lambda: "tok") as scheduler:
        await scheduler.allocate_nodes(secret, 1, VIEW)
    path, headers, asked = server.asked[0]
    assert path == "/placement/v1/allocate-nodes"
    assert headers["Authorization"] == "Bearer tok"
    assert "secret" not in json.dumps(asked)
    assert (asked["version"], asked["count"], asked["pod"]["id"]) == (1, 1, "web")
    assert [one["name"] for one in asked["nodes"]] == ["a", "b", "c"]
    assert asked["leaving"] == [{"node": "a", "instance": "web"}]


async def test_its_choice_counts_and_reservations_are_ours() -> None:
    server = Server({"assignments": [{"node": "b", "instance": "web"}], "why": "a is kept back"})
    async with remote(server) as scheduler:
        answer = await scheduler.allocate_nodes(request(resources={"cpu": 1}), 2, VIEW)
    assert answer.assignments == (Assignment("b", "web"),)
    assert (answer.missing, answer.why) == (1, "1 of 2 pods found no place: a is kept back")
    assert [change.node for change in answer.reservations] == ["b"]


async def test_it_may_be_stricter_about_eligible_nodes() -> None:
    server = Server({"eligible": ["b"], "retained": ["b", "c"], "refused": {"a": ["bad disk"]}})
    async with remote(server) as scheduler:
        answer = await scheduler.eligible_nodes(request(), VIEW)
    assert (answer.eligible, answer.retained) == (("b",), ("b", "c"))
    assert [reason.text for reason in answer.refused["a"]] == ["bad disk"]
    assert answer.refused["c"][0].code == "cordoned"


async def test_r21_it_sends_nobody_off_a_node_of_whose_labels_nothing_is_known() -> None:
    view = fleet(VIEW["a"], node("d", absent=True, pods={"web": PodView(OWNER)}))
    async with remote(Server({"eligible": ["a"], "retained": ["a"]})) as scheduler:
        answer = await scheduler.eligible_nodes(request("zone=a"), view)
    assert (answer.eligible, answer.retained) == (("a",), ("a", "d"))


async def test_giving_back_must_be_confirmed_exactly() -> None:
    place = Assignment("a", "web")
    server = Server({"assignments": [{"node": "a", "instance": "web"}]})
    async with remote(server) as scheduler:
        answer = await scheduler.deallocate_nodes(request(), [place], VIEW)
        assert answer.assignments == (place,)
        server.answer = {"assignments": []}
        with pytest.raises(RemoteAnswerInvalid, match="expected exactly the places that were returned"):
            await scheduler.deallocate_nodes(request(), [place], VIEW)


def places(*nodes: str, instance: str = "web") -> dict[str, Any]:
    return {"assignments": [{"node": name, "instance": instance} for name in nodes]}


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (b"<html>proxy error</html>", "malformed"),
        (b"", "truncated"),
        (b"\xff\xfe", "remote scheduler's answer"),
        ([], "Expected `object`, got `array`"),
        ({}, "missing required field `assignments`"),
        ({"assignments": [{"node": 1, "instance": "web"}]}, "got `int` - at `$.assignments[0].node`"),
        ({"assignments": [], "extra": 1}, "unknown field `extra`"),
        (places("nowhere"), "nowhere: no such node"),
        (places("c"), "c: closed to new pods"),
        (places("a", "a"), "a: already has 1 of at most 1"),
        (places("a", "b", "c"), "3 places for 2 pods"),
        (places("a", instance="other"), "instance 'other', expected 'web'"),
    ],
)
async def test_a_wrong_allocation_is_thrown_away_whole(answer: Any, line: str) -> None:
    async with remote(Server(answer)) as scheduler:
        with pytest.raises(RemoteAnswerInvalid) as refused:
            await scheduler.allocate_nodes(request(), 2, VIEW)
    assert line in refused.value.message
    assert "\n" not in refused.value.message


@pytest.mark.parametrize("instance", ["web", "web~01", "web~-1", "web~", "web~x", "web~²", "other~0"])
async def test_numbered_instances_must_follow_the_rule(instance: str) -> None:
    async with remote(Server(places("a", instance=instance))) as scheduler:
        with pytest.raises(RemoteAnswerInvalid, match="expected 'web~<number>'"):
            await scheduler.allocate_nodes(request(per_node=2), 1, VIEW)


async def test_it_can_break_neither_capacity_nor_a_hard_spread() -> None:
    async with remote(
        Server({"assignments": [{"node": "a", "instance": f"web~{n}"} for n in (0, 1)]})
    ) as bad:
        with pytest.raises(RemoteAnswerInvalid, match=r"asks for 0\.7 cores"):
            await bad.allocate_nodes(request(resources={"cpu": 0.7}, per_node=2), 2, VIEW)
    async with remote(
        Server({"assignments": [{"node": "a", "instance": f"web~{n}"} for n in (0, 1)]})
    ) as bad:
        with pytest.raises(RemoteAnswerInvalid, match="would exceed a difference of 1"):
            await bad.allocate_nodes(request(per_node=2, spread=[Spread("zone", hard=True)]), 2, VIEW)


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        ({"eligible": ["c"], "retained": ["c"]}, "eligible: found 'c': closed to new pods"),
        ({"eligible": ["x"], "retained": ["x"]}, "eligible: found 'x': no such node"),
        ({"eligible": ["a"], "retained": []}, "retained: expected 'a'"),
        ({"eligible": ["a", "a"], "retained": ["a"]}, "eligible: a node is listed twice"),
    ],
)
async def test_a_wrong_eligibility_is_thrown_away_whole(answer: Any, line: str) -> None:
    async with remote(Server(answer)) as scheduler:
        with pytest.raises(RemoteAnswerInvalid) as refused:
            await scheduler.eligible_nodes(request(), VIEW)
    assert line in refused.value.message


@pytest.mark.parametrize("status", [302, 401, 404, 500, 503])
async def test_a_status_but_200_is_a_failure(status: int) -> None:
    async with remote(Server({"assignments": []}, status)) as scheduler:
        with pytest.raises(RemoteUnavailable, match=f"status {status}, expected 200"):
            await scheduler.allocate_nodes(request(), 1, VIEW)


async def test_silence_ends_at_the_timeout_and_blocks_with_the_reason() -> None:
    server = Server()
    server.hang = True
    async with remote(server, timeout=0.05) as scheduler:
        with pytest.raises(RemoteUnavailable, match=r"no answer within 0\.05 s"):
            await scheduler.eligible_nodes(request(), VIEW)


async def test_with_a_fallback_the_local_scheduler_answers_and_one_line_is_logged() -> None:
    async with remote(Server({}, 500), fallback=LabelSelectorScheduler()) as scheduler:
        with structlog.testing.capture_logs() as lines:
            for _ in range(3):
                answer = await scheduler.allocate_nodes(request(), 1, VIEW)
                assert answer.assignments == (Assignment("a", "web"),)
    assert [line["event"] for line in lines] == ["scheduler.remote_failed"]


async def test_a_dead_remote_is_left_alone_for_a_while_and_then_tried_again() -> None:
    clock, server = StillClock(), Server({}, 500)
    async with remote(server, clock=clock) as scheduler:
        for _ in range(3):
            with pytest.raises(SchedulerError, match="status 500"):
                await scheduler.allocate_nodes(request(), 1, VIEW)
        assert len(server.asked) == 1
        clock.seconds += 30
        server.status, server.answer = 200, places("b")
        with structlog.testing.capture_logs() as lines:
            answer = await scheduler.allocate_nodes(request(), 1, VIEW)
    assert answer.assignments == (Assignment("b", "web"),)
    assert [line["event"] for line in lines] == ["scheduler.remote_recovered"]


async def test_a_dead_remote_is_told_to_each_worker_by_an_error_of_its_own() -> None:
    """One that is raised again and again would keep the frames of all workers that it was raised in."""
    depths = []
    async with remote(Server({}, 500)) as scheduler:
        for _ in range(4):
            with pytest.raises(RemoteUnavailable) as refused:
                await scheduler.allocate_nodes(request(), 1, VIEW)
            assert refused.value.fields == {"status": 500}
            depths.append(len(refused.traceback))
    assert depths[1] == depths[3]


async def test_a_manifest_that_cannot_work_is_no_fault_of_the_remote() -> None:
    asked = request(spread=[Spread("")])
    async with remote(
        Server({"eligible": [], "retained": []}), fallback=LabelSelectorScheduler()
    ) as scheduler:
        with pytest.raises(SchedulerError) as refused:
            await scheduler.eligible_nodes(asked, VIEW)
    assert refused.value.code == "placement_invalid"
