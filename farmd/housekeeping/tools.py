"""What every chore is built with."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass

from farmd.housekeeping.model import HousekeepingSettings
from store.audit import AuditLogStore
from store.consul.client import ConsulClient
from store.keys import Keys
from store.ports import Clock, Ids, Recorder, Rng


@dataclass(frozen=True, slots=True)
class Tools:
    """``known_references`` are digests that the caches see referred to: they only save reading.

    ``doubt`` says why this farm may not remove anything now, or None.
    """

    farm: str
    client: ConsulClient
    keys: Keys
    cluster: str
    audit: AuditLogStore
    settings: HousekeepingSettings
    known_references: Callable[[], Set[str]]
    doubt: Callable[[], str | None]
    clock: Clock
    rng: Rng
    ids: Ids
    recorder: Recorder
