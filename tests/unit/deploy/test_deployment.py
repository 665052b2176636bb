"""A deployment as programs use it: planned, submitted once, run once."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from farmd.commands.mutation import Call
from farmd.deploy.commands import Deployment
from farmd.deploy.noun import DEPLOYMENT
from farmd.deploy.project import ResolvedServices
from farmd.deploy.spec import ContainerSpec, ServiceSpec
from farmd.runtime.errors import EndedOtherwise, FarmdError, Stale, WaitTimeout
from store import codec
from store.audit import Audit, AuditLogStore
from store.errors import Conflict, TooLarge
from store.nodes import Agent
from store.services import ServiceStore
from tests.people import KEYS, person

SPEC = ServiceSpec(name="web", container=ContainerSpec(image=f"web@sha256:{'1' * 64}"))


async def planned(call: Call, spec: ServiceSpec = SPEC) -> Deployment:
    agent = Agent(node="m1", version="1", features=["runtime.container"])
    await call.client.put(KEYS.agent("m1"), codec.encode(agent))
    found = Deployment(call=call, wanted=ResolvedServices(services={spec.name: spec}))
    await found.plan()
    return found


async def ends(call: Call, how: str, reason: str = "") -> None:
    """A farm ends the only deployment."""
    records = DEPLOYMENT.records(call.client, call.keys)
    (stored,) = (await records.list()).items
    record = stored.record
    log = AuditLogStore(call.keys, call.clock, call.ids)
    told = Audit(
        at=log.now(), actor="farm/f", action=f"deployment.{how}", kind="deployments", id=record.id,
        name=record.name, reason=reason, after={"failed": "m1/web~0"} if reason else {},
    )  # fmt: skip
    await call.client.transaction([*records.delete(stored), log.operation(told)])


async def test_what_was_not_planned_is_planned_once() -> None:
    async with person() as call:
        agent = Agent(node="m1", version="1", features=["runtime.container"])
        await call.client.put(KEYS.agent("m1"), codec.encode(agent))
        deployment = Deployment(call=call, wanted=ResolvedServices(services={SPEC.name: SPEC}))
        with pytest.raises(WaitTimeout, match="web waiting"):
            await deployment.run(0.0, lambda _: None)
        assert [str(step) for step in deployment.made.services[0]] == [
            f"run {deployment.made.services[0].service_id} on m1"
        ]
        assert await deployment.plan() is await deployment.plan() is deployment.made


async def test_it_is_submitted_once_and_run_once() -> None:
    async with person() as call:
        deployment = await planned(call)
        await deployment.submit()
        with pytest.raises(FarmdError, match="was submitted already, expected a new one"):
            await deployment.submit()
        await ends(call, "done")
        assert await deployment.run(10.0, lambda _: None) is deployment.made
        with pytest.raises(FarmdError, match="was run already, expected a new one"):
            await deployment.run(10.0, lambda _: None)


@pytest.mark.parametrize(
    ("how", "error", "told"),
    [
        ("reverted", EndedOtherwise, "was rolled back: web: m1/web~0: exited with code 1"),
        ("stale", Stale, "was stale: web"),
        ("abandoned", EndedOtherwise, "was abandoned: web"),
    ],
)
async def test_another_end_is_an_error_with_its_reason(how: str, error: type[Exception], told: str) -> None:
    async with person() as call:
        deployment = await planned(call)
        await deployment.submit()
        await ends(call, how, "web: m1/web~0: exited with code 1")
        with pytest.raises(error, match=told) as raised:
            await deployment.run(10.0, lambda _: None)
        assert getattr(raised.value, "fields", {})["failed"] == [["m1", "web~0"]]


async def test_what_is_not_over_in_time_is_an_error_and_goes_on() -> None:
    async with person() as call:
        deployment = await planned(call)
        with pytest.raises(WaitTimeout, match="is not over after 0 s: web waiting"):
            await deployment.run(0.0, lambda _: None)
        assert len((await DEPLOYMENT.records(call.client, call.keys).list()).items) == 1


async def test_a_service_that_was_changed_after_the_plan_is_not_joined() -> None:
    async with person() as call:
        deployment, other = await planned(call), await planned(call)
        await other.submit()
        await ends(call, "done")
        with pytest.raises(Conflict, match="changed since it was read"):
            await deployment.submit()


async def test_what_is_too_large_for_the_store_is_refused_before_anything_is_written() -> None:
    async with person() as call:
        command = [f"{'x' * 100}{number}" for number in range(3000)]
        large = replace(SPEC, pre_deploy=None, labels=dict.fromkeys(command, ""))
        deployment = await planned(call, large)
        with pytest.raises(TooLarge, match="expected fewer services"):
            await deployment.submit()
        assert (await ServiceStore(call.client, call.keys).list()).items == []
