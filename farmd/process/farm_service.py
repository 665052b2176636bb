"""The service of a farm. An agent's process never imports it.

A farm needs the store before it can be built, so its service waits for Consul first.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import aiohttp
import structlog
from aiohttp import web

from alerting.alert import Alerter
from farmd.cache.caches import OWN_TREES_PAUSE, Caches, ManifestCache
from farmd.cache.fleet import FleetIndex
from farmd.config.sections import SchedulerSection
from farmd.declaration import KindOfWork
from farmd.failsafe.alerts import FreezeAlerts
from farmd.failsafe.evidence import evidence, mass_failure, reread
from farmd.failsafe.guard import THAW_AFTER, FailsafeGuard, RemovalBudget
from farmd.farm.errors import TRANSIENT, AnotherCluster
from farmd.farm.farm import Farm
from farmd.farm.kind import Kind
from farmd.farm.members import Features
from farmd.farm.plan import FarmSettings
from farmd.kinds import KINDS
from farmd.observe.progress import Progress
from farmd.pods.placement import Placement
from farmd.process.alerts import Alerting
from farmd.process.lifecycle import STARTING
from farmd.process.services import Built, Dependencies
from farmd.runtime.clock import cpu_seconds
from farmd.services.board import Board
from farmd.web import hosts, page, services
from farmd.web import services as web_services
from farmd.work.context import Context
from scheduler.decide import LabelSelectorScheduler
from scheduler.protocol import Scheduler
from scheduler.remote import RemoteScheduler
from store import credentials, families, presence, registration
from store.audit import AuditLogStore
from store.consul.client import ConsulClient
from store.farms import Member
from store.keys import Keys
from store.operations import Operation
from store.ports import Clock, Ids, Recorder, Rng
from store.version import VERSION

# Builds a farm from its concrete parts; ``farm_service.py`` and the tests run the result.
#
# All parts get their dependencies by constructor here, so this module shows which part uses which.


async def wire_farm(
    *,
    settings: FarmSettings,
    client: ConsulClient,
    keys: Keys,
    clock: Clock,
    rng: Rng,
    ids: Ids,
    recorder: Recorder,
    progress: Progress,
    alerter: Alerter,
    scheduler: Scheduler | None = None,
    address: str = "",
    kinds: Sequence[str],
    thaw_after: float = THAW_AFTER,
    own_trees_pause: float = OWN_TREES_PAUSE,
    sections: Mapping[str, Any] | None = None,
    cpu: Callable[[], float] = lambda: 0.0,
) -> Farm:
    """A farm that is ready to run. Registers the cluster if there is none yet.

    ``address`` is the farm's HTTP address, for its presence record. ``own_trees_pause`` is the number of
    seconds that may pass until the farm sees changes of pods and intents that others made. ``sections`` holds
    what kinds have besides the store, by the kind or by what lies outside of Consul; kinds whose outside is
    not there are left out. ``cpu`` is a clock of CPU time, by which costly turns are followed by rests.

    Raises:
        StoreError: Consul cannot be reached, or the cluster is unusable; try again later.
    """
    sections = sections or {}
    kinds = [kind for kind in kinds if KINDS[kind].outside in {"", *sections}]
    cluster = await registration.register_cluster(client, keys, ids)
    await client.learn_limits(keys.cluster)
    caches = Caches(client, keys, cluster, clock, rng, progress, own_trees_pause=own_trees_pause)
    fleet = FleetIndex(caches, keys)

    guards = _guards(
        kinds,
        settings.name,
        fleet,
        caches,
        client,
        keys,
        clock,
        recorder,
        alerter,
        thaw_after,
        renewed=lambda: not farm.lacks(),
        fence=lambda: farm.fence(),  # noqa: PLW0108 - the farm is built later
    )
    audit = AuditLogStore(keys, clock, ids)
    context = Context(
        settings=settings,
        cluster=cluster,
        client=client,
        keys=keys,
        caches=caches,
        fleet=fleet,
        scheduler=scheduler or LabelSelectorScheduler(),
        manifests=ManifestCache(client, keys),
        audit=audit,
        placement=Placement(client, keys, caches, audit, clock, fleet.ledger, fleet.ledger_changed),
        guards=guards,
        budget=lambda: RemovalBudget(clock, lambda: len(caches.farms.entries)),
        alerter=alerter,
        clock=clock,
        rng=rng,
        ids=ids,
        recorder=recorder,
        progress=progress,
        features=(features := Features(settings.knows)),
        sections=sections,
        cpu=cpu,
    )
    member = Member(
        id=settings.name,
        version=VERSION,
        kinds=list(kinds),
        selector=settings.selector,
        address=address,
        ttl=settings.ttl,
        host=socket.gethostname(),
        **presence.this_process(),
    )
    working: list[Kind] = [KINDS[kind].runs()(context) for kind in kinds]
    farm = Farm(
        settings=settings,
        features=features,
        member=member,
        client=client,
        keys=keys,
        caches=caches,
        fleet=fleet,
        kinds=working,
        guards=guards,
        clock=clock,
        rng=rng,
        ids=ids,
        recorder=recorder,
        progress=progress,
    )
    return farm


def _guards(
    kinds: Sequence[str],
    farm: str,
    fleet: FleetIndex,
    caches: Caches,
    client: ConsulClient,
    keys: Keys,
    clock: Clock,
    recorder: Recorder,
    alerter: Alerter,
    thaw_after: float,
    *,
    renewed: Callable[[], bool],
    fence: Callable[[], Sequence[Operation] | None],
) -> dict[str, FailsafeGuard]:
    """The guards of the kinds, by family. ``renewed``: whether the farm's session is renewed; ``fence``: what
    a write checks of it.
    """

    def failing() -> str | None:
        return mass_failure(*fleet.failing())

    def unseen() -> str | None:
        return caches.reality.doubt if caches.reality.ready.is_set() else None

    def present(name: str) -> bool:
        return keys.farm(name) in caches.farms.entries

    alerts = FreezeAlerts(farm, caches.failsafe, alerter, present=present)

    def guard_of(kind: KindOfWork) -> FailsafeGuard:
        return FailsafeGuard(
            kind.family,
            farm,
            [
                *evidence(caches, keys, kind.family, renewed=renewed),
                *([unseen, failing] if kind.health_matters else []),
            ],
            caches.failsafe,
            client,
            keys,
            clock,
            recorder,
            alerts,
            thaw_after,
            present=present,
            fence=fence,
            reread=partial(reread, caches),
            newest=caches.newest,
        )

    # A kind that changes pods of others' owners asks their guards, also where nobody here runs the owners.
    asked = {*kinds, *(family.name for family in families.owners())}
    guarded = [kind for kind in KINDS.values() if kind.guarded and kind.family in asked]
    return {kind.family: guard_of(kind) for kind in guarded}


log = structlog.get_logger()

T = TypeVar("T")
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.5, 15.0


def build_farm(dependencies: Dependencies) -> Built:
    """A farm."""
    service = FarmService(dependencies)
    return Built(
        service,
        mount=service.mount,
        status=service.status,
        publish=service.publish,
    )


class FarmService:
    """A farm as a process's service: waits for the store, builds the farm, runs it, sends its last alerts."""

    def __init__(self, dependencies: Dependencies) -> None:
        self._dependencies = dependencies
        self._farm: Farm | None = None
        self._lacks = STARTING
        self._alerter: Alerting | None = None
        self.board: Board | None = None
        """The endpoints of services; None before the farm is built."""

    def lacks(self) -> str:
        """What it waits for before it holds a session and sees the fleet; empty: it does."""
        return self._lacks if self._farm is None else self._farm.lacks()

    def mount(self, app: web.Application) -> None:
        """Add the routes of runbooks, of services and of the page."""
        services.add_runbook_routes(app)
        web_services.add_routes(app, lambda: self.board)
        section = self._dependencies.config.web
        if section.read == "open":  # not also to a page of another site that turned its name to loopback
            app.middlewares.append(hosts.only(section.bind, section.advertise))
        page.Door(lambda: self._farm, section, lambda: self.board).add_routes(app)

    def status(self) -> Mapping[str, Any]:
        """The farm's name, and how many items of each kind it owns."""
        loops = self._farm.loops if self._farm is not None else []
        owned = {loop.kind.name: len(loop.supervisor) for loop in loops}
        return {"farm": self._dependencies.config.farm.name, "owned": owned}

    def publish(self) -> None:
        """Write the metrics that are computed only for a scrape."""
        if self._alerter is not None:
            self._alerter.publish()
        if self._farm is not None:
            self._farm.publish()

    async def run(self, stop: asyncio.Event) -> None:
        """Run until ``stop`` is set."""
        dependencies = self._dependencies
        async with (
            aiohttp.ClientSession() as http,
            _sections(dependencies) as sections,
        ):
            alerter = Alerting(
                dependencies.config.alerts,
                http,
                dependencies.clock,
                dependencies.rng,
                dependencies.recorder,
                source=dependencies.config.farm.name,
                address=dependencies.address,
            )
            self._alerter = alerter
            dependencies.life.on_reload.append(alerter.reload)
            try:
                scheduler = choose_scheduler(dependencies.config.scheduler, dependencies.clock, http)
                while not stop.is_set():
                    with dependencies.progress.passing():
                        await self._farmed(stop, alerter, scheduler, sections)
            finally:
                await alerter.close()

    async def _farmed(
        self, stop: asyncio.Event, alerter: Alerting, scheduler: Scheduler, sections: Mapping[str, Any]
    ) -> None:
        """Run one farm until ``stop`` is set, or until the store has another cluster that it may join."""
        farm = await _unless(stop, self._built(alerter, scheduler, sections))
        if farm is None:
            return
        self._farm = farm
        self._dependencies.rights.watch(farm.features.deny)
        self.board = Board(farm.client, farm.keys, farm.caches, farm.fleet, farm.clock)
        try:
            await farm.start(stop)
        except AnotherCluster as error:
            log.warning("farm.rejoins", farm=farm.member.id, left=farm.caches.cluster, cluster=str(error))
            self._lacks, self._farm, self.board = STARTING, None, None

    async def _built(self, alerter: Alerting, scheduler: Scheduler, sections: Mapping[str, Any]) -> Farm:
        """Build the farm, once the store answers and has a usable cluster."""
        dependencies, section = self._dependencies, self._dependencies.config.farm
        wait = FIRST_WAIT_SECONDS
        while True:
            try:
                return await wire_farm(
                    settings=FarmSettings(
                        name=section.name,
                        ttl=section.ttl,
                        selector=section.selector,
                        lost_after=section.lost_after,
                        max_transfers=section.max_transfers,
                        follow=tuple(section.follow),
                        drain=section.drain,
                    ),
                    client=dependencies.client,
                    keys=dependencies.keys,
                    clock=dependencies.clock,
                    rng=dependencies.rng,
                    ids=dependencies.ids,
                    recorder=dependencies.recorder,
                    progress=dependencies.progress,
                    alerter=alerter,
                    scheduler=scheduler,
                    address=dependencies.address,
                    kinds=section.kinds,
                    sections=sections,
                    cpu=cpu_seconds,
                )
            except TRANSIENT as error:
                reason, code = error.message, error.code
            log.warning("store.unreachable", code=code, reason=reason, retry_in=round(wait, 1))
            self._lacks = f"waiting for Consul: {reason}"
            await dependencies.clock.sleep(wait * dependencies.rng.uniform(0.8, 1.2))
            wait = min(LONGEST_WAIT_SECONDS, wait * 2)


