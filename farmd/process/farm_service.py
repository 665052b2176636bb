"""The service of a farm. An agent's process never imports it.

A farm needs the store before it can be built, so its service waits for Consul first.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

import aiohttp
import structlog
from aiohttp import web

from farmd.config.sections import SchedulerSection
from farmd.farm.errors import TRANSIENT, AnotherCluster
from farmd.farm.farm import Farm
from farmd.farm.plan import FarmSettings
from farmd.kinds import KINDS, load
from farmd.process import wiring
from farmd.process.alerts import Alerting
from farmd.process.lifecycle import STARTING
from farmd.process.services import Built, Dependencies
from farmd.runtime.clock import cpu_seconds
from farmd.services.board import Board
from farmd.web import hosts, page, runbooks
from farmd.web import services as web_services
from scheduler.decide import LabelSelectorScheduler
from scheduler.protocol import Scheduler
from scheduler.remote import RemoteScheduler
from store import credentials
from store.ports import Clock

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
        runbooks.add_routes(app)
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
                return await wiring.build_farm(
                    settings=FarmSettings(
                        name=section.name,
                        ttl=section.ttl,
                        selector=section.selector,
                        lost_after=section.lost_after,
                        max_transfers=section.max_transfers,
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
        for family in KINDS.keys() & set(config.__struct_fields__):
            section, opens = getattr(config, family), KINDS[family].opens
            sections[family] = await stack.enter_async_context(load(opens)(section)) if opens else section
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
