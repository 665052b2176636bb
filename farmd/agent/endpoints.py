"""Follows the endpoints of services for the templates of pods: one parked request per service and agent.

Farms tell endpoints to everybody, so the agent needs no right but to see where farms are: it reads ``farms/``
once for each farm that it has to look for. What must never break: no answer changes nothing, so the last
endpoints stay while no farm answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import aiohttp
import msgspec
import structlog

from farmd.agent.errors import StartFailed
from farmd.runtime.wake import within
from store import credentials
from store.consul.client import ConsulClient
from store.credentials import CredentialFiles
from store.errors import StoreError
from store.farms import Member
from store.http import reason
from store.keys import Keys
from store.named import records
from store.ports import Clock, Rng

log = structlog.get_logger()

WAIT_SECONDS = 60
ANSWER_SECONDS = WAIT_SECONDS + 15.0
CONNECT_SECONDS = 3.0
PAUSE_SECONDS, LONGEST_PAUSE, ABSENT_SECONDS = 0.5, 10.0, 10.0
MOST_BYTES = 8 << 20
# Farms that restart are no news.
SILENT_SECONDS = 60.0
# A template waits so long for the first answer.
FIRST_SECONDS = 10.0
MOST_SERVICES = 16

Items = Sequence[Mapping[str, Any]]


class _Item(msgspec.Struct):
    node: str
    instance: str
    address: str
    port: int


class _Answer(msgspec.Struct):
    index: int
    items: list[_Item]


class _Followed:
    """One service as the last answer told it; ``items`` None: there is none of that name. ``since``: when
    farms began to give no answer; monotonic, None: one did.
    """

    def __init__(self) -> None:
        self.items: Items | None = None
        self.known = asyncio.Event()
        self.trouble = ""
        self.since: float | None = None
        self.task: asyncio.Task[None] | None = None


class Endpoints:
    """The services that templates of this node's pods ask for; ``changed`` is called with the name of one."""

    def __init__(self, client: ConsulClient, keys: Keys, clock: Clock, rng: Rng, ca: str) -> None:
        self._client, self._keys, self._clock, self._rng = client, keys, clock, rng
        self._services: dict[str, _Followed] = {}
        self._wanted: dict[str, frozenset[str]] = {}
        self._http: aiohttp.ClientSession | None = None
        self._tls = CredentialFiles([ca], lambda: credentials.authorities("agent.farm_ca", ca))
        self.changed: Callable[[str], None] = lambda _: None

    def want(self, holder: str, names: Collection[str]) -> None:
        """Follow these services for a holder from now on, and no others; none: forget the holder.

        Raises:
            StartFailed: they are too many.
        """
        if len(names) > MOST_SERVICES:
            raise StartFailed(f"files: found {len(names)} services, expected at most {MOST_SERVICES}")
        if names:
            self._wanted[holder] = frozenset(names)
        else:
            self._wanted.pop(holder, None)
        wanted = frozenset[str]().union(*self._wanted.values())
        for name in wanted - self._services.keys():
            service = self._services[name] = _Followed()
            service.task = asyncio.create_task(self._kept_up(name, service))
        for name in self._services.keys() - wanted:
            if (task := self._services.pop(name).task) is not None:
                task.cancel()

    def wanted(self, holder: str) -> frozenset[str]:
        """The services that a holder follows."""
        return self._wanted.get(holder, frozenset())

    async def of(self, names: Collection[str]) -> dict[str, Items | None]:
        """The endpoints of services that somebody wants; None: there is no such service.

        Raises:
            StartFailed: no farm has told of one yet.
        """
        for name in sorted(names):
            service = self._services[name]
            await within(service.known.wait(), self._clock, FIRST_SECONDS)
            if not service.known.is_set():
                why = service.trouble or "no answer"
                raise StartFailed(f"no farm told the endpoints of service {name!r}: {why}", field="files")
        return {name: self._services[name].items for name in names}

    async def _kept_up(self, name: str, service: _Followed) -> None:
        """The error boundary of one service."""
        while True:
            try:
                await self._follow(name, service)
            except Exception:
                log.exception("endpoints.crashed", service=name)
                await self._clock.sleep(LONGEST_PAUSE)

    async def _follow(self, name: str, service: _Followed) -> None:
        index, pause = 0, PAUSE_SECONDS
        farms: list[str] = []
        while True:
            try:
                if not farms:
                    farms = await self._farms()
                status, answer = await self._ask(farms[0], name, index)
                service.trouble, service.since, pause = "", None, PAUSE_SECONDS
                if status == 404:
                    self._take(name, service, None)
                    await self._clock.sleep(ABSENT_SECONDS)
                    index = 0
                    continue
                if answer.index == index:
                    await self._clock.sleep(PAUSE_SECONDS)  # a proxy in between may answer at once
                index = answer.index
                self._take(name, service, [_told(each) for each in answer.items])
            except (StoreError, OSError, msgspec.MsgspecError) as error:
                why = str(error) or type(error).__name__
                if why != service.trouble:
                    log.warning("endpoints.unanswered", service=name, reason=why)
                service.trouble = why
                self._silent(name, service)
                farms, index = farms[1:], 0  # the next farm answers at once, also if nothing changed
                await self._clock.sleep(pause * self._rng.uniform(0.5, 1.5))
                pause = min(2 * pause, LONGEST_PAUSE)

    def _silent(self, name: str, service: _Followed) -> None:
        """Note that no farm answered, and have it told once that lasts."""
        now = self._clock.mono()
        if service.since is None:
            service.since = now
        elif now - service.since >= SILENT_SECONDS:
            self.changed(name)

    def silence(self, names: Collection[str]) -> str:
        """Why the endpoints of services may not be the present ones; empty: farms answer."""
        now = self._clock.mono()
        for name in sorted(names):
            service = self._services.get(name)
            if service and service.since is not None and now - service.since >= SILENT_SECONDS:
                return f"no farm tells the endpoints of service {name!r} any more: {service.trouble}"
        return ""

    def _take(self, name: str, service: _Followed, items: Items | None) -> None:
        if service.known.is_set() and items == service.items:
            return
        service.items = items
        service.known.set()
        self.changed(name)

    async def _farms(self) -> list[str]:
        """The addresses of the farms that are there, in any order.

        Raises:
            StoreError, OSError: they cannot be read, or there are none.
        """
        found = await records(self._client, self._keys.tree("farms"), Member)
        addresses = [each.record.address for each in found.items if each.record.address]
        if not addresses:
            raise OSError("no farm is running")
        return sorted(addresses, key=lambda _: self._rng.uniform(0.0, 1.0))

    async def _ask(self, farm: str, name: str, index: int) -> tuple[int, _Answer]:
        """The status and the answer of a farm.

        Raises:
            OSError: there is none that helps. CredentialInvalid: the file of authorities cannot be used.
        """
        try:
            return await self._asked(farm, name, index)
        except (aiohttp.ClientError, TimeoutError) as error:
            refused = isinstance(error, aiohttp.ClientConnectorCertificateError)
            hint = "; agent.farm_ca names the authorities of farms" if refused else ""
            raise OSError(f"{farm}: {reason(error)}{hint}") from error

    async def _asked(self, farm: str, name: str, index: int) -> tuple[int, _Answer]:
        url = f"{farm.rstrip('/')}/v1/services/{name}/endpoints"
        params = {"index": str(index), "wait": f"{WAIT_SECONDS}s"}
        tls = self._tls() if farm.startswith("https:") else True
        async with self._session().get(url, params=params, allow_redirects=False, ssl=tls) as answer:
            if answer.status == 404:
                return 404, _Answer(0, [])
            if answer.status != 200:
                raise OSError(f"{farm}: status {answer.status}")
            body = await answer.content.read(MOST_BYTES)
            while not answer.content.at_eof():
                if len(body) >= MOST_BYTES:
                    raise OSError(f"{farm}: more than {MOST_BYTES} bytes")
                body += await answer.content.read(MOST_BYTES)
        return 200, msgspec.json.decode(body, type=_Answer)

    def _session(self) -> aiohttp.ClientSession:
        if self._http is None:
            self._http = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=ANSWER_SECONDS, sock_connect=CONNECT_SECONDS),
            )
        return self._http

    async def close(self) -> None:
        """Follow nothing any more."""
        self._wanted.clear()
        tasks = [each.task for each in self._services.values() if each.task is not None]
        self._services.clear()
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task
        if self._http is not None:
            await self._http.close()


def _told(item: _Item) -> dict[str, Any]:
    """An endpoint as templates see it."""
    host = f"[{item.address}]" if ":" in item.address else item.address
    return {**msgspec.to_builtins(item), "hostport": f"{host}:{item.port}"}
