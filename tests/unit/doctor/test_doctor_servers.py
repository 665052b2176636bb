"""What the doctor finds of Consul's servers: those that are gone, and those that go on lagging."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from farmd.doctor.examine import examine
from farmd.doctor.model import Report
from store.consul.answers import Server, ServersHealth
from store.consul.client import ConsulClient
from store.embedded.server import InProcessTransport
from store.ports import Request, Response
from store.registration import register_cluster
from tests.people import KEYS
from tests.virtual import SeededIds, VirtualClock, embedded_server

DENIED = Response(403, {"content-type": "text/plain"}, b"Permission denied")


def health(tolerance: int, *servers: tuple[str, bool], silent: str = "") -> Response:
    """As Consul tells it; each server is what serf says of it, and whether it is healthy. ``silent`` has no
    vote.
    """
    told = [
        Server(f"s{number}", f"10.0.0.{number}:8300", serf, healthy, f"s{number}" != silent)
        for number, (serf, healthy) in enumerate(servers, 1)
    ]
    body = msgspec.json.encode(ServersHealth(tolerance, told or None))
    if all(healthy for _, healthy in servers) and servers:
        return Response(200, {"content-type": "application/json"}, body)
    return Response(429, {"content-type": "text/plain; charset=utf-8"}, body)


class Several(InProcessTransport):
    """A store that tells of several servers: each look brings the next answer, later the last one."""

    def __init__(self, clock: VirtualClock, *answers: Response) -> None:
        super().__init__(embedded_server(clock))
        self.answers = list(answers)

    async def send(self, request: Request, timeout: float) -> Response:
        if request.path != "/v1/operator/autopilot/health":
            return await super().send(request, timeout)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


async def examined(*answers: Response) -> Report:
    """The report of a registered cluster whose servers are told of in this way."""
    clock = VirtualClock()
    client = ConsulClient(Several(clock, *answers), clock=clock)
    await register_cluster(client, KEYS, SeededIds())
    looking = asyncio.create_task(examine(client, KEYS, clock))
    await clock.settle()  # the whole survey is read before time passes
    await clock.advance(60.0)
    looking.cancel()
    return await looking


def servers_in(report: Report) -> dict[str, str]:
    """The explanations of findings of servers, by what they are about."""
    return {each.object: each.explanation for each in report.findings if each.code == "consul-server"}


WELL, LATE, GONE = ("alive", True), ("alive", False), ("failed", False)


@pytest.mark.parametrize(
    ("answers", "found"),
    [
        ([health(1, WELL, WELL, WELL)], {}),
        (
            [health(0, WELL, WELL, GONE)],
            {
                "consul/s3": "Consul's server s3 (10.0.0.3:8300) cannot be reached by the others (failed):"
                " if one more is lost, nothing can be written"
            },
        ),
        (
            [health(1, WELL, ("left", False), WELL, WELL, WELL)],
            {
                "consul/s2": "Consul's server s2 (10.0.0.2:8300) cannot be reached by the others (left):"
                " 1 more server may be lost"
            },
        ),
        (
            [health(0, WELL, WELL)],
            {
                "consul": "Consul has 2 servers, an even number, so one is probably missing:"
                " if one more is lost, nothing can be written"
            },
        ),
        ([health(0, WELL)], {}),
        ([health(0, WELL, WELL, WELL, silent="s3"), health(1, WELL, WELL, WELL)], {}),
        ([health(1, WELL, WELL, WELL, WELL, WELL, silent="s3")], {}),
        (
            [health(0, WELL, WELL, WELL, silent="s3")],
            {
                "consul/s3": "Consul's server s3 (10.0.0.3:8300) has no vote:"
                " if one more is lost, nothing can be written"
            },
        ),
        ([health(0, WELL, LATE, WELL), health(1, WELL, WELL, WELL)], {}),
        (
            [health(0, WELL, LATE, WELL)],
            {
                "consul/s2": "Consul's server s2 (10.0.0.2:8300) lags behind its leader:"
                " if one more is lost, nothing can be written"
            },
        ),
    ],
)
async def test_a_server_that_is_gone_or_goes_on_lagging_is_a_finding(
    answers: list[Response], found: dict[str, str]
) -> None:
    assert servers_in(await examined(*answers)) == found


@pytest.mark.parametrize(
    ("answer", "why"), [(DENIED, "needs operator:read"), (health(0), "does not report them yet")]
)
async def test_servers_that_nobody_tells_of_are_no_finding(answer: Response, why: str) -> None:
    report = await examined(answer)
    assert servers_in(report) == {}
    assert why in report.facts["consul servers"]
