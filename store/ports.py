"""The project's dependencies on its environment, as Protocols; constructors take their instances.

``farmd/runtime/clock.py`` and ``farmd/observe/recorder.py`` implement clock, randomness, ids and metrics;
``store/consul/transport.py`` and ``store/embedded/server.py`` implement ``Transport``; tests pass
virtual ones. No module reads a clock, draws a random number or makes an id in another way.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from store.entry import Entry, Page, RawEntry

Mode = Literal["default", "consistent", "stale"]
"""How fresh an answer must be (Consul consistency modes)."""


class Clock(Protocol):
    """Time. ``now`` is for times in records; deadlines use only ``mono``."""

    def now(self) -> float:
        """Wall-clock seconds since the epoch, UTC."""

    def mono(self) -> float:
        """Monotonic seconds since an arbitrary start."""

    async def sleep(self, seconds: float) -> None:
        """Return after that many seconds of this clock."""


class Rng(Protocol):
    """Randomness for jitter; ``random.Random`` satisfies it."""

    def uniform(self, a: float, b: float, /) -> float:
        """A float in [a, b]."""


class Ids(Protocol):
    """Source of identifiers."""

    def new(self) -> str:
        """16 uniformly random lower-case hex digits (R23: trees are sharded by the first one)."""


class KeyReader(Protocol):
    """Reads keys (``store.consul.client.ConsulClient``): all that a repository of records needs."""

    async def read(self, key: str, *, mode: Mode = "default") -> Entry | None:
        """One key now; None if absent."""

    async def list(self, prefix: str, *, mode: Mode = "default", most: int = 0) -> Page[RawEntry]:
        """All entries under a prefix, values undecoded; ``most``: of at most so many bytes."""

    async def keys(self, prefix: str, *, separator: str = "", mode: Mode = "default") -> Page[str]:
        """All keys under a prefix, up to the first ``separator`` behind it."""


class Recorder(Protocol):
    """Metrics. Names and labels come from the closed set in ``farmd/observe/metrics.py``; others raise."""

    def count(self, name: str, value: float = 1, /, **labels: str) -> None:
        """Add to a counter."""

    def observe(self, name: str, seconds: float, /, **labels: str) -> None:
        """Add one observation to a histogram."""

    def set(self, name: str, value: float, /, **labels: str) -> None:
        """Set a gauge."""

    def forget(self, name: str, /, **labels: str) -> None:
        """Export a series no more."""


class Lane(enum.Enum):
    """Which pool of connections a request uses: a full pool never delays requests of other lanes."""

    READ = "read"
    WATCH = "watch"
    WRITE = "write"
    SESSION = "session"


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request to Consul's API; ``path`` starts with ``/v1/`` and is not escaped."""

    method: str
    path: str
    params: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    lane: Lane = Lane.READ
    known: str = ""
    """The index of an answer that the sender has: the body of another answer with it may be left out."""
    most: int = 0
    """How many bytes the answer may have; 0: what the transport allows."""


@dataclass(frozen=True, slots=True)
class Response:
    """An answer, undecoded; header names are lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Transport(Protocol):
    """Sends requests to one Consul API: over aiohttp to a real or embedded server, or in-process."""

    async def send(self, request: Request, timeout: float) -> Response:
        """Send a request and return the whole answer, with any status.

        Raises:
            store.errors.StoreUnavailable: the request never left; it is safe to send it again.
            store.errors.OutcomeUnknown: the request may have left, and no complete answer came.
        """

    async def close(self) -> None:
        """Drop all connections."""
