"""Asks registries which digest they serve for a tag, by the distribution specification of the OCI.

A password goes only to the registry that it belongs to and to the token server which that registry names. It
is never stored, logged or told in an error, and neither is anything that a server says.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import ipaddress
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import getproxies, proxy_bypass

import aiohttp
import msgspec
from yarl import URL

from farmd.deploy.protocols import NoDigest
from store.images import REGISTRY, Login, Reference, login, parse

ANSWER_SECONDS = 10.0
MAX_BYTES = 4 * 1024 * 1024
KINDS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_ENGINE = Path("/etc/docker/daemon.json")
_REFUSED = "requires a login that may pull this image (auths in docker's config.json), or has no such image"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_PARAMETER = re.compile(r'(\w+)="([^"]*)"')
_SECONDS = re.compile(r"[0-9]{1,6}")
_VISIBLE = re.compile(r"[\x21-\x7e]+")


@contextlib.asynccontextmanager
async def registries(environ: Mapping[str, str]) -> AsyncGenerator[Registries]:
    """Registries, asked with the logins of the caller's ``~/.docker/config.json`` or ``$DOCKER_CONFIG``."""
    folder = environ.get("DOCKER_CONFIG") or Path(environ.get("HOME", "/"), ".docker")
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as http:
        yield Registries(http, Path(folder, "config.json"))


class Registries:
    """An ``ImageResolverClient``; ``logins`` is the file to read when a registry asks for a login."""

    def __init__(self, http: aiohttp.ClientSession, logins: Path) -> None:
        self._http = http
        self._logins = logins

    async def digest(self, image: str) -> str:
        """The digest of an image; of one for several platforms that of its index.

        Raises:
            NoDigest: with the reason.
        """
        reference = parse(image)
        name = reference.registry
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await self._ask(reference)
        except TimeoutError as error:
            raise NoDigest(f"{name} does not answer within {ANSWER_SECONDS:g} s") from error
        except aiohttp.ClientConnectorCertificateError as error:
            raise NoDigest(f"{name} has a certificate that this machine does not trust") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise NoDigest(f"{name} cannot be asked: {_why(error)}") from error

    async def _ask(self, reference: Reference) -> str:
        """Ask over TLS; a registry that docker calls insecure with any certificate, or without TLS."""
        if not _insecure(reference.registry):
            return await _Question(self._http, self._logins, reference, secure=True).answer("https")
        question = _Question(self._http, self._logins, reference, secure=False)
        with contextlib.suppress(aiohttp.ClientConnectionError):
            return await question.answer("https")
        return await question.answer("http")


