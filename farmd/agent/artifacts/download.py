"""Downloads one file by HTTP, and goes on where an earlier try ended.

Nothing of an answer is believed but its bytes, which the checksum judges: its length is only a hint, and a
status is shown without the body, which may come from a server that people here cannot ask themselves.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import urljoin, urlsplit

import aiohttp
import msgspec
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from farmd.agent.artifacts.rules import Forbidden, Rules
from farmd.agent.errors import StartFailed
from store.artifacts import without_query
from store.ports import Clock

T = TypeVar("T")

CHUNK = 1 << 20
TRIES, LONGEST_WAIT = 5, 60.0
CONNECT_SECONDS, IDLE_SECONDS = 10.0, 30.0
REDIRECTS, MOVED = 5, (301, 302, 303, 307, 308)
TELL_SECONDS = 5.0


class OnDisk(Protocol):
    """Does work that waits for the disk in a thread of its own."""

    def __call__(self, work: Callable[..., T], *given: Any) -> Awaitable[T]: ...


class Again(Exception):
    """A failure that another try may not have."""


class Origin(msgspec.Struct, frozen=True):
    """Where the part came from: a server goes on only with the very content that ``mark`` names."""

    url: str
    mark: str


class Part:
    """A file that is not complete yet; every method waits for the disk.

    ``room`` says how many bytes more the disk takes.
    """

    def __init__(self, path: Path, room: Callable[[], int]) -> None:
        self.path = path
        self._note = path.with_name(f"{path.name}.json")
        self._room = room
        self.size = 0
        self._hash = hashlib.sha256()
        self._file = -1

    @property
    def digest(self) -> str:
        """The SHA-256 of what is there."""
        return self._hash.hexdigest()

    def open(self) -> Origin | None:
        """Read what an earlier try left; where it came from, if a server can go on."""
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        while data := os.read(self._file, CHUNK):
            self._hash.update(data)
            self.size += len(data)
        try:
            return msgspec.json.decode(self._note.read_bytes(), type=Origin) if self.size else None
        except (OSError, msgspec.DecodeError):
            return None

    def begin(self, source: Origin) -> None:
        """Forget what is there, and note where the content comes from now."""
        os.ftruncate(self._file, 0)
        os.lseek(self._file, 0, os.SEEK_SET)
        self.size, self._hash = 0, hashlib.sha256()
        self._note.unlink(missing_ok=True)
        if source.mark:
            self._note.write_bytes(msgspec.json.encode(source))

    def require(self, size: int) -> None:
        """Refuse to go on where the disk has no room for so much.

        Raises:
            StartFailed: it has not.
        """
        require(self._room(), size)

    def append(self, data: bytes) -> None:
        """Write some more.

        Raises:
            StartFailed: the disk is full.
        """
        self.require(len(data))
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]
        self._hash.update(data)
        self.size += len(data)

    def finish(self, mode: int) -> None:
        """Have it on the disk, so that it may get its name."""
        os.fchmod(self._file, mode)
        os.fsync(self._file)
        self._note.unlink(missing_ok=True)

    def drop(self) -> None:
        """Remove it."""
        for path in (self.path, self._note):
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def require(room: int, size: int) -> None:
    """Refuse to write what leaves too little of the disk for everything else.

    Raises:
        StartFailed: there is too little room.
    """
    if size > room:
        raise StartFailed(f"disk full: {_mb(size)} MB more are needed, {_mb(max(0, room))} MB may be used")


def _mb(size: int) -> str:
    return f"{size / 1e6:.1f}" if size < 10e6 else f"{size / 1e6:.0f}"


@dataclass(eq=False, kw_only=True)
class Download:
    """One download into a part; ``tell`` people how far it is."""

    rules: Rules
    clock: Clock
    on_disk: OnDisk
    tell: Callable[[str], None]
    part: Part
    _told: float = 0.0
    _known: Origin | None = None
    """Where what is there came from, if a server can go on with it."""

    async def run(self, url: str, known: Origin | None) -> None:
        """Fetch the rest, and try again what may come right.

        Raises:
            StartFailed: with the reason for people.
        """
        self._say(0)
        self._known = known
        retrying = AsyncRetrying(
            sleep=self.clock.sleep,
            stop=stop_after_attempt(TRIES),
            wait=wait_exponential(multiplier=1, max=LONGEST_WAIT),
            retry=retry_if_exception_type(Again),
            reraise=True,
        )
        tls = await self.on_disk(self.rules.tls)
        async with self._session(tls) as http:
            try:
                async for attempt in retrying:
                    with attempt:
                        await self._once(http, url)
            except Again as error:
                raise StartFailed(f"{error}, in {TRIES} tries") from error

    def _session(self, tls: ssl.SSLContext) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(force_close=True, ssl=tls, socket_factory=self.rules.opened)
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(sock_connect=CONNECT_SECONDS, sock_read=IDLE_SECONDS),
        )

    async def _once(self, http: aiohttp.ClientSession, url: str) -> None:
        """One try."""
        known = self._known if self.part.size else None
        try:
            async with self._answer(http, url, known) as response:
                await self._begin(response, url, known)
                await self._body(response)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._failure(error) from error

    @contextlib.asynccontextmanager
    async def _answer(self, http: aiohttp.ClientSession, url: str, known: Origin | None) -> Any:
        """The answer at the end of all redirects."""
        for _ in range(REDIRECTS + 1):
            headers = {"Accept-Encoding": "identity", **await self.on_disk(self.rules.login, url)}
            if known is not None:
                headers |= {"Range": f"bytes={self.part.size}-", "If-Range": known.mark}
            proxy = self.rules.config.proxy or None
            async with http.get(url, headers=headers, proxy=proxy, allow_redirects=False) as response:
                if response.status not in MOVED:
                    yield response
                    return
                url = self._moved(url, response.headers.get("Location", ""))
        raise StartFailed(f"more than {REDIRECTS} redirects")

    def _moved(self, url: str, to: str) -> str:
        try:
            there = urljoin(url, to)
            scheme = urlsplit(there).scheme
        except ValueError:
            scheme = ""
        if scheme not in ("http", "https") or (scheme == "http" and url.startswith("https:")):
            raise StartFailed("redirected to another scheme than https")
        self.rules.require(there)
        return there

    async def _begin(self, response: aiohttp.ClientResponse, url: str, known: Origin | None) -> None:
        """Begin with the body: after what is there, if the server goes on with it."""
        status = response.status
        if status in (408, 425, 429) or status >= 500:
            raise Again(f"HTTP {status}")
        if status == 206 and known is not None and _goes_on(response, self.part.size):
            return
        self._known = None
        if status in (206, 416):
            # It is no part of what is here: the next try asks for all of it.
            await self.on_disk(self.part.begin, Origin(url, ""))
            raise Again(f"HTTP {status} for the rest of the file")
        if status != 200:
            raise StartFailed(f"HTTP {status}")
        etag = response.headers.get("ETag", "")
        origin = Origin(url, etag if etag.startswith('"') else "")
        await self.on_disk(self.part.begin, origin)
        self._known = origin if origin.mark else None

    async def _body(self, response: aiohttp.ClientResponse) -> None:
        length, most = response.content_length or 0, self.rules.config.most
        total = self.part.size + length
        if total > most:
            raise _too_large(most)
        await self.on_disk(self.part.require, length)
        buffer = bytearray()
        async for data in response.content.iter_any():
            buffer += data
            if self.part.size + len(buffer) > most:
                raise _too_large(most)
            if len(buffer) >= CHUNK:
                await self._flush(buffer)
                self._say(total if length else 0)
        await self._flush(buffer)

    async def _flush(self, buffer: bytearray) -> None:
        data = bytes(buffer)
        buffer.clear()
        await self.on_disk(self.part.append, data)

    def _say(self, total: int) -> None:
        now = self.clock.mono()
        if not self._told:
            self.tell("")
        elif now >= self._told + TELL_SECONDS:
            self.tell(
                f": {_mb(self.part.size)} of {_mb(total)} MB" if total else f": {_mb(self.part.size)} MB"
            )
        else:
            return
        self._told = now

    def _failure(self, error: Exception) -> Exception:
        inner = getattr(error, "os_error", error)
        if isinstance(inner, Forbidden):
            return StartFailed(str(inner))
        if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientSSLError):
            why = getattr(inner, "verify_message", "") or getattr(inner, "reason", "") or "no good TLS"
            return StartFailed(f"TLS: {why}")
        if isinstance(error, aiohttp.InvalidURL):
            return StartFailed("it is no good URL")
        if isinstance(error, aiohttp.ClientError):
            number = inner.errno if isinstance(inner, OSError) else None
            # asyncio writes the address into the words of a refused connection.
            reason = os.strerror(number) if number and number > 0 else getattr(inner, "strerror", "")
            return Again(reason or _kind(error))
        if isinstance(error, TimeoutError):
            return Again(f"no data within {IDLE_SECONDS:g} s")
        return error


def _kind(error: Exception) -> str:
    """What broke, without what an address or a header of the answer says."""
    if isinstance(error, aiohttp.ServerTimeoutError):
        return f"no data within {IDLE_SECONDS:g} s"
    if isinstance(error, aiohttp.ClientPayloadError | aiohttp.ServerDisconnectedError):
        return "the connection ended before the file did"
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return f"the proxy of agent.artifact_proxy refused: HTTP {error.status}"
    if isinstance(error, aiohttp.ClientConnectorError):
        return "no connection"
    return f"no good answer ({type(error).__name__})"


def _goes_on(response: aiohttp.ClientResponse, size: int) -> bool:
    return response.headers.get("Content-Range", "").startswith(f"bytes {size}-")


def _too_large(most: int) -> StartFailed:
    return StartFailed(f"larger than {most} bytes (agent.artifact_max)")


def shown(source: str, url: str) -> str:
    """A source for people, with what a registry's name stands for."""
    return without_query(source) if source == url else f"{source} ({without_query(url)})"
