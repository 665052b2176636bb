"""What a service of a process is built from, and what it gives to the process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from farmd.config.sections import Config
from farmd.observe.progress import Progress
from farmd.process.lifecycle import Life, ProcessService
from farmd.process.permissions import Rights
from store.consul.client import ConsulClient
from store.keys import Keys
from store.ports import Clock, Ids, Recorder, Rng


@dataclass(frozen=True, slots=True)
class Dependencies:
    """What a service is built from. ``address`` is this process's HTTP address for other machines."""

    config: Config
    life: Life
    client: ConsulClient
    keys: Keys
    clock: Clock
    rng: Rng
    ids: Ids
    recorder: Recorder
    progress: Progress
    address: str
    env: Mapping[str, str]
    rights: Rights = field(default_factory=Rights)


@dataclass(frozen=True, slots=True)
class Built:
    """A process's service, its own HTTP routes, and its answer to ``/v1/status``."""

    service: ProcessService
    mount: Callable[[web.Application], None] = lambda _: None
    status: Callable[[], Mapping[str, Any]] = field(default=dict)
    publish: Callable[[], None] = lambda: None
