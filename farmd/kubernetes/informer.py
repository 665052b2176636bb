"""Keeps an ``ObjectStore`` equal to one resource of an API server, by a list and then watches.

What must never break: no object is lost or kept by a gap. A watch goes on from the last version that was
seen; where the server forgot it (410 as a status, in the stream, or of a page), or its answers contradict
what is known, a new list is compared with the store. A list that failed proves nothing: 404 and 403 are
doubt. A watch has a deadline, so a connection that died in silence is noticed.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple

import msgspec
import structlog

from farmd.kubernetes import objects
from farmd.kubernetes.errors import (
    Forbidden,
    Gone,
    KubernetesError,
    NotFound,
    Status,
    TooManyRequests,
    Unauthorized,
    UnexpectedAnswer,
    decoded,
    error_of,
)
from farmd.kubernetes.objects import Resource
from farmd.kubernetes.store import Key, ObjectStore, ObjectT, key_of
from farmd.kubernetes.transport import JSON, ApiRequest, KubernetesTransport, retry_after
from store.errors import CredentialInvalid
from store.ports import Clock, Rng

log = structlog.get_logger()

LIST_SECONDS = 60.0
WATCH_SECONDS = (60.0, 75.0)
DEADLINE_AFTER_SECONDS = 10.0
DOUBT_SECONDS = 30.0
MOST_PAUSE_SECONDS = 30.0
SHORT_WATCH_SECONDS = 1.0
VANISHED_SHARE = 0.5
VANISHED_AT_LEAST = 20


@dataclass(frozen=True, slots=True)
class Source:
    """What is watched: a resource, of one namespace or of all, by labels. ``label`` is for metrics; with
    ``metadata`` the server sends nothing else of the objects.
    """

    resource: Resource
    namespace: str = ""
    selector: str = ""
    label: str = "other"
    metadata: bool = False


class _Event(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


class _Broken(NamedTuple):
    key: Key
    version: str
    error: str


class Informer(Generic[ObjectT]):
    """One list and watch; ``kind`` is the struct that objects are decoded to.

    ``doubt`` says why the resource cannot be read, ``denied`` whether for want of rights. ``heard`` is when
    the server answered last, ``shrank`` when a list last lacked most of what was known, by the clock's
    monotonic time.
    """

    def __init__(
        self,
        transport: KubernetesTransport,
        source: Source,
        kind: type[ObjectT],
        store: ObjectStore[ObjectT],
        *,
        clock: Clock,
        rng: Rng,
    ) -> None:
        self.store = store
        self.doubt = ""
        self.denied = False
        self.heard = clock.mono()
        self.shrank = -math.inf
        self._transport, self.source = transport, source
        self._decoder = msgspec.json.Decoder(kind)
        self._clock, self._rng = clock, rng
        self._path = source.resource.path(source.namespace)
        self._stale = True
        self._asks = False
        self._failures = 0
        self._ready = asyncio.Event()

    @property
    def synced(self) -> bool:
        """Whether a whole list was read since the start."""
        return self._ready.is_set()

    def staleness(self) -> float:
        """Seconds since the server's last answer; 0 before it is asked."""
        return self._clock.mono() - self.heard if self._asks else 0.0

    async def until_synced(self) -> None:
        """Return when the first list is in the store."""
        await self._ready.wait()

    async def run(self) -> None:
        """List and watch until cancelled; no answer of the server ends it."""
        self._asks, self.heard = True, self._clock.mono()
        while True:
            try:
                if self._stale:
                    await self._list()
                await self._watch()
            except Gone as error:
                self._stale = True
                log.info("informer.gone", resource=str(self.source.resource), error=error.message)
            except (NotFound, Forbidden) as error:
                await self._doubt(error)
            except (KubernetesError, CredentialInvalid) as error:
                await self._pause(error)

    async def _doubt(self, error: KubernetesError) -> None:
        """Note that the resource cannot be read now. That proves nothing about its objects."""
        self._stale = True
        if self.doubt != error.message:
            log.warning("informer.doubt", resource=str(self.source.resource), error=error.message)
        self.doubt, self.denied = error.message, isinstance(error, Forbidden)
        await self._clock.sleep(DOUBT_SECONDS * self._rng.uniform(0.9, 1.1))

    async def _pause(self, error: KubernetesError | CredentialInvalid) -> None:
        """Wait before the next try, longer each time.

        A server that cannot be reached again at once may come back with an older etcd, whose versions belong
        to another history; so may one that answers a watch with an error. A busy one, and one that refuses a
        credential, do not.
        """
        if not isinstance(error, TooManyRequests | Unauthorized | CredentialInvalid):
            self._stale = self._stale or bool(error.status) or self._failures > 0
        if self._failures == 0:
            log.warning("informer.failed", resource=str(self.source.resource), error=error.message)
        most = min(MOST_PAUSE_SECONDS, 0.5 * 2.0 ** min(self._failures, 10))
        least = (retry_after(error) or 0.0) if isinstance(error, TooManyRequests) else 0.0
        self._failures += 1
        await self._clock.sleep(least + self._rng.uniform(most / 2, most))

    def _hear(self) -> None:
        """The server answered with what was asked for."""
        self.heard = self._clock.mono()
        if self._failures or self.doubt:
            log.info("informer.recovered", resource=str(self.source.resource))
        self._failures, self.doubt = 0, ""

    async def _list(self) -> None:
        """Read everything, in pages; if the server forgot a page, all at once."""
        floor = self.store.known
        try:
            listed = await self._pages(objects.PAGE)
        except Gone:
            listed = await self._pages(0)
        known = {key_of(each) for each in self.store}
        gone = len(known - listed[0].keys() - listed[2].keys())
        if gone >= VANISHED_AT_LEAST and gone > VANISHED_SHARE * len(known):
            log.warning("informer.shrank", resource=str(self.source.resource), gone=gone, known=len(known))
            self.shrank = self._clock.mono()
        if self.store.replace(*listed, floor):
            log.warning("informer.restored", resource=str(self.source.resource), known=floor)
        self._stale = False
        self._ready.set()

    async def _pages(self, size: int) -> tuple[dict[Key, ObjectT], int, dict[Key, str]]:
        known, broken = dict[Key, ObjectT](), dict[Key, str]()
        following = ""
        while True:
            params = objects.params(self.source.selector, following, size)
            request = self._request(params, objects.LISTED_METADATA)
            body = await self._transport.send(request, LIST_SECONDS)
            page = decoded(body, objects.Page, self._path)
            self._hear()
            for item in page.items or ():
                found = self._decode(item)
                if isinstance(found, _Broken):
                    broken[found.key] = found.error
                else:
                    known[key_of(found)] = found
            following = page.metadata.next
            if not following:
                return known, _version(page.metadata.resource_version, self._path), broken
            await self._clock.sleep(0)

    async def _watch(self) -> None:
        """One watch, from the store's version until the server ends it."""
        seconds = int(self._rng.uniform(*WATCH_SECONDS))
        params = [("labelSelector", self.source.selector)] if self.source.selector else []
        params += [
            ("watch", "1"),
            ("resourceVersion", str(self.store.version)),
            ("allowWatchBookmarks", "true"),
            ("timeoutSeconds", str(seconds)),
        ]
        request = self._request(params, objects.WATCHED_METADATA)
        begun, before = self._clock.mono(), self.store.version
        try:
            async with self._transport.watch(request, seconds + DEADLINE_AFTER_SECONDS) as lines:
                self._hear()
                await self._events(lines)
        except KubernetesError:
            # The connection died in silence, nobody knows when, and the server may have been restored since.
            self._stale = self._stale or self._clock.mono() - begun > seconds
            raise
        if self.store.version == before and self._clock.mono() - begun < SHORT_WATCH_SECONDS:
            await self._clock.sleep(self._rng.uniform(SHORT_WATCH_SECONDS / 2, SHORT_WATCH_SECONDS))

    def _request(self, params: Sequence[tuple[str, str]], metadata: str) -> ApiRequest:
        accept = metadata if self.source.metadata else JSON
        return ApiRequest("GET", self._path, params, resource=self.source.label, accept=accept)

    async def _events(self, lines: AsyncIterator[bytes]) -> None:
        async for line in lines:
            self._apply(decoded(line, _Event, self._path))
            self._hear()

    def _apply(self, event: _Event) -> None:
        if event.type == "ERROR":
            told = decoded(event.object, Status, self._path)
            raise error_of(told.code, bytes(event.object), f"watch {self._path}", write=False)
        if event.type == "BOOKMARK":
            meta = decoded(event.object, objects.Named, self._path).metadata
            self.store.version = self._in_order(meta.resource_version)
            return
        found = self._decode(event.object)
        if isinstance(found, _Broken):
            self._in_order(found.version)
            self.store.spoil(found.key, found.error, int(found.version), deleted=event.type == "DELETED")
            return
        self._in_order(found.metadata.resource_version)
        if event.type == "DELETED":
            self.store.gone(found)
        else:
            self.store.seen(found)

    def _in_order(self, text: str) -> int:
        """The version of an event, which is higher than all before: else something was lost."""
        version = _version(text, self._path)
        if version < self.store.version:
            raise Gone(f"watch {self._path}: version {version} after {self.store.version}")
        return version

    def _decode(self, raw: msgspec.Raw) -> ObjectT | _Broken:
        try:
            # A copy: an object that keeps a part undecoded would keep its whole page.
            return self._decoder.decode(bytes(raw))
        except msgspec.DecodeError as error:
            meta = decoded(raw, objects.Named, self._path).metadata
            log.warning(
                "informer.broken",
                resource=str(self.source.resource),
                namespace=meta.namespace,
                name=meta.name,
                error=str(error),
            )
            return _Broken((meta.namespace, meta.name), meta.resource_version, str(error))


def _version(text: str, path: str) -> int:
    if not text.isdecimal():
        raise UnexpectedAnswer(f"{path}: found the version {text!r}, expected a number")
    return int(text)
