"""Builds a farm from its concrete parts; ``farm_service.py`` and the tests run the result.

All parts get their dependencies by constructor here, so this module shows which part uses which.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from alerting.alert import Alerter
from farmd.cache.caches import OWN_TREES_PAUSE, Caches, ManifestCache
from farmd.cache.fleet import FleetIndex
from farmd.failsafe.alerts import FreezeAlerts
from farmd.failsafe.evidence import evidence, mass_failure, reread
from farmd.failsafe.guard import THAW_AFTER, FailsafeGuard, RemovalBudget
from farmd.farm.farm import Farm
from farmd.farm.kind import Kind
from farmd.farm.membership import Features
from farmd.farm.plan import FarmSettings
from farmd.kinds import KINDS, KindOfWork, load
from farmd.observe.progress import Progress
from farmd.pods.placement import Placement
from farmd.work.context import Context
from scheduler.decide import LabelSelectorScheduler
from scheduler.protocol import Scheduler
from store import families, presence, registration
from store.audit import AuditLogStore
from store.consul.client import ConsulClient
from store.farms import Member
from store.keys import Keys
from store.operations import Operation
from store.ports import Clock, Ids, Recorder, Rng
from store.version import VERSION


async def build_farm(
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
    working: list[Kind] = [load(KINDS[kind].runs)(context) for kind in kinds]
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