@dataclass(frozen=True, slots=True)
class _Question:
    """One question for a digest; ``secure``: only over TLS, and to servers with a trusted certificate."""

    http: aiohttp.ClientSession
    logins: Path
    reference: Reference
    secure: bool

    async def answer(self, scheme: str) -> str:
        host = "registry-1.docker.io" if self.reference.registry == REGISTRY else self.reference.registry
        tag = self.reference.tag or "latest"
        url = URL(f"{scheme}://{host}/v2/{self.reference.path}/manifests/{tag}")
        headers = {"Accept": ", ".join(KINDS)}
        told = await self._head(url, headers)
        if told.status == 401:
            headers["Authorization"] = await self._authorization(told.headers.getall("WWW-Authenticate", []))
            told = await self._head(url, headers)
        self._check(told)
        if "Docker-Content-Digest" in told.headers:
            return self._valid(told.headers["Docker-Content-Digest"])
        # Registries need not tell the digest: it is that of the manifest's text.
        async with self._request("GET", url, headers=headers) as answer:
            self._check(answer)
            kind = answer.content_type
            body = await self._body(answer)
        return self._valid(f"sha256:{hashlib.sha256(body).hexdigest()}" if kind in KINDS else "")

    async def _head(self, url: URL, headers: Mapping[str, str]) -> aiohttp.ClientResponse:
        async with self._request("HEAD", url, headers=headers) as answer:
            return answer

    async def _authorization(self, asks: Sequence[str]) -> str:
        """What the answer 401 asks for: a token of the server that it names, or the login itself."""
        known = self._login()
        bearer = next((ask for ask in asks if ask.lower().startswith("bearer ")), None)
        if bearer is not None:
            return f"Bearer {await self._token(dict(_PARAMETER.findall(bearer)), known)}"
        if known is None or not known.user:
            raise self._failed(_REFUSED)
        return _basic(known)

    def _login(self) -> Login | None:
        try:
            return login(self.logins.read_text(encoding="utf-8"), self.reference.registry)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise self._failed(f"requires a login, but {self.logins} cannot be read") from error

    async def _token(self, given: Mapping[str, str], known: Login | None) -> str:
        realm = URL(given.get("realm", ""))
        if realm.scheme not in ("https", "http") or (self.secure and realm.scheme != "https"):
            raise self._failed("names no token server that is asked over TLS")
        asked = {"scope": given.get("scope") or f"repository:{self.reference.path}:pull"}
        asked |= {"service": given["service"]} if "service" in given else {}
        if known is not None and known.identity_token:
            asked |= {"grant_type": "refresh_token", "client_id": "farmctl"}
            asked |= {"refresh_token": known.identity_token}
            request = self._request("POST", realm, data=asked)
        else:
            headers = {"Authorization": _basic(known)} if known is not None else {}
            request = self._request("GET", realm.update_query(asked), headers=headers)
        async with request as answer:
            self._check(answer)
            body = await self._body(answer)
        try:
            found = msgspec.json.decode(body, type=_Token)
        except msgspec.DecodeError:
            found = _Token()
        if not _VISIBLE.fullmatch(found.token or found.access_token):
            raise self._failed("has a token server that gives no token")
        return found.token or found.access_token

    @contextlib.asynccontextmanager
    async def _request(self, method: str, url: URL, **more: Any) -> AsyncGenerator[aiohttp.ClientResponse]:
        """One request; a login does not follow a redirect to another server."""
        proxy = None if proxy_bypass(url.host or "") else getproxies().get(url.scheme)
        async with self.http.request(
            method, url, ssl=self.secure, proxy=proxy, allow_redirects=True, max_redirects=5, **more
        ) as answer:
            if self.secure and answer.url.scheme != "https":
                raise self._failed("leads to a server without TLS")
            yield answer

    async def _body(self, answer: aiohttp.ClientResponse) -> bytes:
        try:
            await answer.content.readexactly(MAX_BYTES)
        except asyncio.IncompleteReadError as end:
            return end.partial
        raise self._failed("answers with too much")

    def _check(self, answer: aiohttp.ClientResponse) -> None:
        """Refuse an answer that is no success."""
        status, after = answer.status, answer.headers.get("Retry-After", "")
        if status == 404:
            raise self._failed(f"has no image {self.reference}", absent=True)
        if status == 429:
            again = f"; try again in {after} s" if _SECONDS.fullmatch(after) else ""
            raise self._failed(f"gets too many requests{again}")
        if status in (401, 403):
            raise self._failed(_REFUSED)
        if status != 200:
            raise self._failed(f"answers with status {status}")

    def _valid(self, digest: str) -> str:
        if not _DIGEST.fullmatch(digest):
            raise self._failed("answers without a digest")
        return digest

    def _failed(self, what: str, *, absent: bool = False) -> NoDigest:
        return NoDigest(f"{self.reference.registry} {what}", absent=absent)


class _Token(msgspec.Struct):
    token: str = ""
    access_token: str = ""


class _EngineConfig(msgspec.Struct):
    insecure: list[str] = msgspec.field(name="insecure-registries", default_factory=list)


def _basic(known: Login) -> str:
    return "Basic " + base64.b64encode(f"{known.user}:{known.password}".encode()).decode()


def _insecure(registry: str) -> bool:
    """Whether docker speaks to it without TLS: it is on this machine, or docker's configuration says so."""
    host = URL(f"//{registry}").host or ""
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(host).is_loopback:
            return True
    try:
        listed = msgspec.json.decode(_ENGINE.read_bytes(), type=_EngineConfig).insecure
    except (OSError, msgspec.DecodeError):
        listed = []
    return host == "localhost" or registry in listed


def _why(error: Exception) -> str:
    """The system's own words for an error: its message could name a proxy with a password."""
    return getattr(error, "strerror", None) or type(error).__name__
