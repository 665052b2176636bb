"""Runs one health check of one pod: HTTP, TCP or a command, never for longer than the check's timeout."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import aiohttp

from farmd.agent.errors import StartFailed
from farmd.agent.runtimes.port import Silent
from store.manifests import HealthCheck

Result = Literal["passing", "failing", "timeout"]


@dataclass(frozen=True, slots=True)
class Target:
    """The checked pod: its ports on this node, what runs a check's command beside it, and the addresses of
    ports that are published at one alone.
    """

    ports: Mapping[str, int]
    run: Callable[[Sequence[str]], Awaitable[int]]
    addresses: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check; ``reason`` is one line for people."""

    result: Result
    reason: str


class Checker:
    """Runs checks against ``host``, where the pods of this node listen."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._http: aiohttp.ClientSession | None = None

    async def check(self, check: HealthCheck, target: Target) -> CheckResult:
        """Run one check."""
        try:
            async with asyncio.timeout(check.timeout):
                if check.type == "http":
                    return await self._ask(check, target)
                if check.type == "tcp":
                    return await self._connect(check, target)
                code = await target.run(check.command)
                return CheckResult("passing" if code == 0 else "failing", f"exit code {code}")
        except Silent as error:
            return CheckResult("timeout", error.message)
        except TimeoutError:
            return CheckResult("timeout", f"no answer in {check.timeout:g} s")
        except (OSError, aiohttp.ClientError, StartFailed) as error:
            return CheckResult("failing", _reason(error))

    async def close(self) -> None:
        """Drop connections."""
        if self._http is not None:
            await self._http.close()
            self._http = None

    async def _ask(self, check: HealthCheck, target: Target) -> CheckResult:
        if self._http is None:
            # A new connection for each check: a kept one would hide that the pod accepts no more.
            connector = aiohttp.TCPConnector(force_close=True, limit=0)
            self._http = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
        host = self._address(check, target)
        host = f"[{host}]" if ":" in host else host
        url = f"http://{host}:{target.ports[check.port]}{check.path}"
        async with self._http.get(url, allow_redirects=False) as response:
            good = 200 <= response.status < 300
            return CheckResult("passing" if good else "failing", f"HTTP {response.status}")

    async def _connect(self, check: HealthCheck, target: Target) -> CheckResult:
        _, writer = await asyncio.open_connection(self._address(check, target), target.ports[check.port])
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        return CheckResult("passing", "connected")

    def _address(self, check: HealthCheck, target: Target) -> str:
        return target.addresses.get(check.port) or self._host


def _reason(error: Exception) -> str:
    inner = getattr(error, "os_error", error)
    text = getattr(inner, "strerror", None) or str(inner) or type(error).__name__
    return text.splitlines()[0].lower()
