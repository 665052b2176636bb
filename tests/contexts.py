"""A farm's context over any store, for tests that run one worker without the claim engine."""

from __future__ import annotations

import random
from typing import Any

from prometheus_client import CollectorRegistry

from alerting.alert import Alerter
from farmd.cache.caches import Caches, ManifestCache
from farmd.cache.fleet import FleetIndex
from farmd.failsafe.guard import RemovalBudget
from farmd.farm.plan import FarmSettings
from farmd.observe.progress import Progress
from farmd.observe.recorder import Metrics
from farmd.pods.placement import Placement
from farmd.work.context import Context
from scheduler.decide import LabelSelectorScheduler
from store.audit import AuditLogStore
from store.consul.client import ConsulClient
from store.keys import Keys
from store.ports import Clock, Ids, Recorder
from tests.fleet import Inbox


def context_on(
    client: ConsulClient,
    keys: Keys,
    cluster: str,
    clock: Clock,
    ids: Ids,
    recorder: Recorder,
    *,
    name: str = "one",
    alerter: Alerter | None = None,
    **changed: Any,
) -> Context:
    """A context whose caches are empty until somebody runs them; ``changed`` are other parts of it."""
    rng = random.Random(1)
    progress = Progress(clock, Metrics(CollectorRegistry()))
    caches = Caches(client, keys, cluster, clock, rng, progress)
    fleet, audit = FleetIndex(caches, keys), AuditLogStore(keys, clock, ids)
    parts: dict[str, Any] = {
        "settings": FarmSettings(name),
        "cluster": cluster,
        "client": client,
        "keys": keys,
        "caches": caches,
        "fleet": fleet,
        "scheduler": LabelSelectorScheduler(),
        "manifests": ManifestCache(client, keys),
        "audit": audit,
        "placement": Placement(client, keys, caches, audit, clock, fleet.ledger),
        "guards": {},
        "budget": lambda: RemovalBudget(clock, lambda: 1),
        "alerter": alerter or Inbox(),
        "clock": clock,
        "rng": rng,
        "ids": ids,
        "recorder": recorder,
        "progress": progress,
    }
    return Context(**parts | changed)
