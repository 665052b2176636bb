"""The doctor's findings about clusters of Kubernetes, from what farms say of them."""

from __future__ import annotations

import pytest

from farmd.commands.mutation import Call
from farmd.doctor.model import Finding
from store import codec
from store.farms import ClusterReport, Member
from tests.people import KEYS, person
from tests.unit.doctor.test_doctor_findings import healthy, look


async def say(call: Call, farm: str, **report: object) -> None:
    said = ClusterReport(**{"uid": "u1", **report})  # type: ignore[arg-type]
    record = Member(
        id=farm, version="1.0", kinds=["rcs", "nodes", "housekeeping", "kubejobs"], clusters={"prod": said}
    )
    session = await call.client.create_session(name=farm, ttl=3600)
    await call.client.put(KEYS.farm(farm), codec.encode(record), acquire=session)


async def found(call: Call) -> list[Finding]:
    return [finding for finding in (await look(call)).findings if finding.code.startswith("kubernetes-")]


@pytest.mark.parametrize(
    ("code", "fix"),
    [
        ("unreachable", "farmctl kubernetes status"),
        ("denied", "farmctl kubernetes install"),
        ("identity", "farmctl kubernetes accept --name prod"),
        ("missing", "farmctl kubernetes install"),
        ("older", "farmctl kubernetes install"),
        ("clock-skew", "set the clock"),
        ("of a later version", "upgrade farmctl"),
    ],
)
async def test_each_trouble_of_a_farm_is_a_finding_with_its_fix(code: str, fix: str) -> None:
    async with person() as call:
        await healthy(call)
        await say(call, "two", troubles={code: "what was found"})
        (finding,) = await found(call)
        assert (finding.code, finding.object) == (f"kubernetes-{code}", "farms/two")
        assert finding.explanation == "Kubernetes 'prod': what was found"
        assert fix in finding.fix


async def test_farms_that_mean_one_cluster_and_reach_it_are_no_finding() -> None:
    async with person() as call:
        await healthy(call)
        await say(call, "two", namespaces=["ml"])
        await say(call, "three", namespaces=["ml"], uid="")
        assert await found(call) == []


@pytest.mark.parametrize(
    ("report", "text"),
    [
        ({"uid": "u2"}, "different clusters (uids of kube-system) under the name 'prod': three: u2, two: u1"),
        ({"namespaces": ["ml"]}, "different namespaces under the name 'prod': three: ml, two: all"),
    ],
)
async def test_farms_that_mean_different_things_by_one_name_are_a_finding(
    report: dict[str, object], text: str
) -> None:
    async with person() as call:
        await healthy(call)
        await say(call, "two")
        await say(call, "three", **report)
        (finding,) = await found(call)
        assert (finding.code, finding.object) == ("kubernetes-differs", "meta/kubernetes/prod")
        assert text in finding.explanation