@asynccontextmanager
async def _sections(dependencies: Dependencies) -> AsyncIterator[Mapping[str, Any]]:
    """What kinds have besides the store: their sections of the configuration, or what they open by them."""
    config = dependencies.config
    async with AsyncExitStack() as stack:
        sections: dict[str, Any] = {}
        families = KINDS.keys() | {kind.among for kind in KINDS.values()}
        for family in families & set(config.__struct_fields__):
            section, opens = getattr(config, family), KINDS[family].opens if family in KINDS else None
            sections[family] = await stack.enter_async_context(opens()(section)) if opens else section
        yield sections | dict(await stack.enter_async_context(_outside(dependencies)))


@asynccontextmanager
async def _outside(dependencies: Dependencies) -> AsyncIterator[Mapping[str, Any]]:
    """The settings of what lies outside of Consul, where it is configured; else it is not even imported."""
    section = dependencies.config.kubernetes
    if not section.configured(dependencies.env):
        yield {}
        return
    from farmd.kubernetes.apps import writes
    from farmd.kubernetes.contact import opened

    clock, rng = dependencies.clock, dependencies.rng
    async with (
        opened(section, dependencies.env, clock, rng, dependencies.recorder) as settings,
        writes.opened(settings, clock, rng) as cluster,
    ):
        yield {"kubernetes": settings, "apps": cluster}


async def _unless(stop: asyncio.Event, work: Awaitable[T]) -> T | None:
    """The result of ``work``, or None if ``stop`` was set first."""
    task = asyncio.ensure_future(work)
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([task, stopping], return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        task.cancel()
        stopping.cancel()
        await asyncio.wait([task, stopping])


def choose_scheduler(section: SchedulerSection, clock: Clock, http: aiohttp.ClientSession) -> Scheduler:
    """The built-in scheduler, or a remote one with the fallback that was chosen for it."""
    built_in = LabelSelectorScheduler()
    if not section.url:
        return built_in
    return RemoteScheduler(
        http,
        section.url,
        clock,
        fallback=built_in if section.fallback == "built-in" else None,
        timeout=section.timeout,
        pause=section.pause,
        token=credentials.reread("scheduler.token_file", section.token_file),
    )
