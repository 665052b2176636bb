"""A submit in several transactions, whose command is killed or stopped at any of them; and two that overlap.

Whatever happens, a deployment has all of its services or none, and whoever comes next is not held up.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Literal

import pytest

from farmd.deploy import submission
from farmd.deploy.commands import Deployment
from farmd.deploy.project import ResolvedServices
from farmd.deploy.resolver import ServiceSpecResolver
from farmd.deploy.spec import ServiceSpec
from farmd.runtime.clock import system_rng
from store.consul.client import ConsulClient
from store.deployments import KIND
from store.embedded.server import InProcessTransport
from store.errors import OutcomeUnknown, StoreError, StoreUnavailable
from store.ports import Request, Response
from tests.effort import first
from tests.stateful.deploying import Deploying, spec
from tests.stateful.lines import Door
from tests.stateful.scene import Scene
from tests.toys import Faulty, is_transaction

NAMES = tuple(f"s{number}" for number in range(6))
STEPS = range(1, 6)
"""The draft, three batches of two services, and the word that it is complete."""
STOPPED_SECONDS = 120.0
Where = Literal["never sent", "never answered"]
WHERE: tuple[Where, ...] = ("never sent", "never answered")
Event = Callable[[], Awaitable[None]]


@pytest.fixture
def deploying(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Deploying:
    monkeypatch.setattr(submission, "MAX_BYTES", 3200)
    return Deploying(scene)


class Person:
    """Somebody at a prompt, to whose command something happens at its k-th transaction: before it arrives, or
    before its answer does.
    """

    def __init__(self, scene: Scene, name: str) -> None:
        transport = Faulty(InProcessTransport(Door(scene.server, name, scene.witness.enter)))  # type: ignore[arg-type]
        transport.before, transport.after = self._before, self._after
        client = ConsulClient(transport, clock=scene.clock)
        self._call = replace(scene.call, client=client, actor=f"user/{name}@desk")
        self._happens: dict[tuple[int, Where], Event] = {}
        self.dead = False
        self.sent = 0

    def at(self, k: int, where: Where, happens: Event) -> None:
        self._happens[k, where] = happens

    async def die(self) -> None:
        self.dead = True
        raise OutcomeUnknown("killed")

    async def _before(self, request: Request) -> None:
        if self.dead:
            raise StoreUnavailable("killed")
        self.sent += is_transaction(request)
        await self._meet(request, "never sent")

    async def _after(self, request: Request, _: Response) -> None:
        await self._meet(request, "never answered")

    async def _meet(self, request: Request, where: Where) -> None:
        if is_transaction(request) and (self.sent, where) in self._happens:
            await self._happens.pop((self.sent, where))()

    async def submit(self, names: Sequence[str] = NAMES) -> str:
        """Its id; empty: it was refused, or nobody knows."""
        resolver = ServiceSpecResolver(system_rng())
        wanted = {name: resolver.resolve(wish(name)) for name in names}
        deployment = Deployment(call=self._call, wanted=ResolvedServices(services=wanted), project="shop")
        await deployment.plan()
        try:
            return (await deployment.submit()).change.id
        except StoreError:
            return ""


def wish(name: str) -> ServiceSpec:
    return spec(name, f"{name}@sha256:{'1' * 64}", replicas=1)


def all_or_none(deploying: Deploying, *wholes: Sequence[str]) -> set[str]:
    """No deployment is left after a while; the services that there are, which is one of these sets."""
    deploying.until(lambda: not deploying.scene.sight.under(KIND))
    deploying.scene.advance(10.0)
    services = deploying.scene.sight.services
    assert not any(each.deployment for each in services.values())
    assert set(services) in [set(names) for names in ((), *wholes)]
    for name in services:
        assert (deploying.service(name).revision, deploying.serving(name)) == (1, 1)
    return set(services)


@pytest.mark.parametrize("where", first(1, WHERE))
@pytest.mark.parametrize("k", STEPS)
def test_a_submit_that_is_killed_at_any_step_holds_nothing_for_good(
    deploying: Deploying, scene: Scene, k: int, where: Where
) -> None:
    person = Person(scene, "ada")
    person.at(k, where, person.die)
    assert scene.run(person.submit()) == ""
    complete = (k, where) == (STEPS[-1], "never answered")
    assert all_or_none(deploying, NAMES) == set(NAMES if complete else ())
    again = scene.run(Person(scene, "bob").submit())
    if not complete:
        deploying.ended(again)
    assert all_or_none(deploying, NAMES) == set(NAMES)


@pytest.mark.parametrize("where", first(1, WHERE))
@pytest.mark.parametrize("k", STEPS)
def test_a_submit_that_is_stopped_at_any_step_for_longer_than_drafts_last_ends_as_one(
    deploying: Deploying, scene: Scene, k: int, where: Where
) -> None:
    person = Person(scene, "ada")
    person.at(k, where, lambda: scene.clock.sleep(STOPPED_SECONDS))
    came = scene.run(person.submit())
    complete = (k, where) in ((STEPS[0], "never sent"), (STEPS[-1], "never answered"))
    assert bool(came) == complete
    assert all_or_none(deploying, NAMES) == set(NAMES if complete else ())


@pytest.mark.parametrize("k", STEPS)
def test_of_two_submits_that_overlap_one_comes_through_whenever_they_meet(
    deploying: Deploying, scene: Scene, k: int
) -> None:
    first, second, others = Person(scene, "ada"), Person(scene, "bob"), (*NAMES[3:], "s6", "s7")
    came: list[str] = []

    async def beside() -> None:
        came.append(await second.submit(others))

    first.at(k, "never sent", beside)
    came.append(scene.run(first.submit()))
    assert sum(map(bool, came)) == 1
    won = others if came[0] else NAMES
    assert all_or_none(deploying, NAMES, others) == set(won)
