"""The real clock, randomness and ids: the only module that may use ``time``, ``random``, ``secrets``.

All other code gets them by constructor (``store/ports.py``), so that tests pass virtual ones.
``mono`` must also advance while the machine is suspended: a session's validity is measured with it
(R2), and a laptop's sleep or a paused virtual machine counts against the TTL at Consul.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time

# Linux's CLOCK_MONOTONIC stops during suspend; CLOCK_BOOTTIME does not.
_MONO = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The machine's time; satisfies ``store.ports.Clock``."""

    def now(self) -> float:
        """Wall-clock seconds since the epoch, UTC."""
        return time.time()

    def mono(self) -> float:
        """Monotonic seconds, including the time of a suspend."""
        return time.clock_gettime(_MONO)

    async def sleep(self, seconds: float) -> None:
        """Return after that many seconds; at once for zero or less, but never without yielding."""
        await asyncio.sleep(max(0.0, seconds))


def cpu_seconds() -> float:
    """The CPU time that this thread has used."""
    return time.thread_time()


class SystemIds:
    """Ids from the kernel's randomness; satisfies ``store.ports.Ids``."""

    def new(self) -> str:
        """16 uniformly random lower-case hex digits (R23)."""
        return secrets.token_hex(8)


def system_rng() -> random.Random:
    """A generator for jitter, seeded by the kernel; never for secrets."""
    return random.Random(secrets.randbits(64))


def systemd_clock_usec() -> int:
    """Microseconds of the clock that systemd compares a reload's start with (``MONOTONIC_USEC``)."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
