"""``farmctl top``: what a look at the fleet tells."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from aiohttp import web

from farmd.cli import output
from farmd.cli import usage as cli_usage
from farmd.cli.farm import FleetView, lines
from farmd.cli.invocation import Invocation
from farmd.cli.settings import Settings
from farmd.cli.usage import Agents
from farmd.overview import FarmRow, Row
from store import codec
from store.farms import Member
from store.jobs import Job, JobStatus
from store.nodes import Agent, Node
from store.rcs import ReplicationController
from store.reality import Usage
from store.status import Status
from store.times import plain
from tests.people import KEYS, person
from tests.scripted_consul import Scripted, Seen


def row(name: str, count: int) -> Row[ReplicationController]:
    record = ReplicationController(
        id=name, name=name, manifest="a" * 64, pod_id="web", replicas_desired=count, managed_by="rollouts/5e"
    )
    status = Status(state="converged", desired=count, placed=count, healthy=count, record=7)
    progress = "rollout/web: baking, stage 2 of 3, old 2/2, new 3/3"
    return Row(record=record, index=7, owner="farm-1", status=status, managed=progress)


def test_what_manages_several_owners_is_told_once_and_whole_on_a_terminal_of_80_columns() -> None:
    fleet = FleetView(0.0, [], [], {"rcs": [row("web", 2), row("web-5d01c2", 3)]}, {}, (), [])
    shown = lines(fleet, output.lines)
    at = shown.index("UNDER WAY")
    assert shown[at + 1 : at + 3] == ["rollout/web: baking, stage 2 of 3, old 2/2, new 3/3", ""]
    assert len(shown[at + 1]) <= 80
    unmanaged = {"rcs": [Row(record=row("web", 2).record, index=7, owner="farm-1")]}
    assert "UNDER WAY" not in lines(fleet._replace(owners=unmanaged), output.lines)


def test_the_slots_of_a_job_that_are_over_or_wait_are_no_pods_that_are_missing() -> None:
    jobs = [
        Row(record=Job(id="a", name="array", types=[]), index=7, status=JobStatus(state="running", **counts))
        for counts in ({"desired": 12, "done": 12}, {"desired": 900, "placed": 4, "healthy": 3})
    ]
    fleet = FleetView(0.0, [], [], {"rcs": [row("web", 2)], "jobs": jobs}, {}, (), [])
    assert "pods 6 desired, 6 placed, 5 healthy" in lines(fleet, output.lines)[1]


def test_what_is_in_trouble_comes_before_what_is_well_or_has_succeeded() -> None:
    jobs = [
        Row(
            record=Job(id=name, name=name, types=[]),
            index=7,
            owner="farm-1",
            status=JobStatus(state=state, record=7),
        )
        for name, state in (("a", "succeeded"), ("b", "running"), ("c", "failed"))
    ]
    shown = lines(FleetView(0.0, [], [], {"jobs": jobs}, {}, (), []), output.lines)
    assert [line[0] for line in shown if line[:2] in {"a ", "b ", "c "}] == ["b", "c", "a"]


def test_of_many_the_first_twenty_are_shown_and_how_many_more_there_are_those_in_trouble_first() -> None:
    farms = [FarmRow(member=Member(id=f"farm-{number:02}", version="1")) for number in range(25)]
    farms[24] = FarmRow(member=Member(id="farm-24", version="1", draining=True))
    rows = [row(f"web-{number:02}", 2) for number in range(23)]
    shown = lines(FleetView(0.0, farms, [], {"rcs": rows}, {}, (), []), output.lines)
    assert [line.split()[0] for line in shown if line.startswith("farm-")][:2] == ["farm-24", "farm-00"]
    assert [line for line in shown if line.startswith("...")] == [
        "... and 5 more farms",
        "... and 3 more rcs",
    ]


def test_states_stay_in_sight_on_a_narrow_terminal_and_long_names_shift_no_column() -> None:
    rows = [row("web", 2), row("a-name-that-is-longer-than-most-terminals-give-to-one", 3)]
    fleet = FleetView(0.0, [], [], {"rcs": rows}, {}, (), [])
    whole, narrow = (
        [
            line
            for line in lines(fleet, partial(output.lines, cropped=width))
            if line.startswith(("RC", "web", "a-"))
        ]
        for width in (0, 40)
    )
    assert len({line.index(word) for line, word in zip(whole, ("STATE", "conv", "conv"), strict=True)}) == 1
    assert [line[:40].split()[-1] for line in narrow] == ["STATE", "converged", "converged"]


async def test_usage_comes_from_few_agents_at_a_time_and_silent_ones_end_nothing_but_their_own_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cli_usage, "ALL_SECONDS", 2.0)
    monkeypatch.setattr(cli_usage, "TOGETHER", 3)
    used, waiting, most, never = Usage(at=1.0, cores=0.5, memory=7), 0, 0, asyncio.Event()

    async def silent(_: Seen) -> web.StreamResponse | None:
        nonlocal waiting, most
        waiting += 1
        most = max(most, waiting)
        try:
            await never.wait()
        finally:
            waiting -= 1
        return None

    async def answers(_: Seen) -> web.StreamResponse | None:
        return web.json_response({"usage": {"web": plain(used)}})

    async with person() as call, Scripted(silent) as dead, Scripted(answers) as live:
        nodes = ["n1", *(f"dead{number}" for number in range(6)), "left"]
        for node in nodes:
            agent = Agent(node=node, version="1", address=live.address if node == "n1" else dead.address)
            await call.client.put(KEYS.node(node), codec.encode(Node()))
            await call.client.put(KEYS.agent(node), codec.encode(agent))
        agents = Agents(Invocation(Settings(), call), 7)
        for _ in range(2):  # a screen that is drawn again within seconds asks nobody again
            found = await agents.of_nodes(nodes)
            assert found.used == {("n1", "web"): used}
            assert set(found.unknown) == {f"dead{number}" for number in range(6)}
            assert found.left == 1
        assert most <= 3
        assert len(live.seen) == 1
        *told, more, left = found.notes()
        why = "its agent did not answer within 2 s"
        assert told == [f"usage of node dead{number} is unknown: {why}" for number in range(3)]
        assert (more, left) == ("and that of 3 other nodes", "one more node was not asked")
